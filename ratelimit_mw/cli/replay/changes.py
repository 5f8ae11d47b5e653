"""Compares two settings files: the rules that were added, removed or changed, field by field, with their places."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...quota import format_duration, parse_duration, parse_quotas
from ...rules.rule import Rule
from ...settings import Settings
from ...settings.files import read
from ...settings.locate import places_in, steps_of
from ...stores import redacted_url
from ..toml import toml

_OF_RULES: Final = ("rules", "limits", "$schema")
_NOT_SHOWN: Final = "(not shown)"
_Fields = dict[str, Any]
_PlaceOf = Callable[[str], str]


class Change(NamedTuple):
    """One field that differs. ``old`` and ``new`` are TOML, None where the field, or its rule, is not there."""

    kind: str
    rule: str
    field: str
    old: str | None
    new: str | None
    place: str


class _Named(NamedTuple):
    """A rule, or the settings besides the rules, with its path in the file and its fields by path."""

    path: str
    fields: _Fields


def compare(old: Settings, new: Settings) -> list[Change]:
    """Return the changes from one settings file to another, in the order of the new one."""
    before, after = _named(old), _named(new)
    place_in_old, place_in_new = places_in(old.source), places_in(new.source)
    changes = []
    for name in (*after, *(name for name in before if name not in after)):
        if name not in after:
            changes.append(_whole("removed", name, place_in_old, before[name]))
        elif name not in before:
            changes.append(_whole("added", name, place_in_new, after[name]))
        else:
            changes += _fields_that_differ(name, before[name], after[name], place_in_old, place_in_new)
    return changes


def _whole(kind: str, name: str, place_of: _PlaceOf, rule: _Named) -> Change:
    """Return the change of a whole rule, with its limits."""
    limits = toml(rule.fields["limits"]) if "limits" in rule.fields else None
    old, new = (None, limits) if kind == "added" else (limits, None)
    return Change(kind, name, "", old, new, place_of(rule.path))


def _fields_that_differ(
    name: str, before: _Named, after: _Named, place_in_old: _PlaceOf, place_in_new: _PlaceOf
) -> Iterator[Change]:
    for field in dict.fromkeys((*after.fields, *before.fields)):
        old, new = before.fields.get(field), after.fields.get(field)
        if old != new:
            # A field that was removed is in the old file only.
            place_of, path = (place_in_old, before.path) if new is None else (place_in_new, after.path)
            place = place_of(f"{path}.{field}" if path else field)
            texts = [None if value is None else _text(field, value) for value in (old, new)]
            if texts[0] == texts[1]:  # the URLs of a store that differ in a password
                texts = [_NOT_SHOWN, _NOT_SHOWN]
            yield Change("changed", name, field, texts[0], texts[1], place)


def _text(field: str, value: Any) -> str:
    """Return a value as TOML, without passwords."""
    return _NOT_SHOWN if field == "secret" else redacted_url(value) if field == "store" else toml(value)


def _named(settings: Settings) -> dict[str, _Named]:
    """Return all rules by name, those that override a decorator's rule, and the other settings under an empty name."""
    data = read(Path(settings.source))
    amending = {amendment.position for amendment in settings.amendments.values()}
    positions = iter([i for i in range(len(data.get("rules", ()))) if i not in amending])
    rules = {rule.name or f"rule-{i + 1}": rule for i, rule in enumerate(settings.rules)}
    return {
        "": _Named("", _flat({name: value for name, value in data.items() if name not in _OF_RULES})),
        **{name: _Named(_path(next(positions, None)), _rule_fields(rule)) for name, rule in rules.items()},
        **{
            f"overrides {name}": _Named(f"rules[{amendment.position}]", _flat(amendment.options))
            for name, amendment in settings.amendments.items()
        },
    }


def _path(position: int | None) -> str:
    """Return the path of a rule: that of the setting ``limits`` is not among the rules."""
    return "limits" if position is None else f"rules[{position}]"


def _rule_fields(rule: Rule) -> _Fields:
    """Return the options of a rule, with one form for all spellings of the same value."""
    options = {"limits": rule.limits, **{name: value for name, value in rule.options.items() if name != "name"}}
    algorithm = options["algorithm"]
    options["algorithm"] = {"name": algorithm} if isinstance(algorithm, str) else algorithm
    return {field: _normal(str(steps_of(field)[0]), value) for field, value in _flat(options).items()}


def _normal(option: str, value: Any) -> Any:
    if option in ("limits", "per", "per_key", "schedule"):
        return [str(quota) for quota in parse_quotas(value)]
    if option in ("wait", "limits_ttl", "hold_at_most") or (option == "ban" and isinstance(value, str)):
        return format_duration(parse_duration(value))
    if option == "key":
        return [value] if isinstance(value, str) else value
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _flat(table: Mapping[str, Any], path: str = "") -> _Fields:
    """Return the values of nested tables by their paths, without those that are not set."""
    fields: _Fields = {}
    for name, value in table.items():
        step = str(name) if str(name).isidentifier() else f"[{str(name)!r}]"
        inner = f"{path}{'.' if path and step[0] != '[' else ''}{step}"
        if isinstance(value, Mapping):
            fields |= _flat(value, inner)
        elif value is not None:
            fields[inner] = value
    return fields
