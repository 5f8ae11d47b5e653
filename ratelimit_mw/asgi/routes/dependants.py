"""Reads what FastAPI knows of a view: the functions it calls before, and the types of its path parameters."""

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...keys.annotations import types_in
from ...keys.values import CANONICAL, canonical
from ..dependencies import DependencyLimit, DependencyObject, share_mark


class _Annotated(NamedTuple):
    """Converts a parameter as FastAPI does: by its annotation, where the path has no convertor."""

    kind: type

    def convert(self, value: str) -> Any:
        return canonical(self.kind, value)


def converted_parameters(dependant: Any) -> Iterator[tuple[str, _Annotated]]:
    """Yield the parameters of a route that a view or a dependency of FastAPI takes as a number or a UUID."""
    for inner in getattr(dependant, "dependencies", ()):
        yield from converted_parameters(inner)
    for parameter in getattr(dependant, "path_params", ()):
        for kind in types_in(getattr(parameter.field_info, "annotation", None)):
            for known in CANONICAL:
                if issubclass(kind, known):
                    yield parameter.alias, _Annotated(known)
                    break


def calls_before(dependant: Any) -> Iterator[object]:
    """Yield the functions that FastAPI calls before a view, the outermost first."""
    for inner in getattr(dependant, "dependencies", ()):
        call = inner.call
        if inspect.isclass(call) and issubclass(call, DependencyObject):
            name = call.__name__
            raise ConfigError(f"expected Depends({name}({call.arguments})); got Depends({name})")
        if isinstance(call, DependencyLimit) and inner.name is not None:
            share_mark(call, dependant.call, inner.name)
        yield from calls_before(inner)
        yield call
