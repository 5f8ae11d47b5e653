"""Read the limiters of Flask-Limiter, and the views and blueprints of an application of Flask."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..output import Failure
from .findings import Findings
from .limiters import add_limiter, check_names, decorators_of, distinct, exempt_from, note_handwork, read_limit
from .names import attribute_of, name_of_function, place_of, unwrapped, word


def read(app: Any, name: str) -> Findings:
    """Return the parts of an application of Flask."""
    limiters = list(getattr(app, "extensions", {}).get("limiter", ()))
    if not limiters:
        raise Failure(f"{name}: no Limiter of Flask-Limiter, or it is not enabled. Name the application that has it")
    findings = Findings(name, "{}()")
    if len(limiters) > 1:
        findings.problems.append("several limiters: here, the rules and exemptions of all are in one RateLimiter")
    for limiter in limiters:
        manager = limiter.limit_manager
        findings.add_store(limiter._storage_uri or app.config.get("RATELIMIT_STORAGE_URI"))
        add_limiter(findings, limiter, manager._default_limits, manager._application_limits, "endpoint")
        if not limiter._request_identifier.__module__.startswith("flask_limiter"):
            findings.problems.append("request_identifier: write a feature in the keys, instead of endpoint")
        _Application(findings, app, manager).add()
    findings.code = ["from ratelimit_mw.flask import RateLimiter, exempt, limit", "RateLimiter(app, {})"]
    return findings


class _Application:
    """The views and blueprints of an application, with the limits of one limiter."""

    def __init__(self, findings: Findings, app: Any, manager: Any) -> None:
        from flask_limiter.util import get_qualified_name

        self._findings = findings
        self._app = app
        self._manager = manager
        self._endpoints: dict[str, list[str]] = {}
        """The endpoints of each view, by the name that Flask-Limiter has for it."""
        for endpoint, view in app.view_functions.items():
            self._endpoints.setdefault(get_qualified_name(view), []).append(endpoint)
        self._rules: dict[str, list[str]] = {}
        """The names of the rules of each blueprint whose limits do not apply to all its views."""
        self._defaults: dict[str, list[str]] = {}
        """The names of such rules that are default limits for some methods."""
        self._blueprints: dict[str, str] = {}
        """The code of each blueprint."""

    def add(self) -> None:
        manager = self._manager
        views = {name: self._limits_of(name) for name in {**manager._route_exemptions, **manager._decorated_limits}}
        apart = {name for name, limits in views.items() if name in manager._route_exemptions or limits}
        for blueprint in {part for name in apart for part in self._blueprints_of(self._endpoints.get(name, ()))}:
            self._rules[blueprint] = []
        for blueprint in dict.fromkeys([*manager._blueprint_exemptions, *manager._blueprint_limits]):
            self._add_blueprint(blueprint)
        for name, limits in views.items():
            self._add_view(name, limits)
        self._findings.shared.update(self._blueprints)

    def _limits_of(self, name: str) -> list[Any]:
        """Return the limits of a view. Those of an exempt view do not apply."""
        return [] if name in self._manager._route_exemptions else list(self._manager._decorated_limits.get(name, ()))

    def _blueprints_of(self, endpoints: Iterable[str]) -> list[str]:
        """Return the blueprints with limits around some endpoints."""
        parts = [part for endpoint in endpoints for part in endpoint.split(".")[:-1]]
        return [part for part in dict.fromkeys(parts) if self._manager._blueprint_limits.get(part)]

    def _methods_of(self, endpoints: Iterable[str]) -> set[str]:
        rules = [rule for endpoint in endpoints for rule in self._app.url_map.iter_rules(endpoint)]
        return {method for rule in rules for method in rule.methods or ()} - {"OPTIONS"}

    def _add_view(self, name: str, limits: list[Any]) -> None:
        endpoints = self._endpoints.get(name, [])
        functions = distinct(self._app.view_functions[endpoint] for endpoint in endpoints) or [_function_of(name)]
        for function in functions:
            where = place_of(function or name)
            decorators = self._of_view(name, limits, where) if endpoints else self._of_helper(function, limits, where)
            self._findings.add_view(name_of_function(function or name), where, decorators)
        where = place_of(functions[0] or name)
        check_names(self._findings, name, functions, where)
        if name in self._manager._route_exemptions:
            if not endpoints:
                self._findings.note(f"{where}: exempt has no effect in Flask-Limiter, because this is no view")
            elif self._manager._decorated_limits.get(name):
                self._findings.note(f"{where}: the limits are left out, because the view is exempt")

    def _of_view(self, name: str, limits: list[Any], where: str) -> list[str]:
        """Return the decorators of a view. Its limits replace those of its blueprints, as far as they override."""
        endpoints = self._endpoints[name]
        blueprints = self._blueprints_of(endpoints)
        defaults = [rule for blueprint in blueprints for rule in self._defaults.get(blueprint, ())]
        if name in self._manager._route_exemptions:
            return self._exempt(self._manager._route_exemptions[name], defaults, around=bool(blueprints))
        key = ["endpoint"] if len(endpoints) > 1 else []
        if _overrides(limits):
            around = [rule for blueprint in blueprints for rule in self._rules.get(blueprint, ())]
            first = self._in_place_of_defaults(limits, endpoints, around, *key, where=where)
        else:  # a limit for all methods leaves none to the default limits. The innermost exemption counts
            has_all = bool(defaults) and not any(limit.methods for limit in limits)
            first = exempt_from(self._findings, ["default"], defaults) if has_all else []
        return first + decorators_of(self._findings, limits, *key, where=where)

    def _of_helper(self, function: Any, limits: list[Any], where: str) -> list[str]:
        """Return the decorators of a method of a class of views, or of a function that views call."""
        endpoints = self._endpoints_of_method(function)
        key = ["endpoint"] if len(endpoints) != 1 else []
        if endpoints:
            first = exempt_from(self._findings, ["default"]) if _overrides(limits) else []
            return first + decorators_of(self._findings, limits, *key, where=where)
        if limits and self._findings.defaults:
            self._findings.note(
                f"{where}: a view that calls this has no default limits after its first call in Flask-Limiter. Here, it"
                ' has them, unless you write @exempt("default") on the view'
            )
        return decorators_of(self._findings, limits, *key, where=where, unrouted=True)

    def _exempt(self, scope: Any, defaults: list[str], *, around: bool) -> list[str]:
        """Return the exemption from the default limits, those of the application, or both: not from blueprints'."""
        words = _words_of(scope)
        if len(words) > 1 and not around:
            return ["@exempt"]
        return exempt_from(self._findings, words, defaults if "default" in words else ())

    def _in_place_of_defaults(
        self, limits: list[Any], endpoints: list[str], more: list[str], *key: str, where: str, blueprint: str = ""
    ) -> list[str]:
        """Return the exemption from default limits, which stay for the methods that no limit names."""
        if not _overrides(limits):
            return []
        findings = self._findings
        decorators = exempt_from(findings, ["default"], more)
        left = _without_limits(limits, self._methods_of(endpoints))
        for default in findings.defaults if left else ():
            of_default = {method.upper() for method in default.methods}
            if both := sorted(left & of_default if of_default else left):
                found = replace(default, methods=both, name=self._name_in(blueprint, self._defaults))
                decorators.append(f"@{findings.limit_code(found, *key, where=where)}")
        return decorators

    def _name_in(self, blueprint: str, *lists: dict[str, list[str]]) -> str:
        """Return a name for a limit of a blueprint, where a view needs one to be exempt from it; else ""."""
        if blueprint not in self._rules:
            return ""
        name = self._findings.rule_name(blueprint)
        for names in (self._rules, *lists):
            names.setdefault(blueprint, []).append(name)
        return name

    def _endpoints_of_method(self, function: Any) -> list[str]:
        """Return the endpoints of the classes that have a function as a method."""
        classes = {name: getattr(view, "view_class", None) for name, view in self._app.view_functions.items()}
        return [name for name, cls in classes.items() if cls and function is not None and function in _methods(cls)]

    def _add_blueprint(self, name: str) -> None:
        manager, findings, where = self._manager, self._findings, f"blueprint {name}"
        limits, exempt = list(manager._blueprint_limits.get(name, ())), manager._blueprint_exemptions.get(name)
        blueprint = next((each for each in self._app.blueprints.values() if each.name == name), None)
        code = findings.names.imported(blueprint, where, word(name))
        endpoints = [endpoint for endpoint in self._app.view_functions if name in endpoint.split(".")[:-1]]
        if exempt is None:
            decorators = self._in_place_of_defaults(limits, endpoints, [], "endpoint", where=where, blueprint=name)
        else:
            words = dict.fromkeys([*(["default"] if _overrides(limits) else []), *_words_of(exempt)])
            decorators = ["@exempt"] if len(words) > 1 and not limits else exempt_from(findings, words)
        for found in map(read_limit, limits):
            if found.name:
                variable, rule = findings.share(found, where)
                decorators.append(f"@{variable}")
                self._rules.setdefault(name, []).append(rule)
            else:
                found.name = self._name_in(name)
                decorators.append(f"@{findings.limit_code(found, 'endpoint', where=where)}")
        for decorator in decorators:
            code = f"{decorator[1:]}({code})"
        note_handwork(findings, limits, where)
        if self._is_nested(name, has_limits=bool(limits)):
            findings.problems.append(
                f"{where}: it is nested. Here, limits of nested blueprints add up, and exempt(...) includes the"
                " blueprints inside. Write exempt(...) with the names of the limits around it where you need less"
            )
        self._blueprints[where] = code

    def _is_nested(self, name: str, *, has_limits: bool) -> bool:
        """Return whether exemptions of a blueprint, or limits of several, reach blueprints around it or inside."""
        manager = self._manager
        nests = [full.split(".") for full in self._app.blueprints if "." in full and name in full.split(".")]
        others = {part for parts in nests for part in parts} - {name}
        is_shared = has_limits and not others.isdisjoint(manager._blueprint_limits)
        return bool(nests) and (name in manager._blueprint_exemptions or is_shared)


def _overrides(limits: Iterable[Any]) -> bool:
    return any(limit.override_defaults for limit in limits)


def _without_limits(limits: list[Any], methods: set[str]) -> set[str]:
    """Return the methods of a route that none of its limits names. HEAD is served with GET."""
    if not all(limit.methods for limit in limits):
        return set()
    named = {method.upper() for limit in limits for method in limit.methods}
    left = methods - named - ({"HEAD"} if "GET" in named else set())
    return left - {"HEAD"} if "GET" in left else left


def _methods(cls: Any) -> list[Any]:
    return [unwrapped(value) for base in cls.__mro__ for value in vars(base).values() if callable(value)]


def _words_of(scope: Any) -> list[str]:
    return [word for word in ("default", "application") if word.upper() in str(scope)]


def _function_of(name: str) -> Any:
    """Return the function of a name such as "shop.views.search.Items.search", which is Items.search of shop.views."""
    parts = name.split(".")
    ends = range(len(parts) - 2, 0, -1)
    found = (attribute_of(".".join(parts[:end]), ".".join(parts[end + 1 :])) for end in ends)
    return unwrapped(next((each for each in found if each is not None), None))
