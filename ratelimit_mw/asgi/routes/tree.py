"""The routes of one router as nodes of a tree. It chooses as Starlette's router does.

The first node that matches path and method wins, else the first that matches the path alone. A mount that matches the
path is final. A path tree finds the candidates, and their own patterns decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ...http.layers import is_of_framework
from ...http.routes import ViewMarksByMethod
from ...keys.features import INVALID, UNMATCHED
from ...keys.values import NO_CONVERSIONS, Conversions, parameter
from ...rules.marks import Destination, Mark, ViewMarks
from ...rules.paths import PathTree

if TYPE_CHECKING:
    from ..dependencies import DependencyLimit

NONE: Final = 0
PARTIAL: Final = 1
FULL: Final = 2

Scope = MutableMapping[str, Any]

OPAQUE: Final = object()
"""The target of a route whose application cannot be read."""


@dataclass(frozen=True, eq=False)
class RouteMatch(Destination):
    """The route of a request: its whole template, the framework's endpoint, the applications mounted on the way to it.

    ``marks`` is None without any. ``deferred`` are the marks that are decided when their dependencies have run.
    """

    target: object = None
    passed: tuple[object, ...] = ()
    deferred: tuple[Mark, ...] = ()

    @property
    def all_marks(self) -> ViewMarks:
        """The marks of the view, with the deferred ones."""
        marks = self.marks or ViewMarks()
        return replace(marks, marks=(*marks.marks, *self.deferred))

    def with_marks(self, marks: ViewMarks, limits: list[DependencyLimit]) -> RouteMatch:
        """Return the match with the marks of the view, and with the limits of its dependencies."""
        deferred = tuple(dict.fromkeys(limit.mark for limit in limits if limit.provides))
        marked = None if marks == ViewMarks() else marks
        return replace(self, marks=marked, deferred=deferred)

    def leads_to(self, endpoint: object) -> bool:
        """Return whether the framework chose this route too. ``endpoint`` is None where it has chosen none."""
        is_chosen = endpoint is None or endpoint is self.target or self.target is OPAQUE
        if is_chosen or any(endpoint is app for app in self.passed):
            return True
        return not self.ends and not is_of_framework(self.target)  # a mount that may have an application inside


_PARTIAL_MARKS: Final = ViewMarks(answers_options=True)  # Starlette rejects all methods that a route does not have
NO_ROUTE: Final = RouteMatch(UNMATCHED)
ROUTES_UNKNOWN: Final = RouteMatch()


@dataclass(slots=True)
class Lookup:
    """The search for one request's route. ``path`` is the rest of the path below the current router.

    ``host`` is as Starlette's ``Host`` reads it; None matches no host.
    """

    scope: Scope
    path: str
    host: str | None
    is_cacheable: bool = True
    """Whether every request with this method, path and host has the same route."""
    params: dict[str, Any] = field(default_factory=dict)


CustomMatch = Callable[[Scope], int]
"""The ``matches`` of a route that does not decide by path and method alone. Returns NONE, PARTIAL or FULL."""


_NO_VIEWS: Final = ViewMarksByMethod(None)


@dataclass(eq=False, slots=True)
class RouteNode:
    """One route. ``kind`` None: for HTTP and WebSockets alike; ``methods`` None: for every method."""

    shape: str
    endpoint: str
    target: object
    passed: tuple[object, ...]
    kind: str | None = None
    methods: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    host: re.Pattern[str] | None = None
    convertors: Mapping[str, Any] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    """The names of all parameters of the route, including those of its mounts."""
    custom_match: CustomMatch | None = None
    answers_options: bool = False
    """Whether only the framework's own code runs for a method that the route does not have."""
    is_mount: bool = False
    below: RouteTree | None = None
    name: str = ""
    """The name of the route, after those of its mounts, as the framework builds URLs from it."""
    paths: str = "/**"
    """A pattern that matches at least the paths of the route, with those of its mounts."""
    conversions: Conversions = NO_CONVERSIONS
    views: ViewMarksByMethod = _NO_VIEWS
    calls: list[object] = field(default_factory=list)
    """The dependencies of the route. ``limits`` are those that carry a limit."""
    limits: list[DependencyLimit] = field(default_factory=list)
    _matches: dict[str, RouteMatch] = field(default_factory=dict)

    def quality(self, lookup: Lookup) -> int:
        """Return NONE, PARTIAL or FULL, as Starlette does."""
        if self.kind is not None and self.kind != lookup.scope["type"]:
            return NONE
        if self.custom_match is not None:
            lookup.is_cacheable = False
            return self.custom_match(lookup.scope)
        if not self._pattern_match(lookup):
            return NONE
        return FULL if self.methods is None or lookup.scope.get("method", "GET") in self.methods else PARTIAL

    def _pattern_match(self, lookup: Lookup) -> re.Match[str] | None:
        if self.host is not None:
            return None if lookup.host is None else self.host.match(lookup.host)
        return self.pattern.match(lookup.path) if self.pattern is not None else None

    def enter(self, lookup: Lookup) -> None:
        """Take this node's part from the path, and keep its parameters."""
        match = self._pattern_match(lookup)
        if match is None:
            return
        values = {name: _converted(self.convertors[name], value) for name, value in match.groupdict().items()}
        if self.is_mount and self.host is None:
            rest = "/" + values.pop("path")
            root = lookup.scope.get("root_path", "")
            mounted = root + lookup.path[: -len(rest)]
            roots = {"app_root_path": lookup.scope.get("app_root_path", root), "root_path": mounted}
            lookup.scope = {**lookup.scope, **roots}
            lookup.path = path_below(mounted, lookup.scope["path"])
        lookup.params |= values

    def match_for(self, method: str, quality: int) -> RouteMatch:
        """Return the match of a request that ends here. A partial match does not reach the view."""
        key = "" if quality == PARTIAL else method if method in self.views.by_method else "*"
        match = self._matches.get(key)
        if match is None:
            match = RouteMatch(
                self.endpoint,
                self.name,
                _PARTIAL_MARKS if self.answers_options else None,
                ends=not self.is_mount,
                conversions=self.conversions,
                target=self.target,
                passed=self.passed,
            )
            if quality == FULL:
                match = match.with_marks(self.views.for_method(method), self.limits)
            self._matches[key] = match
        return match


