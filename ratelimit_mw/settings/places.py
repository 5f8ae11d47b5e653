"""Put the file and the line of a setting, and the name of its rule, into an error about the setting."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from ..errors import ConfigError
from .locate import places_in, steps_of
from .options import SettingsDict

if TYPE_CHECKING:
    from . import Settings

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


def locate(error: ConfigError, settings: Settings, arguments: Collection[str]) -> ConfigError | None:
    """Return an error of the start with its place; None if it is not about a setting of the file.

    ``arguments`` are the settings that do not come from the file.
    """
    rules = settings.rule_paths
    name = next((name for name in rules if error.of in (f"rule {name!r}", f'rule "{name}"')), None)
    if name is not None:
        if not _sets(settings, name, error.path):
            return None
        path = _join(rules[name], error.path)
    else:
        path = "" if error.of else error.path
    field = next(iter(steps_of(path)), "")
    if field in arguments or field not in SettingsDict.__annotations__:
        return None
    message = error.message
    rule, rest = split_rule(path, {step: name for name, step in rules.items()})
    if name is not None and (default := _default(settings, name, error.path)):
        path, message = f"defaults.{default}", f"{message}. The rule has {default} from [defaults]"
    return type(error)(": ".join(filter(None, (find_place(settings.source, path), rule, rest, message))))


def _join(rule: str, path: str) -> str:
    return f"{rule}{'' if not path or path.startswith('[') else '.'}{path}"


def _sets(settings: Settings, name: str, path: str) -> bool:
    """Return whether the file has the option of this path, and not the decorator whose rule the file overrides."""
    if not path or name not in settings.amendments:
        return True
    option = steps_of(path)[0]
    options = _TOGETHER if option in _TOGETHER else {option}
    return not options.isdisjoint(settings.amendments[name].options)


def _default(settings: Settings, name: str, path: str) -> str:
    """Return the option of this path if the rule has it from [defaults], else ""."""
    option = str(next(iter(steps_of(path)), ""))
    rules = dict(zip(settings.rule_paths, settings.rules, strict=False))
    own: Mapping[str, object] = rules[name].options if name in rules else {}
    defaults: Mapping[str, object] = settings.defaults
    return option if option in defaults and own.get(option) == defaults[option] else ""
