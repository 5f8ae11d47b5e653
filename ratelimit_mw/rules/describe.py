"""Describe rules in words and as JSON, for all commands. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from ..keys.features import Features
from ..keys.networks import is_in
from ..quota import Quota
from .paths import pattern_matches
from .plan import CompiledRule

_SHOWN: Final = 3


def match_of(rule: CompiledRule) -> list[str]:
    """The requests that a rule applies to, one condition per line: "POST /login", "region DE or AT"."""
    match = rule.source.matches
    methods = "/".join(sorted(match.methods))
    lines = [" ".join(part for part in (methods, _either(match.paths)) if part)]
    lines += [f"host {_either(match.hosts)}"] if match.hosts else []
    lines += [f"{name} {_either(sorted(values))}" for name, values in match.features]
    lines += [f"ip {_either(map(str, match.networks))}"] if match.networks else []
    return [line for line in lines if line] or ["all"]


def mismatch(rule: CompiledRule, method: str, path: str, host: str, features: Features | None = None) -> str:
    """The first condition of a rule that a request does not meet; "" when it meets all.

    ``features`` is None when they are not known. Then the rule's conditions on features are not checked.
    """
    match = rule.source.matches
    if match.paths and not any(pattern_matches(pattern, path) for pattern in match.paths):
        return f"path: not {_either(match.paths)}"
    if not match.takes_method(method):
        return f"method: not {_either(sorted(match.methods))}" if match.methods else "method: OPTIONS is not limited"
    if not match.takes_host(host):
        return f"host: not {_either(match.hosts)}"
    if features is None:
        return ""
    if match.networks and not is_in(str(features.get("ip")), match.networks):
        return f"feature: ip is {features.get('ip')}, not in {_either(map(str, match.networks))}"
    for name, values in match.features:
        if str(features.get(name) or "") not in values:
            return f"feature: {name} is {features.get(name) or 'missing'}, not {_either(sorted(values))}"
    return ""


def replacing(overrides: Mapping[str, tuple[int, object]]) -> Iterator[str]:
    """A note for each rule of the settings that changes a decorator's rule, for a command without the application."""
    for name, (index, _) in overrides.items():
        yield f"rules[{index}] is not shown: it changes the rule {name!r} of a decorator. Use check --app"


def key_of(rule: CompiledRule) -> str:
    """The key, such as "endpoint + user|ip"."""
    return " + ".join("|".join(names) for names in rule.source.entries) or "one for all clients"


def limits_of(rule: CompiledRule) -> list[str]:
    """The limits, one per line, then the limits of single clients."""
    lines = [str(limit.quota) for limit in rule.limits]
    for name, table in rule.source.tables:
        lines += [f"{name or 'key'} {value}: {_quotas(quotas)}" for value, quotas in islice(table.items(), _SHOWN)]
        if len(table) > _SHOWN:
            lines.append(f"and {len(table) - _SHOWN} more")
    return lines


def algorithm_of(rule: CompiledRule) -> str:
    """The algorithm with its variant, such as "leaky-bucket (queue)"."""
    algorithm = rule.limits[0].algorithm
    return f"{algorithm.name} ({algorithm.variant})" if algorithm.variant else algorithm.name


def cost_of(rule: CompiledRule) -> str:
    """The cost, and the statuses for which it counts."""
    statuses = rule.source.statuses
    return str(rule.source.cost) if statuses is None else f"{rule.source.cost} if {_either(map(str, sorted(statuses)))}"


def as_json(rule: CompiledRule) -> dict[str, Any]:
    """A rule for programs. ``per_key`` and ``per`` are present only when the rule has such limits."""
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
