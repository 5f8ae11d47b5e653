"""Read the limiter of Flask-Limiter or slowapi, which have one ancestor and so the same parts."""

import re
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from ...errors import ConfigError
from ...rules.rule import Rule
from ..output import Failure
from .findings import Findings, FoundLimit, name_of_function, place_of, python

_ALGORITHMS: Final = {"moving-window": "sliding-window-log", "sliding-window-counter": "sliding-window-counter"}
_WORDS: Final = re.compile(r"\W+")
_SAME: Final = attrgetter("key", "name", "methods", "per_method", "cost", "exempt_when", "deduct_when")
_HANDWORK: Final = {"error_message": "write your own error handler", "on_breach": "write your own error handler"}


def read_flask_limiter(app: Any, name: str) -> Findings:
    """Return the parts of an application of Flask."""
    from flask_limiter.util import get_qualified_name

    limiters = list(getattr(app, "extensions", {}).get("limiter", ()))
    if not limiters:
        raise Failure(f"{name}: no Limiter of Flask-Limiter, or it is not enabled. Name the application that has it")
    findings = Findings("{}()")
    for limiter in limiters:
        manager = limiter.limit_manager
        findings.add_store(app.config.get("RATELIMIT_STORAGE_URI") or limiter._storage_uri)
        _add_limiter(findings, limiter, manager._default_limits, manager._application_limits, "endpoint")
        exempt = {name: _exemption(scope) for name, scope in manager._route_exemptions.items()}
        views = {get_qualified_name(view): view for view in app.view_functions.values()}
        _add_views(findings, manager._decorated_limits, exempt, views)
        _add_blueprints(findings, manager)
    middleware = "RateLimiter(app, {})"
    findings.code = ["from ratelimit_mw.flask import RateLimiter, exempt, limit", middleware]
    return findings


def read_slowapi(app: Any, name: str) -> Findings:
    """Return the parts of an application of Starlette or FastAPI."""
    limiter = getattr(getattr(app, "state", None), "limiter", None)
    if limiter is None or not hasattr(limiter, "_route_limits"):
        raise Failure(
            f"{name}: no Limiter of slowapi at app.state.limiter. Name the application that has it. If the start sets"
            " it, name a function that does the same and returns the application: shop:create()"
        )
    findings = Findings("{}(request)")
    style = "endpoint" if limiter._key_style == "endpoint" else "path"
    findings.add_store(limiter._storage_uri or limiter.get_app_config("RATELIMIT_STORAGE_URL", None))
    _add_limiter(findings, limiter, limiter._default_limits, limiter._application_limits, style)
    limits = {
        name: [*limiter._route_limits.get(name, ()), *limiter._dynamic_route_limits.get(name, ())]
        for name in {**limiter._route_limits, **limiter._dynamic_route_limits}
    }
    _add_views(findings, limits, dict.fromkeys(sorted(limiter._exempt_routes), "@exempt"), {})
    package = "fastapi" if any(cls.__module__.startswith("fastapi.") for cls in type(app).__mro__) else "starlette"
    findings.code = [
        f"from ratelimit_mw.{package} import RateLimitMiddleware, exempt, limit",
        "app.add_middleware(RateLimitMiddleware, {})",
    ]
    findings.note("the views need no request and no response for the limits. Remove those that they do not use")
    return findings


def _add_limiter(findings: Findings, limiter: Any, default: Any, application: Any, scope: str) -> None:
    """Add the arguments of a limiter, and its default and application limits as rules."""
    strategy = getattr(limiter, "_strategy", None) or "fixed-window"
    findings.algorithm = _ALGORITHMS.get(strategy, "")
    if strategy == "fixed-window":
        findings.note('windows slide here. algorithm = "fixed-window" in a rule keeps those of the clock')
    if limiter._storage_options:
        options = ", ".join(limiter._storage_options)
        findings.problems.append(f"storage_options: {options}: write options of the store URL, such as ?prefix=shop:")
    if getattr(limiter, "_key_prefix", ""):
        findings.note(f"key_prefix: write ?prefix={limiter._key_prefix} in the store URL")
    if limiter._swallow_errors:
        findings.settings["on_store_error"] = "allow"
    if not limiter.enabled:
        findings.settings["enabled"] = False
    _note_handwork(findings, [limiter], "the limiter")
    for function in limiter._request_filters:
        name = findings.feature(function, "request_filter", '"yes" if {} else "no"')
        findings.settings.setdefault("lists", {}).setdefault("allow", {})[name] = ["yes"]
    for name, limits, key in (("default", default, [scope]), ("application", application, [])):
        for number, found in enumerate(_merged(map(_read_limit, limits))):
            found.name = name if not number else f"{name}-{number + 1}"
            findings.add_rule(found, *key, where=f"{name}_limits")


