"""Compares two settings files: the rules that were added, removed or changed, field by field, with their places."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...quota import format_duration, parse_duration, parse_quotas
from ...rules.places import places_in, steps_of
from ...rules.rule import Rule
from ...settings import Settings
from ...settings.files import read
from ...stores.url import redacted_url
from ..toml import toml

_OF_RULES: Final = ("rules", "limits", "$schema")
_NOT_SHOWN: Final = "(not shown)"
_Fields = dict[str, Any]


class Change(NamedTuple):
    """One field that differs. ``old`` and ``new`` are TOML, None where the field, or its rule, is not there."""

    kind: str
    rule: str
    field: str
    old: str | None
    new: str | None
    place: str


class _Named(NamedTuple):
    """A rule, or the settings besides the rules: its fields by path, and the place of each; "" is that of the rule."""

    fields: _Fields
    place_of: Callable[[str], str]


def changes_between(old: Settings, new: Settings) -> list[Change]:
    """Return the changes from one settings file to another, in the order of the new one."""
    before, after = _named(old), _named(new)
    changes = []
    for name in (*after, *(name for name in before if name not in after)):
        if name not in after:
            changes.append(Change("removed", name, "", _limits(before[name]), None, before[name].place_of("")))
        elif name not in before:
            changes.append(Change("added", name, "", None, _limits(after[name]), after[name].place_of("")))
        else:
            changes += _fields_that_differ(name, before[name], after[name])
    return changes


def _limits(rule: _Named) -> str | None:
    return toml(rule.fields["limits"]) if "limits" in rule.fields else None


def _fields_that_differ(name: str, before: _Named, after: _Named) -> Iterator[Change]:
    for field in dict.fromkeys((*after.fields, *before.fields)):
        old, new = before.fields.get(field), after.fields.get(field)
        if old != new:
            place = (before if new is None else after).place_of(field)  # a removed field is in the old file only
            before_text, after_text = (None if value is None else _text(field, value) for value in (old, new))
            if before_text == after_text:  # the URLs of a store that differ in a password
                before_text = after_text = _NOT_SHOWN
            yield Change("changed", name, field, before_text, after_text, place)


def _text(field: str, value: Any) -> str:
    """Return a value as TOML, without passwords."""
    return _NOT_SHOWN if field == "secret" else redacted_url(value) if field == "store" else toml(value)


def _named(settings: Settings) -> dict[str, _Named]:
    """Return all rules by name, those that override a decorator's rule, and the other settings under an empty name."""
    data, place_of = read(Path(settings.source)), places_in(settings.source)

    def named(path: str, fields: _Fields) -> _Named:
        return _Named(fields, lambda field: place_of(".".join(filter(None, (path, field)))))

    amending = {amendment.position for amendment in settings.amendments.values()}
    paths = (f"rules[{i}]" for i in range(len(data.get("rules", ()))) if i not in amending)
    return {
        "": named("", _flat({name: value for name, value in data.items() if name not in _OF_RULES})),
        **{
            # The rule of the setting ``limits`` comes after those of ``rules``.
            rule.name or f"rule-{i + 1}": named(next(paths, "limits"), _rule_fields(rule))
            for i, rule in enumerate(settings.rules)
        },
        **{
            f"overrides {name}": named(f"rules[{amendment.position}]", _flat(amendment.options))
            for name, amendment in settings.amendments.items()
        },
    }


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
