"""The index of an application's routes: which one answers a request, found without asking the framework's router.

A path that was asked for is found in a dictionary, within bounds that no client can move; a new one by a walk down a
tree, which hardly grows with the number of routes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from ..http.request import Request
from .handlers import Answer
from .levels import Question, seen_path
from .routed import Routed
from .walk import Reading

__all__ = ["RouteIndex"]

_KEPT: Final = 10_000
_LONGEST_KEPT: Final = 256
_log = logging.getLogger("ratelimit_mw")


class RouteIndex:
    """Of one application or router. ``adopt`` is told what was read, and may refuse it with ``ConfigError``.

    ``whole``: it is the outermost application, and its paths are whole where it mounts others. ``answer`` is how the
    application answers refusals, if it wants to.
    """

    def __init__(self, app: Any, whole: bool, adopt: Callable[[Reading], None], answer: Answer | None = None) -> None:
        self._app = app
        self._whole = whole
        self._adopt = adopt
        self.answer = answer
        self.differences = 0
        """How often the framework went elsewhere than this index."""
        self._read()

    def _read(self) -> None:
        reading = Reading(self._app)
        self._adopt(reading)
        self.reading = reading
        self._known: dict[tuple[str, str, str], Routed] = {}
        self._lists = reading.lists
        self._routes = sum(map(len, self._lists))

    def refresh(self) -> None:
        """Read the routes again if some were added or removed since."""
        if sum(map(len, self._lists)) != self._routes:
            self._read()

    def find(self, request: Request) -> Routed:
        """Where a request goes."""
        scope = request.native
        root = self._root(scope)
        path = seen_path(scope["path"], root) if root else scope["path"]
        host = request.host if self.reading.by_host else ""
        key = (scope["method"] if scope["type"] == "http" else "websocket", path, host)
        found = self._known.get(key)
        if found is None:
            question = Question({**scope, "root_path": root}, path, host)
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
        question = Question(scope, seen_path(scope["path"], root), request.host)
        self.reading.top.find(question)
        return question.params

    def compare(self, routed: Routed, scope: Any) -> None:
        """Count, and say once, that the framework went elsewhere: limits were decided for the wrong route."""
        endpoint = scope.get("endpoint")
        if routed.is_at(endpoint):
            return
        self.differences += 1
        if self.differences == 1:
            _log.error(
                "limits were decided for the route %s, but %r answered. Does a middleware inside of"
                " RateLimitMiddleware change paths, or were routes replaced?",
                routed.endpoint,
                endpoint,
            )

    def _root(self, scope: Any) -> str:
        """Where the application stands; for the outermost one, what the server was told."""
        root: str = scope.get("root_path", "")
        return scope.get("app_root_path", root) if root and self._whole else root
