"""The parts that the limiters of Flask-Limiter and slowapi have in common, which have one ancestor."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from ...errors import ConfigError
from ...rules.rule import Rule
from .findings import Findings, FoundLimit, python
from .names import identity, unwrapped

_ALGORITHMS: Final = {"moving-window": "sliding-window-log", "sliding-window-counter": "sliding-window-counter"}
_SAME: Final = attrgetter("key", "name", "methods", "per_method", "cost", "exempt_when", "deduct_when", "scope")
_HANDWORK: Final = {"error_message": "write your own error handler", "on_breach": "write your own error handler"}


def add_limiter(findings: Findings, limiter: Any, default: Any, application: Any, scope: str) -> None:
    """Add the arguments of a limiter, and its default and application limits as rules."""
    strategy = getattr(limiter, "_strategy", None) or "fixed-window"
    findings.algorithm = _ALGORITHMS.get(strategy, "")
    if strategy == "fixed-window":
        findings.note(
            "windows slide here. For windows that begin at the full minute, hour or day, "
            'write algorithm = "fixed-window" in a rule'
        )
    _add_options(findings, limiter)
    note_handwork(findings, [limiter], "the limiter")
    for function in limiter._request_filters:
        name = findings.feature(function, "request_filter", '"yes" if {} else "no"')
        findings.settings.setdefault("lists", {}).setdefault("allow", {})[name] = ["yes"]
    for name, limits, key in (("default", default, [scope]), ("application", application, [])):
        for found in merged(map(read_limit, limits)):
            findings.defaults += [replace(found)] if name == "default" else []
            found.name = findings.rule_name(name)
            findings.add_rule(found, *key, where=f"{name}_limits")


def _add_options(findings: Findings, limiter: Any) -> None:
    if limiter._storage_options:
        options = ", ".join(limiter._storage_options)
        findings.problems.append(f"storage_options: {options}: write options of the store URL, such as ?prefix=shop:")
    if getattr(limiter, "_key_prefix", ""):
        findings.note(f"key_prefix: write ?prefix={limiter._key_prefix} in the store URL")
    if limiter._in_memory_fallback_enabled:  # it comes before swallow_errors
        findings.settings["on_store_error"] = "local"
    elif limiter._swallow_errors:
        findings.settings["on_store_error"] = "allow"
    if limiter._in_memory_fallback:
        findings.note("in_memory_fallback: without the store, each process allows its share of the limits themselves")
    if not limiter.enabled:
        findings.settings["enabled"] = False


def read_limit(limit: Any) -> FoundLimit:
    own = partial(_first, limit)
    scope = own("_LimitGroup__scope", "_Limit__scope", "scope")
    limits = own("limit_provider", "_LimitGroup__limit_provider", "limit")
    is_shared = getattr(limit, "shared", bool(scope))
    return FoundLimit(
        limits=limits if callable(limits) else str(limits),
        key=own("limit_by", "key_function", "key_func"),
        name=str(scope) if is_shared and isinstance(scope, str) else "",
        methods=tuple(limit.methods or ()),
        per_method=limit.per_method,
        cost=limit.cost or 1,
        exempt_when=limit.exempt_when,
        deduct_when=getattr(limit, "deduct_when", None),
        scope=scope if callable(scope) else None,
    )


def _first(thing: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(thing, name, None)) is not None), None)


def merged(found: Iterable[FoundLimit]) -> Iterator[FoundLimit]:
    """Yield limits that differ in their texts only as one, unless two of them have the same period."""
    for _, group in groupby(found, _SAME):
        limits = list(group)
        texts = [limit.limits for limit in limits]
        try:
            Rule(limits=texts)
        except (ConfigError, TypeError):
            yield from limits
        else:
            limits[0].limits = texts if len(texts) > 1 else texts[0]
            yield limits[0]


def decorators_of(
    findings: Findings, limits: Iterable[Any], *key: str, where: str, unrouted: bool = False
) -> list[str]:
    """Return the decorators of a function, without duplicates."""
    note_handwork(findings, limits, where)
    found = [replace(each, unrouted=unrouted and not each.name) for each in merged(map(read_limit, limits))]
    return list(dict.fromkeys(findings.decorator(each, *key, where=where) for each in found))


def exempt_from(findings: Findings, starts: Iterable[str], more: Iterable[str] = ()) -> list[str]:
    """Return the decorator that exempts from the rules whose names start so, and from more rules; none without any."""
    names = [rule["name"] for rule in findings.rules if rule["name"].startswith(tuple(starts))] + [*more]
    return [f"@exempt({', '.join(map(python, names))})"] if names else []


def note_handwork(findings: Findings, limits: Iterable[Any], where: str) -> None:
    for limit in limits:
        for name, text in _HANDWORK.items():
            if getattr(limit, name, None) is not None:
                findings.note(f"{where}: {name}: {text}, which finds the rule at error.verdict.rejected_by[0].rule")
        if getattr(limit, "meta_limits", None) or getattr(limit, "_meta_limits", None):
            findings.problems.append(f"{where}: meta_limits: write ban = {{...}} in the rules, which counts rejections")


def distinct(functions: Iterable[Any]) -> list[Any]:
    """Return the functions behind decorators, each once."""
    return list({identity(own): own for own in map(unwrapped, functions)}.values())


def check_names(findings: Findings, name: str, functions: Collection[Any], where: str) -> None:
    """Add a problem for functions that the other package has one name for."""
    if len(functions) > 1:
        findings.problems.append(
            f"{where}: {len(functions)} functions are {name}, and all their limits applied to each. Keep the decorators"
            " that you wrote on each"
        )
