"""The limits of a Django project: the routes, plans and rejections of its requests, without I/O of its own."""

from __future__ import annotations

import logging
import threading
from functools import lru_cache
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import get_resolver

from ..errors import ConfigError
from ..http.limiter import HttpLimiter, plan_without
from ..http.rejection import Rejection
from ..http.route_checks import check_parameters
from ..rules.names import class_behind
from ..rules.plan import Plan
from ..rules.ruleset import RuleSet
from .admission import DjangoAdmission
from .request import SCOPE, DjangoRequest
from .routes import URLRoutes
from .views import scopes_of

_log: Final = logging.getLogger("ratelimit_mw")


class ProjectLimits:
    """The limits of a project, for all its URLconfs."""

    def __init__(self, limits: HttpLimiter, gives_user: bool, owned: bool) -> None:
        self.limits = limits
        self.owned = owned
        self.gives_user = gives_user
        self._routes: WeakKeyDictionary[Any, URLRoutes] = WeakKeyDictionary()
        self._reading = threading.Lock()
        self.differences = 0
        """How often Django chose another route than this package's index of its routes."""

    @property
    def middleware_needs(self) -> set[str]:
        """The features that the middleware reads. Throttles read those of their own rules."""
        rules, scoped = self.limits.rules, _RuleFacts(self.limits.rules).scoped
        return {*rules.lists.needs, *(name for r in rules.rules if r.name not in scoped for name in r.source.needs)}

    def routes(self, urlconf: Any = None) -> URLRoutes:
        """Return the routes of a URLconf, by default the project's. Raises ``ConfigError`` for invalid marks."""
        resolver = get_resolver(urlconf)
        routes = self._routes.get(resolver)
        if routes is None:
            with self._reading:
                routes = self._routes.get(resolver) or self._read(resolver)
        return routes

    def _read(self, resolver: Any) -> URLRoutes:
        routes = URLRoutes(resolver)
        self.limits.adopt(routes.views)
        check_parameters(routes.all, self.limits.rules, resolver is get_resolver())
        for route in routes.all:
            for scope in scopes_of(route.callback):
                self.rules_of(scope, class_behind(route.callback))
        self._routes[resolver] = routes
        return routes

    def rules_of(self, scope: str, view: type | None) -> frozenset[str]:
        """Return the names of the rules for throttles of this scope. Raises ``ConfigError`` without any."""
        names = _RuleFacts(self.limits.rules).by_scope.get(scope)
        if names is None:
            where = f"the throttle of {getattr(view, '__module__', '')}.{getattr(view, '__qualname__', '')}"
            raise ConfigError(f"no rule of RATELIMIT_MW has match = {{ scope = {scope!r} }}", of=where)
        return frozenset(names)

    def match(self, native: Any, may_await: bool = False) -> DjangoRequest:
        """Return Django's request as one that features are read from, with its route where a rule needs it."""
        routes = self.routes(getattr(native, "urlconf", None))
        request = DjangoRequest(native, may_await)
        if routes.has_marks or _RuleFacts(self.limits.rules).by_route:
            request.route, request.path_params = routes.find(request.path)
            request.endpoint = request.route.template
            request.marks = request.route.marked.for_method(request.method)
        return request

    def plan(self, request: DjangoRequest) -> Plan:
        """Return the plan of a request without the rules of throttles, and without those decided before."""
        plan = self.limits.undecided(self.limits.plan(request, request.marks), request.server_data)
        scoped = _RuleFacts(self.limits.rules).scoped
        return plan_without(plan, scoped) if scoped else plan

    def rejection(self, admission: DjangoAdmission, response: Any) -> HttpResponseBase:
        """Return the response to a rejection. ``response`` is that of your own function; None without one."""
        if response is None:
            response = admission.rejection()
        if isinstance(response, Rejection):
            body = b"" if admission.request.method == "HEAD" else response.body
            return HttpResponse(body, status=response.status, headers=dict(response.headers))
        if not isinstance(response, HttpResponseBase):
            raise TypeError(f"rejection returned {response!r}; expected an HttpResponse or a Rejection")
        return response

    def compare(self, request: DjangoRequest) -> None:
        """Count the requests for which Django chose another route, and log the first of them."""
        match = request.framework_request.resolver_match
        if request.route is None or match is None or request.route.callback is match.func:
            return
        self.differences += 1
        if self.differences == 1:
            _log.error(
                "the limits of the route %s were applied, but Django chose %s. Move RateLimitMiddleware after all"
                " middleware that sets request.urlconf or the language.",
                request.route.template,
                match.route,
            )


@lru_cache(4)
class _RuleFacts:
    """Whether rules need the route, and which of them belong to throttles."""

    def __init__(self, rules: RuleSet) -> None:
        self.by_route = any(name == "endpoint" or name.startswith("path:") for name in rules.needs)
        self.by_scope: dict[str, list[str]] = {}
        for rule in rules.rules:
            for scope in dict(rule.source.matches.features).get(SCOPE, ()):
                self.by_scope.setdefault(scope, []).append(rule.name)
        self.scoped = tuple(dict.fromkeys(name for names in self.by_scope.values() for name in names))
