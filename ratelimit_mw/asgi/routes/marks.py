"""What is marked on the way to a view: on its dependencies, on itself, on the method of a class that answers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterator
from typing import Any, Final

from ...errors import ConfigError
from ...rules.marks import Mark, ViewMarks, marked_form, marks_of, view_of
from ..dependencies import share
from .match import DependencyLimit
from .tree import RouteNode

__all__ = ["Marking"]

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY")
_NOTHING: Final = ViewMarks()


class Marking:
    """Collects the marks of an application. ``later``: the features that a mark is given on the way."""

    def __init__(self) -> None:
        self.later: dict[Mark, Collection[str]] = {}
        self._views: dict[ViewMarks, None] = {}
        self._branches: list[tuple[RouteNode, list[object]]] = []

    @property
    def views(self) -> list[ViewMarks]:
        """Everything that some request may meet."""
        return [*self._views, *(ViewMarks((mark,)) for mark in self.later)]

    @property
    def branches(self) -> list[RouteNode]:
        """All routes that lead to views, or to what nobody can look into."""
        return [branch for branch, _ in self._branches]

    def mark(self, branch: RouteNode, dependant: Any) -> None:
        """Note for a branch what is marked on its dependencies and its endpoint."""
        calls = list(_calls_of(dependant))
        branch.met = self._met(calls)
        self._branches.append((branch, calls))
        self._note(branch, calls, _parts_of(branch.target))

    def meet(self, route: Any) -> list[DependencyLimit]:
        """The limits among the dependencies of a route that is never found by the index."""
        met = self._met(list(_calls_of(getattr(route, "dependant", None))))
        self._known(view_of(limit.beforehand for limit in met))
        return met

    def _met(self, calls: list[object]) -> list[DependencyLimit]:
        met = [call for call in calls if isinstance(call, DependencyLimit)]
        self.later |= {limit.mark: limit.given for limit in met if limit.given}
        return met

    def _note(self, branch: RouteNode, calls: list[object], parts: list[object]) -> None:
        things = [*(call.beforehand if isinstance(call, DependencyLimit) else call for call in calls), *parts]
        branch.views[""] = self._known(view_of(things), branch)
        if not inspect.isclass(branch.target):
            return
        for method in _METHODS:
            if handlers := _handlers(branch.target, method):
                branch.views[method] = self._known(view_of([*things, *handlers]), branch)

    def _known(self, view: ViewMarks, branch: RouteNode | None = None) -> ViewMarks | None:
        if view == _NOTHING:
            return None
        if view.messages and branch is not None and branch.kind != "websocket":
            raise ConfigError(f"{branch.endpoint} is no WebSocket route", of=f"@messages on {view.messages[0].view}")
        self._views[view] = None
        return view

    def claim_late_marks(self) -> None:
        """Give functions that were marked above the decorator that took them what was marked there.

        Unless the marked form has a route of its own: then it is on purpose that this one is not limited.
        """
        standing = {id(form) for branch, _ in self._branches for form in _forms_of(branch.target)}
        for branch, calls in self._branches:
            form = marked_form(branch.target)
            if form is not None and marks_of(branch.target) == _NOTHING and id(form) not in standing:
                self._note(branch, calls, [form])


def _calls_of(dependant: Any) -> Iterator[object]:
    """The functions that FastAPI calls before a view, the outermost first."""
    for inner in getattr(dependant, "dependencies", ()):
        call = inner.call
        if inspect.isclass(call) and issubclass(call, DependencyLimit):
            raise ConfigError(f'expected Depends({call.__name__}("5/minute")); got Depends({call.__name__})')
        if isinstance(call, DependencyLimit) and inner.name is not None:
            share(call, dependant.call, inner.name)
        yield from _calls_of(inner)
        yield call


def _parts_of(endpoint: Any) -> list[object]:
    """An endpoint, behind what it is a part of: a function with some arguments given already is that function."""
    parts = [endpoint]
    while isinstance(parts[0], functools.partial):
        parts.insert(0, parts[0].func)
    return parts


def _forms_of(endpoint: Any) -> Iterator[object]:
    """An endpoint, and what its decorators were put around."""
    while endpoint is not None:
        yield endpoint
        endpoint = getattr(endpoint, "__wrapped__", None)


def _handlers(cls: type, method: str) -> list[object]:
    """The method of a class that answers a request, as Starlette looks for it, after those that it overrides."""
    name = "get" if method == "HEAD" and not hasattr(cls, "head") else method.lower()
    return [vars(base)[name] for base in reversed(cls.__mro__) if name in vars(base)]
