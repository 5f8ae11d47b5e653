"""What is decided for a request to Django, without any I/O of its own: the middleware does that, sync or async."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import get_resolver
from django.urls.exceptions import Resolver404

from ..decision import Verdict
from ..features import UNMATCHED
from ..http.guard import Guard
from ..http.pending import Pending, left_of
from ..http.rejection import Rejection
from ..limiter import Limiter
from ..marks import View
from ..plan import Plan
from ..ruleset import RuleSet
from ..wsgi import DECIDED, VERDICT
from .current import Current, current_of
from .request import of_django
from .routes import UNMARKED, Routes
from .template import template_of

__all__ = ["Asked", "Enforcer", "at_close", "match_of"]


class Asked:
    """A request, what is marked on its way, and what is to be decided of that."""

    def __init__(self, request: Any, view: View, plan: Plan) -> None:
        self.request = request
        self.django = request.django
        self.view = view
        self.plan = plan


class Enforcer:
    """The limits of a project, for all its URLconfs. ``own`` names the features that functions of yours give."""

    def __init__(self, guard: Guard, own: Collection[str]) -> None:
        self.guard = guard
        self.gives_user = "user" in own
        self._known: WeakKeyDictionary[Any, Routes] = WeakKeyDictionary()
        self._reading = threading.Lock()
        self._rules: RuleSet | None = None
        self._needs_routes = False

    @property
    def limiter(self) -> Limiter:
        return self.guard.limiter

    def routes(self, urlconf: Any = None) -> Routes:
        """What is marked in a URLconf, the project's own by default; ``ConfigError`` for marks that cannot work."""
        resolver = get_resolver(urlconf)
        routes = self._known.get(resolver)
        if routes is None:
            with self._reading:
                routes = self._known.get(resolver)
                if routes is None:
                    routes = Routes(resolver)
                    self.guard.adopt(routes.views())
                    self._known[resolver] = routes
        return routes

    def ask(self, django: Any, awaits: bool = False) -> Asked:
        """What to decide for a request. Its route is looked for only where something depends on it."""
        urlconf = getattr(django, "urlconf", None)
        routes = self.routes(urlconf)
        request = of_django(django, awaits)
        view = UNMARKED
        if routes.marked or self._depends_on_routes():
            match = match_of(urlconf, request.path)
            request.endpoint = UNMATCHED if match is None else template_of(match.route)
            if match is not None:
                request.path_params = match.kwargs
                view = routes.view(match.func, request.method)
        return Asked(request, view, self._plan(request, view))

    def note(self, asked: Asked, verdict: Verdict, current: Current) -> None:
        """The verdict is there; from now on its slots are held."""
        current.add(Pending(self.limiter, asked.plan, verdict, self.guard.writer))
        if verdict.allowed and asked.plan.holds:
            self.limiter.hold(verdict)

    def answer(self, asked: Asked, current: Current, own: Any) -> HttpResponseBase:
        """The response to a refusal: what your own function gave, else the package's."""
        pending = current.pending[-1]
        answer = own or self.guard.rejection(asked.request, pending.verdict, pending.headers)
        if isinstance(answer, Rejection):
            body = b"" if asked.request.method == "HEAD" else answer.body
            return HttpResponse(body, status=answer.status, headers=dict(answer.headers))
        if not isinstance(answer, HttpResponseBase):
            raise TypeError(f"rejection gave {answer!r}; expected a response of Django's or a Rejection")
        return answer

    def _depends_on_routes(self) -> bool:
        rules = self.guard.rules
        if rules is not self._rules:
            self._needs_routes = any(name == "endpoint" or name.startswith("path:") for name in rules.needs)
            self._rules = rules
        return self._needs_routes

    def _plan(self, request: Any, view: View) -> Plan:
        """Without the rules that were decided before: around Django, or because the middleware is listed twice."""
        plan = self.guard.plan(request, view)
        others = request.native.get(DECIDED, ())
        names = _noted(request.native).rules if others and self.guard.has_decided(others) else ()
        if current_of(request.django) is not None:
            names += request.django.ratelimit.rules
        return left_of(plan, names) if names else plan


def match_of(urlconf: Any, path: str) -> Any:
    """Django's ``ResolverMatch``; None where no route matches."""
    try:
        return get_resolver(urlconf).resolve(path)
    except Resolver404:
        return None


def at_close(response: Any, then: Callable[[], object]) -> None:
    """Have something done when the server closes a response, after all else that is done then."""
    close = response.close

    def closing() -> None:
        try:
            close()
        finally:
            then()

    response.close = closing


def _noted(native: Any) -> Verdict:
    """What the middleware around Django has decided."""
    return native[VERDICT] if VERDICT in native else native["state"]["ratelimit"]  # type: ignore[no-any-return]
