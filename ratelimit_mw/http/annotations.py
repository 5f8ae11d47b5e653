"""Types in annotations: of the features that one function returns, and of the parameters of a route."""

import inspect
import types
from collections.abc import Awaitable, Coroutine
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

_MANY: Final = (Union, types.UnionType)
_RESULTS: Final = {Coroutine: 2, Awaitable: 0}
"""Types that contain another one, at this place of their arguments."""
_CONVERTING: Final = ("BeforeValidator", "PlainValidator", "WrapValidator", "Json", "GetPydanticSchema", "ValidateAs")
"""The validators of Pydantic that see what a client sends before its type does."""


def returned_types(function: Any) -> list[type]:
    if inspect.isclass(function):
        return [function]
    for inner in ("func", "awaitable"):  # of functools.partial, and of asgiref's async_to_sync
        function = getattr(function, inner, function)
    function = inspect.unwrap(function)
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = get_type_hints(target)
    except Exception:  # a name in an annotation may exist for type checkers only
        return []
    return types_in(hints["return"]) if "return" in hints else []


def types_in(annotation: Any, inside: tuple[type, ...] = ()) -> list[type]:
    """Return the classes that an annotation allows; none for an annotation such as ``Any``.

    Those ``inside`` a collection are returned in its place. With ``object`` for what a validator of Pydantic reads.

    >>> types_in(int | None), types_in(Annotated[str, "a name"]), types_in(Any)
    ([<class 'int'>, <class 'NoneType'>], [<class 'str'>], [])
    """
    for name in ("__value__", "__supertype__"):  # of ``type Id = int``, and of ``NewType``
        if (other := getattr(annotation, name, None)) is not None:
            return types_in(other, inside)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in _MANY:
        return [kind for arg in args for kind in types_in(arg, inside)]
    if origin is Literal:
        return [type(arg) for arg in args]
    if origin is Annotated or (origin in inside and args):
        custom = [object] if origin is Annotated and any(map(_converts, args[1:])) else []
        return [*types_in(args[0], inside), *custom]
    if origin in _RESULTS:
        return types_in(args[_RESULTS[origin]])
    kind = origin or annotation
    return [kind] if inspect.isclass(kind) and kind is not Any else []


def _converts(validator: object) -> bool:
    return type(validator).__name__ in _CONVERTING
