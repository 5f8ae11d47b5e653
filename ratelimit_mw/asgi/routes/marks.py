"""The marks on a route: on its dependencies, on its endpoint, and on the methods of a class-based endpoint."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import ConfigError
from ...http.views import ViewMarksByMethod
from ...rules.marks import ViewMarks, marked_form, marks_of
from ..dependencies import DependencyLimit, share_mark
from .tree import RouteNode


def read_marks(nodes: Sequence[RouteNode]) -> None:
    """Read the marks of all routes into their nodes."""
    registered = {id(form) for node in nodes for form in _forms_of(node.target)}
    for node in nodes:
        early = [call.early_marks if isinstance(call, DependencyLimit) else call for call in node.calls]
        node.views = ViewMarksByMethod(_marked_view(node.target, registered), [*early, *_partials_of(node.target)])
        messages = [message for marks in node.views.all() for message in marks.messages]
        if messages and node.kind != "websocket":
            raise ConfigError(f"{node.endpoint} is not a WebSocket route", of=f"@messages on {messages[0].view}")


def calls_of(dependant: Any) -> Iterator[object]:
    """Yield the functions that FastAPI calls before a view, the outermost first."""
    for inner in getattr(dependant, "dependencies", ()):
        call = inner.call
        if inspect.isclass(call) and issubclass(call, DependencyLimit):
            raise ConfigError(f'expected Depends({call.__name__}("5/minute")); got Depends({call.__name__})')
        if isinstance(call, DependencyLimit) and inner.name is not None:
            share_mark(call, dependant.call, inner.name)
        yield from calls_of(inner)
        yield call


def _marked_view(endpoint: Any, registered: set[int]) -> Any:
    """Return the endpoint, or its marked form where a decorator is above the one that registered it.

    A marked form with a route of its own keeps its marks: then this route is left unlimited on purpose.
    """
    form = marked_form(endpoint)
    is_late = form is not None and marks_of(endpoint) == ViewMarks() and id(form) not in registered
    return form if is_late else endpoint


def _partials_of(endpoint: Any) -> list[object]:
    """Return the functions that ``functools.partial`` wraps in an endpoint, the innermost first."""
    parts: list[object] = []
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
        parts.insert(0, endpoint)
    return parts


def _forms_of(endpoint: Any) -> Iterator[object]:
    """Yield an endpoint and the functions that its decorators wrap."""
    while endpoint is not None:
        yield endpoint
        endpoint = getattr(endpoint, "__wrapped__", None)
