"""Read the decorators and the settings of django-ratelimit."""

import re
from collections.abc import Iterator
from importlib import import_module
from types import FunctionType
from typing import Any, Final

from .calls import find_checks
from .findings import INSTEAD_OF_FUNCTION, Findings, FoundLimit
from .names import name_of_function, place_of

_FILE: Final = "django_ratelimit/decorators.py"
_MOST_PARTS: Final = 2000


def read(_app: Any, name: str) -> Findings:
    """Return the parts of the project whose handler is given."""
    from django.conf import settings
    from django.urls import get_resolver

    findings = Findings(name, "{}(None, request)")
    _add_settings(findings, settings)
    targets = [(target, where, _limits_of(part)) for target, where, part in _targets(get_resolver())]
    checks = list(find_checks())
    groups = [limit["group"] for _, _, limits in targets for limit in limits]
    groups += [check.get("group") for check in checks]
    for view, where, limits in targets:
        if functions := [limit["fn"] for limit in limits if limit["fn"] is not None]:
            view, where = name_of_function(functions[-1]), place_of(functions[-1])
        decorators = [_decorator(findings, limit, groups, where) for limit in limits]
        findings.add_view(view, where, list(filter(None, decorators)))
    for check in checks:
        _add_check(findings, check)
    findings.code = [
        "# MIDDLEWARE, after AuthenticationMiddleware:",
        '"ratelimit_mw.django.RateLimitMiddleware"',
        "# in the settings:",
        "RATELIMIT_MW = dict({})",
        "# in the modules of the views:",
        "from ratelimit_mw.django import limit",
    ]
    return findings


