"""What is decided for a request to Django, without any I/O of its own: the middleware does that, sync or async."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import get_resolver

from ..decision import Verdict
from ..errors import ConfigError
from ..http.admission import Pending, left_of
from ..http.limiter import HttpLimiter
from ..http.rejection import Rejection
from ..http.route_checks import RouteInfo, check_parameters, marks_in
from ..http.views import class_of
from ..limiter.limiter import Limiter
from ..rules.marks import ViewMarks
from ..rules.plan import Plan
from ..rules.ruleset import RuleSet
from ..wsgi.middleware import DECIDED, VERDICT
from .admission import Current, current_of
from .request import SCOPE, of_django
from .routes import Route, Routes
from .views import UNMARKED, scopes_of

__all__ = ["MatchedRequest", "ProjectLimits"]

_log: Final = logging.getLogger("ratelimit_mw")


class MatchedRequest:
    """A request, what is marked on its way, and what is to be decided of that; its route, where somebody looked."""

    def __init__(self, request: Any, view: ViewMarks, plan: Plan, route: Route | None = None) -> None:
        self.request = request
        self.django = request.django
        self.view = view
        self.plan = plan
        self.route = route


class ProjectLimits:
    """The limits of a project, for all its URLconfs. ``own`` names the features that functions of yours give.

    ``owned``: its limiter was made for it.
    """

    def __init__(self, guard: HttpLimiter, own: Collection[str], owned: bool) -> None:
        self.guard = guard
        self.owned = owned
        self.gives_user = "user" in own
        self._known: WeakKeyDictionary[Any, Routes] = WeakKeyDictionary()
        self._reading = threading.Lock()
        self._known_facts = _Facts(guard.rules)
        self.differences = 0
        """How often Django went elsewhere than our own index of its routes."""

    @property
    def limiter(self) -> Limiter:
        return self.guard.limiter

    @property
    def needs_beforehand(self) -> set[str]:
        """The features that the middleware reads; those of a throttle's rules are known when it decides."""
        rules, scoped = self.guard.rules, self._facts().scoped
        return {*rules.lists.needs, *(name for r in rules.rules if r.name not in scoped for name in r.source.needs)}

    def routes(self, urlconf: Any = None) -> Routes:
        """What is marked in a URLconf, the project's own by default; ``ConfigError`` for marks that cannot work."""
        resolver = get_resolver(urlconf)
        routes = self._known.get(resolver)
        if routes is None:
            with self._reading:
                routes = self._known.get(resolver)
                if routes is None:
                    routes = self._read(resolver)
                    self._known[resolver] = routes
        return routes

    def _read(self, resolver: Any) -> Routes:
        routes = Routes(resolver)
        self.guard.adopt(routes.views())
        places = [RouteInfo(route.template, route.parameters, marks_in(route.marked.all())) for route in routes.all]
        check_parameters(places, self.guard.rules, resolver is get_resolver())
        for route in routes.all:
            for scope in scopes_of(route.callback):
                self.rules_of(scope, class_of(route.callback))
        return routes

    def rules_of(self, scope: str, view: type) -> frozenset[str]:
        """The names of the rules that a throttle of this scope decides; ``ConfigError`` when there are none."""
        found = self._facts().by_scope.get(scope)
        if found is None:
            where = f"the throttle of {view.__module__}.{view.__qualname__}"
            raise ConfigError(f"no rule of RATELIMIT_MW has match = {{ scope = {scope!r} }}", of=where)
        return frozenset(found)

    def ask(self, django: Any, awaits: bool = False) -> MatchedRequest:
        """What to decide for a request. Its route is looked for only where something depends on it."""
        routes = self.routes(getattr(django, "urlconf", None))
        request = of_django(django, awaits)
        if not (routes.marked or self._facts().by_route):
            return MatchedRequest(request, UNMARKED, self._plan(request, UNMARKED))
        route, request.path_params = routes.find(request.path)
        request.endpoint = route.template
        view = route.marked.of(request.method)
        return MatchedRequest(request, view, self._plan(request, view), route)

    def note(self, asked: MatchedRequest, verdict: Verdict, current: Current) -> None:
        """The verdict is there; from now on its slots are held."""
        current.add(Pending(self.limiter, asked.plan, verdict, self.guard.writer))
        if verdict.allowed and asked.plan.has_slots:
            self.limiter.hold(verdict)

    def answer(self, asked: MatchedRequest, current: Current, own: Any) -> HttpResponseBase:
        """The response to a rejection: what your own function gave, else the package's."""
        pending = current.pending[-1]
        answer = own
        if answer is None:
            answer = self.guard.rejection(asked.request, pending.verdict, pending.headers)
        if isinstance(answer, Rejection):
            body = b"" if asked.request.method == "HEAD" else answer.body
            return HttpResponse(body, status=answer.status, headers=dict(answer.headers))
        if not isinstance(answer, HttpResponseBase):
            raise TypeError(f"rejection gave {answer!r}; expected a response of Django's or a Rejection")
        return answer

    def compare(self, asked: MatchedRequest) -> None:
        """Count, and say once, that Django went elsewhere: limits were decided for the wrong route."""
        match = asked.django.resolver_match
        if asked.route is None or match is None or asked.route.callback is match.func:
            return
        self.differences += 1
        if self.differences == 1:
            _log.error(
                "limits were decided for the route %s, but Django went to %s. RateLimitMiddleware stands after all"
                " middleware that sets request.urlconf or the language.",
                asked.route.template,
                match.route,
            )

    def _facts(self) -> _Facts:
        """Of the rules at hand, which grow when another URLconf is read."""
        if self._known_facts.rules is not self.guard.rules:
            self._known_facts = _Facts(self.guard.rules)
        return self._known_facts

    def _plan(self, request: Any, view: ViewMarks) -> Plan:
        """Without the rules of throttles, and without those that were decided before.

        That was around Django, or here, because the middleware is listed twice.
        """
        names = self._facts().scoped
        others = request.native.get(DECIDED, ())
        if others and self.guard.has_decided(others):
            names += _noted(request.native).rules
        if current_of(request.django) is not None:
            names += request.django.ratelimit.rules
        plan = self.guard.plan(request, view)
        return left_of(plan, names) if names else plan


class _Facts:
    """What a set of rules asks of every request."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.by_route = any(name == "endpoint" or name.startswith("path:") for name in rules.needs)
        self.by_scope: dict[str, list[str]] = {}
        for rule in rules.rules:
            for scope in dict(rule.source.matches.features).get(SCOPE, ()):
                self.by_scope.setdefault(scope, []).append(rule.name)
        self.scoped = tuple(dict.fromkeys(name for names in self.by_scope.values() for name in names))


def _noted(native: Any) -> Verdict:
    """What the middleware around Django has decided."""
    return native[VERDICT] if VERDICT in native else native["state"]["ratelimit"]  # type: ignore[no-any-return]