class RouteTree:
    """The routes of one router in their order.

    ``missed`` is the match of a request that none of them matches, nor one of ``fallbacks``.
    """

    def __init__(self, nodes: list[RouteNode], missed: RouteMatch, fallbacks: RouteTree | None = None) -> None:
        self.nodes = nodes
        self.missed = missed
        self._fallbacks = fallbacks
        self._tree = PathTree((i, node.shape) for i, node in enumerate(nodes))

    def find(self, lookup: Lookup) -> RouteMatch:
        """Return the match of a request, from this router down."""
        partial: RouteNode | None = None
        method = lookup.scope.get("method", "GET")
        candidates = self._tree.match(lookup.path)
        if lookup.path[-1:] == "\n":  # a pattern that ends in "$" also matches a line feed after the path
            candidates = tuple(sorted({*candidates, *self._tree.match(lookup.path[:-1])}))
        for number in candidates:
            node = self.nodes[number]
            quality = node.quality(lookup)
            if quality == FULL:
                node.enter(lookup)
                return node.below.find(lookup) if node.below else node.match_for(method, FULL)
            if quality == PARTIAL and partial is None:
                partial = node
        if partial is not None:
            partial.enter(lookup)
            return partial.match_for(method, PARTIAL)
        return self._fallbacks.find(lookup) if self._fallbacks else self.missed


def path_below(root: str, path: str) -> str:
    """Return the path that a router at ``root`` sees, exactly as Starlette does.

    >>> path_below("/api", "/api/items"), path_below("/api", "/apis"), path_below("/api", "/api")
    ('/items', '/apis', '')
    """
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path


def _converted(convertor: Any, value: str) -> Any:
    """Return a parameter after its conversion: "007" and "7" are one number."""
    try:
        return parameter(convertor.convert(value))
    except ValueError:  # more digits than Python converts
        return INVALID