def _targets(resolver: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the name, the place and the object of each view once: a function, or a method of a class."""
    seen: set[int] = set()
    for view in _callbacks(resolver):
        cls: Any = getattr(view, "view_class", None) or getattr(view, "cls", None)
        parts = {name: part for base in reversed(getattr(cls, "__mro__", ())) for name, part in vars(base).items()}
        if id(cls or view) in seen:
            continue
        seen.add(id(cls or view))
        yield name_of_function(view), place_of(view), view
        for name, part in parts.items():
            if isinstance(part, FunctionType):
                yield f"{cls.__qualname__}.{name}", place_of(cls), part


def _callbacks(resolver: Any) -> Iterator[Any]:
    for pattern in resolver.url_patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _callbacks(pattern)
        else:
            yield pattern.callback


def _limits_of(view: Any) -> list[dict[str, Any]]:
    """Return the arguments of each ``@ratelimit`` on a view or on a method, the outermost first."""
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    left = [view]
    while left and len(seen) < _MOST_PARTS:
        thing = left.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        cells = _cells_of(thing)
        if cells.keys() >= {"rate", "group"} and thing.__code__.co_filename.replace("\\", "/").endswith(_FILE):
            found.append({name: cells.get(name) for name in ("group", "key", "rate", "method", "block", "fn")})
        left += thing if isinstance(thing, tuple | list) else [getattr(thing, "__wrapped__", None), *cells.values()]
    return found


def _cells_of(thing: Any) -> dict[str, Any]:
    """Return the variables of a function that it has from the function around it."""
    if not isinstance(thing, FunctionType):
        return {}
    return dict(zip(thing.__code__.co_freevars, map(_content, thing.__closure__ or ()), strict=True))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _decorator(findings: Findings, limit: dict[str, Any], groups: list[Any], where: str) -> str:
    """Return the code of one decorator, "" for a rate of None, which is no limit."""
    rate, group, method = limit["rate"], limit["group"], limit["method"]
    if rate is None:
        return ""
    if isinstance(rate, str) and "." in rate.partition("/")[0]:  # the path of a function
        findings.problems.append(f"{where}: the function {rate} returns the rate. {INSTEAD_OF_FUNCTION}")
    return findings.decorator(
        FoundLimit(
            limits=_limits(rate),
            key=_key(findings, limit["key"], where),
            name=group if group and groups.count(group) > 1 else "",
            methods=_methods(method),
            mode="enforce" if limit["block"] else "shadow",
        ),
        where=where,
    )


def _methods(method: Any) -> list[str]:
    return [method] if isinstance(method, str) else list(filter(None, method or ()))


def _limits(rate: Any) -> Any:
    """Return the amount and the seconds of a rate, as django-ratelimit reads it: "5/month" is 5 per minute there."""
    core: Any = import_module("django_ratelimit.core")
    return core._split_rate(rate) if isinstance(rate, str) and core.rate_re.match(rate) else rate


def _add_check(findings: Findings, arguments: dict[str, Any]) -> None:
    """Add the rule of a call of ``is_ratelimited`` in a view, as far as its arguments are written there."""
    where: str = arguments["where"]
    name, rate, method = (arguments.get(part) for part in ("group", "rate", "method"))
    if computed := [part for part in arguments["computed"] if part in ("group", "key", "rate", "method")]:
        findings.problems.append(f"{where}: is_ratelimited: write its rule by hand: {', '.join(computed)} is computed")
    elif name and findings.is_shared(name):
        findings.problems.append(
            f"{where}: is_ratelimited: the decorator with the group {name!r} has the same count. Write check(request,"
            f' "{name}") instead of both'
        )
    elif name and rate:
        key = _key(findings, arguments.get("key", "ip"), where)
        found = FoundLimit(limits=_limits(rate), key=key, name=name, methods=_methods(method), match={"view": ""})
        findings.add_rule(found, where=where)
        *others, rule = findings.rules
        if same := [other for other in others if other["name"] == name]:
            findings.rules.pop()
            if rule not in same:
                findings.problems.append(f"{where}: is_ratelimited: another call of {name!r} differs. Write two rules")


def _key(findings: Findings, key: Any, where: str) -> Any:
    """Return a key part, or the function of the key. A dotted path is a function."""
    if isinstance(key, str) and "." in key and ":" not in key:
        from django.utils.module_loading import import_string

        key = import_string(key)
    if not isinstance(key, str):
        findings.note("functions of keys receive None instead of the group")
        return key
    if key.startswith("header:"):
        key = key.replace("_", "-").lower()
    if key == "user" or ":" in key:
        findings.note(
            f"{where}: {key}: requests without it are not limited here, and shared one count before. Write"
            f' "{key}|ip", or when_missing="reject"'
        )
    return key


def _add_settings(findings: Findings, settings: Any) -> None:
    cache = getattr(settings, "CACHES", {}).get(getattr(settings, "RATELIMIT_USE_CACHE", "default"), {})
    backend, location = cache.get("BACKEND", ""), cache.get("LOCATION", "")
    servers = re.split(r"[;,]", location) if isinstance(location, str) else list(location)
    if "redis" in backend.lower():
        findings.add_store("".join(servers[:1]))  # the first one receives all writes
    elif "memcached" in backend.lower():
        findings.add_store(f"memcached://{','.join(servers)}")
    elif backend:
        findings.note(
            f"the cache {backend} is no store. With several processes, set store to redis://... or lmdb:///..."
        )
    if not getattr(settings, "RATELIMIT_ENABLE", True):
        findings.settings["enabled"] = False
    if getattr(settings, "RATELIMIT_FAIL_OPEN", False):
        findings.settings["on_store_error"] = "allow"
    if (bits := getattr(settings, "RATELIMIT_IPV6_MASK", 64)) != 64:
        findings.settings["ipv6_prefix"] = bits
    for name, text in {
        "RATELIMIT_IP_META_KEY": "set trusted_proxies to the addresses of your proxies",
        "RATELIMIT_VIEW": "set rejection in RATELIMIT_MW to a function of the request and the verdict",
        "RATELIMIT_CACHE_PREFIX": "write ?prefix= in the store URL",
        "RATELIMIT_IPV4_MASK": "write the width in the key: ip/24",
    }.items():
        if hasattr(settings, name):
            findings.note(f"{name}: {text}")
    findings.note("a rejected client receives 429. rejection in RATELIMIT_MW may return a 403")
