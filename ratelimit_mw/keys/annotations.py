"""Types in annotations: of the values that functions of features return, and of the parameters of a route."""

import inspect
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Generator, Iterator
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from .parts import Part
from .values import check_type

_MANY: Final = (Union, types.UnionType)
_RESULTS: Final = {Coroutine: 2, Awaitable: 0, Generator: 0, AsyncGenerator: 0, Iterator: 0, AsyncIterator: 0}
"""Types that contain another one, at this place of their arguments."""
_CONVERTING: Final = ("BeforeValidator", "PlainValidator", "WrapValidator", "Json", "GetPydanticSchema", "ValidateAs")
"""The validators of Pydantic that see what a client sends before its type does."""


def check_return(part: Part, function: Any, provides: bool = False) -> None:
    """Raise ``FeatureTypeError`` when the annotation of a function shows that no value of it can be counted.

    ``provides`` is for dependencies of FastAPI, which may yield.
    """
    for kind in returned_types(function, provides):
        check_type(part.feature, kind, part.attribute)


def check_field(part: Part, table: type) -> None:
    """Raise ``FeatureTypeError`` when a ``TypedDict`` shows that no value of its field can be counted."""
    for kind in types_in(_hints_of(table).get(part.feature, Any)):
        check_type(part.feature, kind, part.attribute)


def returned_types(function: Any, provides: bool = False) -> list[type]:
    if inspect.isclass(function):
        return [function]
    for inner in ("func", "awaitable"):  # of functools.partial, and of asgiref's async_to_sync
        function = getattr(function, inner, function)
    function = inspect.unwrap(function)
    target = function if inspect.isroutine(function) else type(function).__call__
    hints = _hints_of(target)
    return types_in(hints.get("return"), provides) if "return" in hints else []


def _hints_of(annotated: Any) -> dict[str, Any]:
    try:
        return get_type_hints(annotated, include_extras=False)
    except Exception:  # a name in an annotation may exist for type checkers only
        return {}


def types_in(annotation: Any, provides: bool = False, inside: tuple[type, ...] = ()) -> list[type]:
    """Return the classes that an annotation allows; none for an annotation such as ``Any``.

    Those ``inside`` a collection are returned in its place. With ``object`` for what a validator of Pydantic reads.

    >>> types_in(int | None), types_in(Annotated[str, "a name"]), types_in(Any)
    ([<class 'int'>, <class 'NoneType'>], [<class 'str'>], [])
    """
    for name in ("__value__", "__supertype__"):  # of ``type Id = int``, and of ``NewType``
        if (other := getattr(annotation, name, None)) is not None:
            return types_in(other, provides, inside)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in _MANY:
        return [kind for arg in args for kind in types_in(arg, provides, inside)]
    if origin is Literal:
        return [type(arg) for arg in args]
    if origin is Annotated or (origin in inside and args):
        custom = [object] if origin is Annotated and any(map(_converts, args[1:])) else []
        return [*types_in(args[0], provides, inside), *custom]
    if origin in _RESULTS and (provides or issubclass(origin, Awaitable)):
        return types_in(args[_RESULTS[origin]], provides)
    kind = origin or annotation
    return [kind] if inspect.isclass(kind) and kind is not Any else []


def _converts(validator: object) -> bool:
    return type(validator).__name__ in _CONVERTING
