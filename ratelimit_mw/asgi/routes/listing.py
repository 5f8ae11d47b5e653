"""The routes that an index has read, as commands list them, and where one request would go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ...http.request import Request
from ...rules.marks import ViewMarks
from ...rules.overview import Route
from ...rules.rule import METHODS
from .index import RouteIndex
from .match import RouteMatch
from .tree import FULL, RouteNode

__all__ = ["going", "routes_of"]

_BESIDE: Final = {"HEAD", "OPTIONS"}


@dataclass(frozen=True)
class _OfBranch:
    branch: RouteNode

    def of(self, method: str) -> ViewMarks:
        return _whole(self.branch.routed(method, FULL))


def routes_of(index: RouteIndex) -> Iterator[Route]:
    """All routes, in their order. A handshake of a WebSocket is a GET."""
    for branch in index.reading.marking.branches:
        methods = ("GET",) if branch.kind == "websocket" else tuple(sorted((branch.methods or {*METHODS}) - _BESIDE))
        yield Route(branch.endpoint, methods, _OfBranch(branch))


def going(index: RouteIndex, request: Request) -> tuple[str, ViewMarks, dict[str, str]]:
    """Where a request goes: the template, what is marked there, the parameters in its path."""
    routed = index.find(request)
    return routed.endpoint, _whole(routed), index.params(request)


def _whole(routed: RouteMatch) -> ViewMarks:
    """What is marked, and what is only decided on the way."""
    view = routed.view or ViewMarks()
    return replace(view, marks=(*view.marks, *routed.later))
