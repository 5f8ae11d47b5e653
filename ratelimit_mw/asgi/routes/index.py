"""The index of an application's routes: which one answers a request, found without asking the framework's router.

A path that was asked for is found in a dictionary, within bounds that no client can move; a new one by a walk down a
tree, which hardly grows with the number of routes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from ...errors import MissingMiddlewareError
from ...http.request import Request
from ..error_handlers import Answer
from .match import RouteMatch
from .reader import RouteReader
from .tree import Lookup, seen_path

__all__ = ["RouteIndex"]

_KEPT: Final = 10_000
_LONGEST_KEPT: Final = 256
_log = logging.getLogger("ratelimit_mw")


class RouteIndex:
    """Of one application or router. ``adopt`` is told what was read, and may reject it with ``ConfigError``.

    ``whole``: it is the outermost application, and its paths are whole where it mounts others. ``answer`` is how the
    application answers rejections, if it wants to.
    """

    def __init__(
        self, app: Any, whole: bool, adopt: Callable[[RouteReader], None], answer: Answer | None = None
    ) -> None:
        self._app = app
        self._whole = whole
        self._adopt = adopt
        self.answer = answer
        self.differences = 0
        """How often the framework went elsewhere than this index."""
        self._read()

    def _read(self) -> None:
        reading = RouteReader(self._app)
        self._adopt(reading)
        self.reading = reading
        self._known: dict[tuple[str, str, str], RouteMatch] = {}
        self._lists = reading.lists
        self._routes = [route for routes in self._lists for route in routes]
        self._count = len(self._routes)

    def refresh(self) -> None:
        """Read the routes again if some were added or removed since, or were found to be replaced."""
        if sum(map(len, self._lists)) != self._count:
            self._read()

    def _are_replaced(self) -> bool:
        """Whether other routes stand where those stood that were read; then they are read before the next request."""
        now = (route for routes in self._lists for route in routes)
        if all(route is known for route, known in zip(now, self._routes, strict=False)):
            return False
        self._count = -1
        return True

    def find(self, request: Request) -> RouteMatch:
        """Where a request goes."""
        scope = request.native
        root = self._root(scope)
        path = seen_path(scope["path"], root) if root else scope["path"]
        host = request.host if self.reading.by_host else ""
        key = (scope["method"] if scope["type"] == "http" else "websocket", path, host)
        found = self._known.get(key)
        if found is None:
            question = Lookup({**scope, "root_path": root}, path, host)
            found = self.reading.top.find(question)
            if question.keep and sum(map(len, key)) <= _LONGEST_KEPT:
                if len(self._known) >= _KEPT:
                    self._known.clear()
                self._known[key] = found
        return found

    def params(self, request: Request) -> dict[str, str]:
        """The values of the parameters in the template of a request's route."""
        root = self._root(request.native)
        scope = {**request.native, "root_path": root}
        question = Lookup(scope, seen_path(scope["path"], root), request.host)
        self.reading.top.find(question)
        return question.params

    def compare(self, routed: RouteMatch, endpoint: object) -> None:
        """Count, and say once, that the framework went elsewhere: limits were decided for the wrong route."""
        if routed.is_at(endpoint) or self._are_replaced():
            return
        self.differences += 1
        if self.differences == 1:
            _log.error(
                "limits were decided for the route %s, but %r answered."
                " Does a middleware inside of RateLimitMiddleware change paths?",
                routed.endpoint,
                endpoint,
            )

    def explain(self, error: MissingMiddlewareError) -> None:
        """A limit was hidden from the middleware: say by what, for it is not the middleware that is missing."""
        self._are_replaced()
        error.add_note(
            "RateLimitMiddleware is there, but does not see the limit. Does a decorator above @limit not use"
            " functools.wraps, did another view call this one, or does a middleware inside change paths?"
        )

    def _root(self, scope: Any) -> str:
        """Where the application stands; for the outermost one, what the server was told."""
        root: str = scope.get("root_path", "")
        return scope.get("app_root_path", root) if root and self._whole else root
