"""One function of yours that returns several features, called once per request: ``features=identify``."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from ..errors import ConfigError, FeatureTypeError, error_path
from .annotations import returned_types
from .request import Request

Read = Callable[[Request], Any]

_OF_REQUEST: Final = ("ip", "endpoint", "method", "path", "host", "scope")
_SIMILAR: Final = 0.75
_log = logging.getLogger("ratelimit_mw")


class Identify:
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
        _check_names(self.declared)

    def may_return(self, name: str) -> bool:
        """Return whether your function may return a feature. Those of the request itself are read by the package."""
        return name in self.declared if self.declared else _is_own(name)

    def reader(self, name: str, otherwise: Read | None) -> Read:
        """Return the function that reads a feature. ``otherwise`` reads it where your function does not return it."""

        def pick(features: Mapping[str, Any], request: Request) -> Any:
            if name in features:
                return features[name]
            _note_similar(name, tuple(features))
            return None if otherwise is None else otherwise(request)

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
    with error_path("features"):
        _check_names(features)
    return features


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if not _is_own(name):
            raise ConfigError(f"the function cannot return {name!r}, which is read from the request")


def _is_own(name: str) -> bool:
    return name not in _OF_REQUEST and ":" not in name


@lru_cache(1024)
def _note_similar(name: str, returned: tuple[str, ...]) -> None:
    """Log a warning for a feature that the function returns under a similar name, once for each set of names."""
    for other in difflib.get_close_matches(name, returned, 1, _SIMILAR):
        _log.warning("the function of features returns %r, but a rule uses %r. If one is a typo, fix it", other, name)
