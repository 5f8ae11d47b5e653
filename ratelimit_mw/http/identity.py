"""One function of yours that returns several features, called once per request: ``features=identify``."""

from __future__ import annotations

import asyncio
import difflib
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from ..errors import ConfigError, FeatureTypeError
from ..keys.annotations import returned_types
from .request import Request

Read = Callable[[Request], Any]

_OF_REQUEST: Final = ("ip", "endpoint", "method", "path", "host", "scope")
_SIMILAR: Final = 0.75


class Identify:
    """Reads the features that your function returns. Others are read as if there were no function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        kinds = [kind for kind in returned_types(function) if kind is not type(None)]
        if wrong := [kind.__name__ for kind in kinds if not issubclass(kind, Mapping)]:
            raise ConfigError(f"expected a function that returns features by name; got one that returns {wrong[0]}")
        self._declared = {name for kind in kinds for name in getattr(kind, "__annotations__", ())}

    @staticmethod
    def may_return(name: str) -> bool:
        """Return whether your function may return a feature. Those of the request itself are read by the package."""
        return name not in _OF_REQUEST and ":" not in name

    def reader(self, name: str, otherwise: Read | None, names: Collection[str]) -> Read:
        """Return the function that reads a feature. ``otherwise`` reads it where your function does not return it.

        ``names`` are all features that rules need. Raises ``ConfigError`` for a name that the annotation lacks.
        """
        if otherwise is None and self._declared and name not in self._declared:
            raise _missing(name, self._declared)

        def pick(features: Mapping[str, Any], request: Request) -> Any:
            if name in features:
                return features[name]
            if otherwise is not None:
                return otherwise(request)
            if difflib.get_close_matches(name, features.keys() - names, 1, _SIMILAR):
                raise _missing(name, features)
            return None

        async def apick(call: _IdentifyCall, request: Request) -> Any:
            holder = request.first or request
            async with call.lock:
                await call.end(holder)
            value = read(request)
            return await value if inspect.isawaitable(value) else value

        def read(request: Request) -> Any:
            holder = request.first or request
            if holder.identified is None:
                features = self._function(request.own)
                holder.identified = _IdentifyCall(features) if inspect.isawaitable(features) else _checked(features)
            features = holder.identified
            return (apick if isinstance(features, _IdentifyCall) else pick)(features, request)

        return read


class _IdentifyCall:
    """A call of your async function. Its features, and checks at the same time, wait for the same result."""

    def __init__(self, result: Awaitable[Any]) -> None:
        self.result = result
        self.lock = asyncio.Lock()

    async def end(self, holder: Request) -> None:
        """Wait for the result, and keep it. After an error, the next one calls the function again."""
        if holder.identified is not self:
            return
        features = None
        try:
            features = _checked(await self.result)
        finally:
            holder.identified = features


def _checked(features: Any) -> Mapping[str, Any]:
    """Return what your function has returned; None means that nothing is known."""
    if features is None:
        return {}
    if not isinstance(features, Mapping):
        kind = type(features).__name__
        raise FeatureTypeError(f'expected features by name, such as {{"user": "alice"}}; got {kind}', "features")
    for name in features:
        if not Identify.may_return(name):
            raise ConfigError(f"the function cannot return {name!r}, which is read from the request", "features")
    return features


def _missing(name: str, returned: Collection[str]) -> ConfigError:
    known = ", ".join(sorted(map(repr, returned)))
    return ConfigError(f"a rule uses the feature {name!r}, and the function returns {known}", "features")
