"""The marks on a route: on its dependencies, on its endpoint, and on the methods of a class-based endpoint."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, Final

from ...errors import ConfigError
from ...rules.marks import Mark, ViewMarks, marked_form, marks_of, view_of
from ...rules.match import METHODS
from ..dependencies import DependencyLimit, share_mark
from .match import RouteMatch
from .tree import RouteNode

_UNMARKED: Final = ViewMarks()


class RouteMarks:
    """Collects the marks of an application. ``provided`` has the features that dependencies provide for a mark."""

    def __init__(self) -> None:
        self.provided: dict[Mark, Collection[str]] = {}
        self._views: dict[ViewMarks, None] = {}
        self._nodes: list[tuple[RouteNode, list[object]]] = []

    @property
    def views(self) -> list[ViewMarks]:
        """The marks of every possible request."""
        return [*self._views, *(ViewMarks((mark,)) for mark in self.provided)]

    @property
    def nodes(self) -> list[RouteNode]:
        """All routes with a view, or with an application that cannot be read."""
        return [node for node, _ in self._nodes]

    def read(self, node: RouteNode, dependant: Any) -> None:
        """Read the marks of a route into its node."""
        calls = list(_calls_of(dependant))
        node.limits = self._limits_of(calls)
        self._nodes.append((node, calls))
        self._note(node, calls, _parts_of(node.target))

    def read_fallback(self, route: Any) -> list[DependencyLimit]:
        """Return the dependency limits of a route that the index does not contain."""
        limits = self._limits_of(list(_calls_of(getattr(route, "dependant", None))))
        self._known(view_of(limit.early_marks for limit in limits))
        return limits

    def _limits_of(self, calls: list[object]) -> list[DependencyLimit]:
        limits = [call for call in calls if isinstance(call, DependencyLimit)]
        self.provided |= {limit.mark: limit.provides for limit in limits if limit.provides}
        return limits

    def _note(self, node: RouteNode, calls: list[object], parts: list[object]) -> None:
        things = [*(call.early_marks if isinstance(call, DependencyLimit) else call for call in calls), *parts]
        node.marks[""] = self._known(view_of(things), node)
        if not inspect.isclass(node.target):
            return
        for method in METHODS:
            if handlers := _handlers(node.target, method):
                node.marks[method] = self._known(view_of([*things, *handlers]), node)

    def _known(self, marks: ViewMarks, node: RouteNode | None = None) -> ViewMarks | None:
        if marks == _UNMARKED:
            return None
        if marks.messages and node is not None and node.kind != "websocket":
            raise ConfigError(f"{node.endpoint} is not a WebSocket route", of=f"@messages on {marks.messages[0].view}")
        self._views[marks] = None
        return marks

    def claim_late_marks(self) -> None:
        """Give a route the marks of a decorator above the one that registered it.

        A marked form with a route of its own keeps them: then this route is left unlimited on purpose.
        """
        registered = {id(form) for node, _ in self._nodes for form in _forms_of(node.target)}
        for node, calls in self._nodes:
            form = marked_form(node.target)
            if form is not None and marks_of(node.target) == _UNMARKED and id(form) not in registered:
                self._note(node, calls, [form])


def every_mark(match: RouteMatch) -> ViewMarks:
    """Return the marks of a view with the deferred ones."""
    marks = match.marks or ViewMarks()
    return replace(marks, marks=(*marks.marks, *match.deferred))


def _calls_of(dependant: Any) -> Iterator[object]:
    """Yield the functions that FastAPI calls before a view, the outermost first."""
    for inner in getattr(dependant, "dependencies", ()):
        call = inner.call
        if inspect.isclass(call) and issubclass(call, DependencyLimit):
            raise ConfigError(f'expected Depends({call.__name__}("5/minute")); got Depends({call.__name__})')
        if isinstance(call, DependencyLimit) and inner.name is not None:
            share_mark(call, dependant.call, inner.name)
        yield from _calls_of(inner)
        yield call


def _parts_of(endpoint: Any) -> list[object]:
    """Return an endpoint after the functions that ``functools.partial`` wraps in it."""
    parts = [endpoint]
    while isinstance(parts[0], functools.partial):
        parts.insert(0, parts[0].func)
    return parts


def _forms_of(endpoint: Any) -> Iterator[object]:
    """Yield an endpoint and the functions that its decorators wrap."""
    while endpoint is not None:
        yield endpoint
        endpoint = getattr(endpoint, "__wrapped__", None)


def _handlers(cls: type, method: str) -> list[object]:
    """Return the methods of a class for a request, as Starlette finds them, base classes first."""
    name = "get" if method == "HEAD" and not hasattr(cls, "head") else method.lower()
    return [vars(base)[name] for base in reversed(cls.__mro__) if name in vars(base)]
