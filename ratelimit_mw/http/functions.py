"""Your own functions of features: one for each feature, or one that returns several of them by name."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigError, FeatureTypeError, error_path
from ..keys.features import checked_name
from ..rules.declaration import checked_call, is_async
from .request import Request

Read = Callable[[Request], Any]
"""Returns the value of a feature, or its awaitable."""
FeatureFunctions = Mapping[str, Callable[[Any], Any]] | Callable[[Any], Any]
"""Your functions of the request by feature, or one function that returns features by name."""

IDENTIFY: Final = "*"
"""The key of the function that returns several features. Without a ``TypedDict`` it may be that of any feature."""
_MANY: Final = (Union, types.UnionType)
_RESULTS: Final = {Coroutine: 2, Awaitable: 0}
"""Types that contain another one, at this place of their arguments."""
_REQUEST_FEATURES: Final = ("ip", "endpoint", "view", "method", "path", "host", "scope")


def checked_functions(features: FeatureFunctions) -> dict[str, Callable[[Any], Any]]:
    """Return your functions by normalized feature name; ``ConfigError`` for one that takes no request."""
    if callable(features):
        features = {IDENTIFY: features}
    if not isinstance(features, Mapping):
        raise ConfigError(f"expected a table of functions by feature, or one function; got {features!r}", "features")
    functions = {}
    for name, read in features.items():
        with error_path("features" if name == IDENTIFY else f"features[{name!r}]"):
            functions[name if name == IDENTIFY else checked_name(name)] = checked_call(read, "the request")
    return functions


class CheckedFunctions:
    """Your functions, checked.

    ``may_provide`` are the features that they may return; with ``IDENTIFY`` where one function does not declare its
    own. ``must_await``: whether one of them is async.
    """

    def __init__(self, features: FeatureFunctions) -> None:
        functions = checked_functions(features)
        self.must_await = any(map(is_async, functions.values()))
        several = functions.pop(IDENTIFY, None)
        with error_path("features"):
            self.identify = None if several is None else IdentityReader(several)
        self.reads = {name: _with_framework_request(read) for name, read in functions.items()}
        declared = (self.identify.declared or (IDENTIFY,)) if self.identify else ()
        self.may_provide = frozenset((*functions, *declared))


def _with_framework_request(read: Callable[[Any], Any]) -> Read:
    return lambda request: read(request.for_functions)


class IdentityReader:
    """Reads the features that your function returns. Others are read as if there were no function.

    ``declared`` are the names in the ``TypedDict`` that annotates the function. Without one, the function may return
    features that can be read without it, such as the user.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        kinds = [kind for kind in returned_types(function) if kind is not type(None)]
        if wrong := [kind.__name__ for kind in kinds if not issubclass(kind, Mapping)]:
            raise ConfigError(f"expected a function that returns features by name; got one that returns {wrong[0]}")
        self.declared = frozenset(name for kind in kinds for name in getattr(kind, "__annotations__", ()))
        _check_returned(self.declared)

    def may_return(self, name: str) -> bool:
        """Return whether your function may return a feature. Those of the request itself are read by the package."""
        return name in self.declared if self.declared else _is_returnable(name)

    def reader(self, name: str, otherwise: Read | None) -> Read:
        """Return the function that reads a feature. ``otherwise`` reads it where your function does not return it."""

        def read(request: Request) -> Any:
            holder = request.original or request
            if holder.identified is None:
                features = self._function(request.for_functions)
                holder.identified = features if inspect.isawaitable(features) else _checked(features)
            features = holder.identified
            if inspect.isawaitable(features):
                return read_later(features, request, holder)
            if name in features:
                return features[name]
            return None if otherwise is None else otherwise(request)

        async def read_later(features: Awaitable[Any], request: Request, holder: Request) -> Any:
            if holder.identified is features:
                holder.identified = None  # after an error, and at the same time, another reader calls it again
                holder.identified = _checked(await features)
            value = read(request)
            return await value if inspect.isawaitable(value) else value

        return read


def _checked(features: Any) -> Mapping[str, Any]:
    """Return what your function has returned; None means that nothing is known."""
    if features is None:
        return {}
    if not isinstance(features, Mapping):
        kind = type(features).__name__
        raise FeatureTypeError(f'expected features by name, such as {{"user": "alice"}}; got {kind}', "features")
    with error_path("features"):
        _check_returned(features)
    return features


def _check_returned(names: Iterable[str]) -> None:
    for name in names:
        if not _is_returnable(name):
            raise ConfigError(f"the function cannot return {name!r}, which is read from the request")


def _is_returnable(name: str) -> bool:
    return name not in _REQUEST_FEATURES and ":" not in name


def returned_types(function: Any) -> list[type]:
    """Return the classes that the annotation of a function's result allows; none without one."""
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


def types_in(annotation: Any) -> list[type]:
    """Return the classes that an annotation allows; none for an annotation such as ``Any``.

    >>> types_in(int | None), types_in(Annotated[str, "a name"]), types_in(Any)
    ([<class 'int'>, <class 'NoneType'>], [<class 'str'>], [])
    """
    for name in ("__value__", "__supertype__"):  # of ``type Id = int``, and of ``NewType``
        if (other := getattr(annotation, name, None)) is not None:
            return types_in(other)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in _MANY:
        return [kind for arg in args for kind in types_in(arg)]
    if origin is Annotated:
        return types_in(args[0])
    if origin in _RESULTS:
        return types_in(args[_RESULTS[origin]])
    kind = origin or annotation
    return [kind] if inspect.isclass(kind) and kind is not Any else []
