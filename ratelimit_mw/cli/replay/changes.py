"""Compares the texts of the rules of two settings files: those that were added, removed or changed."""

from pathlib import Path
from typing import Any, Final, NamedTuple

from ...rules.places import places_in
from ...rules.rule import Rule
from ...settings import Settings
from ...settings.files import read
from ...stores.url import redacted_url
from ..toml import toml

_OF_RULES: Final = ("rules", "limits", "$schema")
_URLS: Final = ("store", "traffic_log")
_SETTINGS: Final = "(settings)"


class Change(NamedTuple):
    """A rule that differs: the lines of its text that the other file does not have, as TOML, and its place."""

    kind: str
    rule: str
    old: list[str]
    new: list[str]
    place: str


def changes_between(old: Settings, new: Settings) -> list[Change]:
    """Return the changes from one settings file to another, in the order of the new one."""
    before, after = _texts(old), _texts(new)
    changes = []
    for name in dict.fromkeys((*after, *before)):
        (old_lines, place), (new_lines, _) = before.get(name, ([], "")), after.get(name, ([], ""))
        if old_lines != new_lines:
            kind = "added" if name not in before else "removed" if name not in after else "changed"
            gone = [each for each in old_lines if each not in new_lines]
            added = [each for each in new_lines if each not in old_lines]
            changes.append(Change(kind, name, gone, added, after[name][1] if name in after else place))
    return changes


def _texts(settings: Settings) -> dict[str, tuple[list[str], str]]:
    """Return the text of each rule by name, and of the other settings, each with its place."""
    data, place_of = read(Path(settings.source)), places_in(settings.source)
    amending = {amendment.position for amendment in settings.amendments.values()}
    paths = (f"rules[{i}]" for i in range(len(data.get("rules", ()))) if i not in amending)
    return {
        _SETTINGS: (_lines({name: value for name, value in data.items() if name not in _OF_RULES}), settings.source),
        **{
            # The rule of the setting ``limits`` comes after those of ``rules``.
            rule.name or f"rule-{i + 1}": (_lines(_options(rule)), place_of(next(paths, "limits")))
            for i, rule in enumerate(settings.rules)
        },
        **{
            f"overrides {name}": (_lines(amendment.options), place_of(f"rules[{amendment.position}]"))
            for name, amendment in settings.amendments.items()
        },
    }


def _options(rule: Rule) -> dict[str, Any]:
    limits = rule.function or list(map(str, rule.quotas))
    return {"limits": limits, **{name: value for name, value in rule.set_options.items() if name != "name"}}


def _lines(options: Any) -> list[str]:
    """Return options as lines of TOML, without passwords."""
    shown = {name: redacted_url(value) if name in _URLS else value for name, value in options.items()}
    return [f"{name} = {toml(value if name != 'secret' else '(not shown)')}" for name, value in shown.items()]
