"""Rules in words: the one way in which commands name what a rule looks at, counts and allows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from ..quota import Quota
from .plan import CompiledRule

__all__ = ["algorithm_of", "as_json", "cost_of", "key_of", "limits_of", "match_of", "replacing"]

_SHOWN: Final = 3


def match_of(rule: CompiledRule) -> list[str]:
    """Which requests, a condition on a line: "POST /login", "host example.com", "region DE or AT"."""
    match = rule.source.matches
    methods = "/".join(sorted(match.methods))
    lines = [" ".join(part for part in (methods, _either(match.paths)) if part)]
    lines += [f"host {_either(match.hosts)}"] if match.hosts else []
    lines += [f"{name} {_either(sorted(values))}" for name, values in match.features]
    lines += [f"ip {_either(map(str, match.networks))}"] if match.networks else []
    return [line for line in lines if line] or ["all"]


def replacing(overrides: Mapping[str, tuple[int, object]]) -> Iterator[str]:
    """Settings' rules that a file by itself says little of: by name, the index and the fields."""
    for name, (index, _) in overrides.items():
        yield f"rules[{index}] is left out here: it changes the rule {name!r} of a decorator; see check --app"


def key_of(rule: CompiledRule) -> str:
    """What is counted by, such as "endpoint + user|ip"."""
    return " + ".join("|".join(names) for names in rule.source.entries) or "one for everybody"


def limits_of(rule: CompiledRule) -> list[str]:
    """One limit on a line, then those that some clients have instead."""
    lines = [str(limit.quota) for limit in rule.limits]
    for name, table in rule.source.tables:
        lines += [f"{name or 'key'} {value}: {_quotas(quotas)}" for value, quotas in islice(table.items(), _SHOWN)]
        if len(table) > _SHOWN:
            lines.append(f"and {len(table) - _SHOWN} more")
    return lines


def algorithm_of(rule: CompiledRule) -> str:
    algorithm = rule.limits[0].algorithm
    return f"{algorithm.name} ({algorithm.variant})" if algorithm.variant else algorithm.name


def cost_of(rule: CompiledRule) -> str:
    """The cost, and when it counts."""
    statuses = rule.source.statuses
    return str(rule.source.cost) if statuses is None else f"{rule.source.cost} if {_either(map(str, sorted(statuses)))}"


def as_json(rule: CompiledRule) -> dict[str, Any]:
    """A rule as a program reads it. ``per_key`` and ``per`` are only there when there are such limits."""
    match = rule.source.matches
    tables = {name: {value: list(map(str, quotas)) for value, quotas in t.items()} for name, t in rule.source.tables}
    per_key = tables.pop("", None)
    return {
        "name": rule.name,
        "match": {
            "path": list(match.paths),
            "methods": sorted(match.methods),
            "host": list(match.hosts),
            **{name: sorted(values) for name, values in match.features},
            **({"ip": [str(network) for network in match.networks]} if match.networks else {}),
        },
        "key": ["|".join(names) for names in rule.source.entries],
        "limits": [str(limit.quota) for limit in rule.limits],
        **({"per_key": per_key} if per_key else {}),
        **({"per": tables} if tables else {}),
        "algorithm": algorithm_of(rule),
        "mode": rule.source.mode,
        "cost": rule.source.cost,
        "when_missing": rule.source.when_missing,
        "count_when": None if rule.source.statuses is None else {"status": sorted(rule.source.statuses)},
    }


def _either(items: Iterable[str]) -> str:
    return " or ".join(items)


def _quotas(quotas: Iterable[Quota]) -> str:
    return "; ".join(map(str, quotas))