def _read_limit(limit: Any) -> FoundLimit:
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
    )


def _first(thing: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(thing, name, None)) is not None), None)


def _merged(found: Iterable[FoundLimit]) -> Iterator[FoundLimit]:
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


def _add_views(findings: Findings, limits: Any, exempt: dict[str, str], views: dict[str, Any]) -> None:
    """Add the decorators of each function, by its qualified name."""
    exempt_default = _exempt_from(findings, "default")
    for name in {**exempt, **limits}:
        view, found = views.get(name) or _view_of(name), list(limits.get(name, ()))
        where = place_of(view)
        decorators = [exempt[name]] if name in exempt else []
        if exempt_default and not decorators and any(limit.override_defaults for limit in found):
            decorators = [exempt_default]
        decorators += [findings.decorator(each, where=where) for each in _merged(map(_read_limit, found))]
        _note_handwork(findings, found, where)
        findings.add_view(name_of_function(view), where, decorators)


def _exempt_from(findings: Findings, *starts: str) -> str:
    """Return the decorator that exempts from the rules whose names start so, "" without them."""
    names = [rule["name"] for rule in findings.rules if rule["name"].startswith(starts)]
    return f"@exempt({', '.join(map(python, names))})" if names else ""


def _note_handwork(findings: Findings, limits: Iterable[Any], where: str) -> None:
    for limit in limits:
        for name, text in _HANDWORK.items():
            if getattr(limit, name, None) is not None:
                findings.note(f"{where}: {name}: {text}, which finds the rule at error.verdict.rejected_by[0].rule")
        if getattr(limit, "meta_limits", None) or getattr(limit, "_meta_limits", None):
            findings.problems.append(f"{where}: meta_limits: there is no replacement")


def _add_blueprints(findings: Findings, manager: Any) -> None:
    exempt = manager._blueprint_exemptions
    for name in {**exempt, **manager._blueprint_limits}:
        limits = list(manager._blueprint_limits.get(name, ()))
        code = _WORDS.sub("_", name)
        words = ["default"] if any(limit.override_defaults for limit in limits) else []
        words += _words_of(exempt[name]) if name in exempt else []
        is_exempt = "@exempt" if len(words) > 1 and not limits else _exempt_from(findings, *words)
        if is_exempt:
            code = f"{is_exempt[1:]}({code})"
        if "ANCESTORS" in str(exempt.get(name)):
            findings.problems.append(f"blueprint {name}: add the names of the limits around it to exempt(...)")
        for limit in limits:
            code = f"{findings.decorator(_read_limit(limit), 'endpoint', where=name)[1:]}({code})"
        findings.shared[f"blueprint {name}"] = code


def _exemption(scope: Any) -> str:
    """Return ``@exempt`` for a flag of ``ExemptionScope``: the default limits, those of the application, or both."""
    words = _words_of(scope)
    return f"@exempt({python(words[0])})" if len(words) == 1 else "@exempt"


def _words_of(scope: Any) -> list[str]:
    return [word for word in ("default", "application") if word.upper() in str(scope)]


def _view_of(name: str) -> Any:
    """Return the function of a qualified name such as "shop.views.search"; the name where it cannot be found."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        if module := sys.modules.get(".".join(parts[:end])):
            value: Any = module
            for part in parts[end:]:
                value = getattr(value, part, None)
            return value or name
    return name
