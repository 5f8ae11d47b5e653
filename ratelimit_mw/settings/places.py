"""Put the file and the line of a setting, and the name of its rule, into an error about the setting."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..errors import ConfigError
from ..rules.rule import Rule
from .locate import places_in, steps_of
from .options import SettingsDict

_TOGETHER: Final = frozenset({"cost", "limits"})
"""Options that are wrong together: a cost above the limit."""


def split_rule(path: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Split a path into its rule, with the name, and the rest: 'rules[1] "login"' and "limits[0]"."""
    steps = steps_of(path)
    if len(steps) < 2 or steps[0] != "rules" or not isinstance(steps[1], int):
        return "", path
    rule = f"rules[{steps[1]}]"
    name = names.get(rule)
    return f'{rule} "{name}"' if name else rule, path.removeprefix(rule).removeprefix(".")


def find_place(source: str, path: str) -> str:
    """Return the "FILE:LINE" of a path, or the file alone when it cannot be read."""
    try:
        return places_in(source)(path)
    except OSError:
        return source


class WrittenRules(NamedTuple):
    """The rules of settings, and where their options are written."""

    source: str
    """The path of the settings file."""
    paths: Mapping[str, str]
    """The path of each rule in the settings, such as "rules[0]", by the name of the rule."""
    rules: Sequence[Rule]
    amended: Mapping[str, Collection[str]]
    """The options that the settings give to a decorator's rule, by its name."""
    defaults: Mapping[str, Any]

    def locate(self, error: ConfigError, arguments: Collection[str]) -> ConfigError | None:
        """Return an error of the start with its place; None if it is not about a setting of the file.

        ``arguments`` are the settings that do not come from the file.
        """
        name = next((name for name in self.paths if error.of in (f"rule {name!r}", f'rule "{name}"')), None)
        if name is not None:
            if not self._sets(name, error.path):
                return None
            path = _join(self.paths[name], error.path)
        else:
            path = "" if error.of else error.path
        field = next(iter(steps_of(path)), "")
        if field in arguments or field not in SettingsDict.__annotations__:
            return None
        message = error.message
        rule, rest = split_rule(path, {step: name for name, step in self.paths.items()})
        if name is not None and (default := self._default(name, error.path)):
            path, message = f"defaults.{default}", f"{message}. The rule has {default} from [defaults]"
        return type(error)(": ".join(filter(None, (find_place(self.source, path), rule, rest, message))))

    def _sets(self, name: str, path: str) -> bool:
        """Return whether the file has the option of this path, and not the decorator whose rule the file overrides."""
        if not path or name not in self.amended:
            return True
        option = steps_of(path)[0]
        options = _TOGETHER if option in _TOGETHER else {option}
        return not options.isdisjoint(self.amended[name])

    def _default(self, name: str, path: str) -> str:
        """Return the option of this path if the rule has it from [defaults], else ""."""
        option = str(next(iter(steps_of(path)), ""))
        rules = dict(zip(self.paths, self.rules, strict=False))
        own: Mapping[str, object] = rules[name].options if name in rules else {}
        return option if option in self.defaults and own.get(option) == self.defaults[option] else ""


def _join(rule: str, path: str) -> str:
    return f"{rule}{'' if not path or path.startswith('[') else '.'}{path}"
