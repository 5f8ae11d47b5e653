"""Routes of one router as branches of a tree; what is mounted is a level below. Chooses as Starlette's router does.

The first branch that takes path and method wins, else the first that takes the path alone. A mount that takes the path
is never left again. The path tree says which branches are worth asking, their own patterns decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...rules.marks import ViewMarks
from ...rules.paths import PathTree
from .match import DependencyLimit, RouteMatch

__all__ = ["FULL", "NONE", "PARTIAL", "CustomMatch", "RouteNode", "RouteTree", "Lookup", "seen_path"]

NONE: Final = 0
PARTIAL: Final = 1
FULL: Final = 2

Scope = MutableMapping[str, Any]


@dataclass(slots=True)
class Lookup:
    """Where a request asks to go: ``path`` is what is left of it at the level that was reached."""

    scope: Scope
    path: str
    host: str
    keep: bool = True
    """Whether the answer is the same for every request with this method, path and host."""
    params: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.scope["type"]  # type: ignore[no-any-return]

    @property
    def method(self) -> str:
        return self.scope.get("method", "GET")  # type: ignore[no-any-return]


CustomMatch = Callable[[Scope], int]
"""A route that decides for itself, by more than path and method, and says how well it matches."""


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
    """The names of all parameters on the way there, those of mounts included."""
    asked: CustomMatch | None = None
    mounts: bool = False
    below: RouteTree | None = None
    views: dict[str, ViewMarks | None] = field(default_factory=dict)
    """What is marked, by method; under "" for all methods that are not there."""
    met: list[DependencyLimit] = field(default_factory=list)
    _routed: dict[str, RouteMatch] = field(default_factory=dict)

    def takes(self, question: Lookup) -> int:
        """How well it matches, in Starlette's words."""
        if self.kind is not None and self.kind != question.kind:
            return NONE
        if self.asked is not None:
            question.keep = False
            return self.asked(question.scope)
        if not self._matched(question):
            return NONE
        return FULL if self.methods is None or question.method in self.methods else PARTIAL

    def _matched(self, question: Lookup) -> re.Match[str] | None:
        if self.host is not None:
            return self.host.match(question.host)
        return self.pattern.match(question.path) if self.pattern is not None else None

    def enter(self, question: Lookup) -> None:
        """Take from the path what belongs to this branch, and note the parameters in it."""
        found = self._matched(question)
        if found is None:
            return
        values = {name: _plain(self.convertors[name], value) for name, value in found.groupdict().items()}
        if self.mounts and self.host is None:
            rest = "/" + values.pop("path")
            root = question.scope.get("root_path", "")
            mounted = root + question.path[: -len(rest)]
            known = {"app_root_path": question.scope.get("app_root_path", root), "root_path": mounted}
            question.scope = {**question.scope, **known}
            question.path = seen_path(question.scope["path"], mounted)
        question.params |= values

    def routed(self, method: str, match: int) -> RouteMatch:
        """Where a request that ends here goes. One that only matches in part does not reach the view."""
        name = "" if match == PARTIAL else method if method in self.views else "*"
        found = self._routed.get(name)
        if found is None:
            found = RouteMatch(self.endpoint, self.target, self.passed)
            if match == FULL:
                found = found.meeting(self.views.get(method, self.views.get("")), self.met)
            self._routed[name] = found
        return found


class RouteTree:
    """The routes of one router, in their order. ``missed`` is where a request goes that none of them takes."""

    def __init__(self, branches: list[RouteNode], missed: RouteMatch) -> None:
        self.branches = branches
        self.missed = missed
        self._tree = PathTree((i, branch.shape) for i, branch in enumerate(branches))

    def _candidates(self, path: str) -> tuple[int, ...]:
        """The branches worth asking. A pattern that ends in "$" takes one line feed after the path, too."""
        found = self._tree.match(path)
        if path[-1:] == "\n":
            found = tuple(sorted({*found, *self._tree.match(path[:-1])}))
        return found

    def find(self, question: Lookup) -> RouteMatch:
        """Where the request goes, from here down."""
        partial: RouteNode | None = None
        for number in self._candidates(question.path):
            branch = self.branches[number]
            match = branch.takes(question)
            if match == FULL:
                branch.enter(question)
                return branch.below.find(question) if branch.below else branch.routed(question.method, FULL)
            if match == PARTIAL and partial is None:
                partial = branch
        if partial is not None:
            partial.enter(question)
            return partial.routed(question.method, PARTIAL)
        return self.missed


def seen_path(path: str, root: str) -> str:
    """The path that a router sees which stands at ``root``; to the letter as Starlette has it.

    >>> seen_path("/api/items", "/api"), seen_path("/apis", "/api"), seen_path("/api", "/api")
    ('/items', '/apis', '')
    """
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path


def _plain(convertor: Any, value: str) -> str:
    """A parameter's value as text, read first as the route does: "007" and "7" are one number."""
    try:
        return str(convertor.convert(value))
    except ValueError:  # of more digits than Python reads
        return value
