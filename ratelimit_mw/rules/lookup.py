"""Limits that a function returns for values of a request. The result is checked, and kept for ``limits_ttl``.

Where limits are not known, a rule returns the ``LimitsCall`` that has to be made first. ``find_limits`` makes the
calls, and asks again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from inspect import Parameter, isawaitable, iscoroutine, signature
from itertools import chain, takewhile
from traceback import extract_tb
from typing import Any, Final, NamedTuple, TypeVar

from ..clock import SECOND, Clock, monotonic
from ..decision import Limit
from ..errors import ConfigError
from ..keys.features import BUILT_IN, Features
from ..keys.parts import MAX_VALUE, Part, part_of
from ..runtime.blocking import Call, PerLoop, is_on_event_loop, run_once
from .declaration import checked_call, is_async

Result = TypeVar("Result")
_Limits = tuple[Limit, ...]

_MAX_VALUES: Final = 10_000
_RETRY: Final = SECOND
"""How long a result stays after an error, and while one request renews it, in microseconds."""
_MAX_CALL: Final = 5.0  # seconds that a request waits for a call
_LOG_EVERY: Final = 60.0  # seconds
_THREADS: Final = 40  # of one event loop; each client that is new would start another one
_turns: Final = PerLoop(partial(asyncio.Semaphore, _THREADS))
_MUST_AWAIT: Final = (
    "the function is async, and code that is not async cannot await it on an event loop. Make this code async: an async"
    " helper, await check(...), or await limiter.ahit(...). Or pass a function that is not async"
)
UNLIMITED: Final = "unlimited"
"""The result of a function for a client without limits. No empty result of a query can mean this by mistake."""
_log = logging.getLogger("ratelimit_mw")


class Lookups:
    """The limits that functions have returned for one request, at the time ``now`` of its ``clock``."""

    __slots__ = ("clock", "known", "now")

    def __init__(self, clock: Clock) -> None:
        self.clock, self.now = clock, clock()
        self.known: dict[LimitsLookup, _Limits | None] = {}


class _Known(NamedTuple):
    """The limits of one value, None without any, and the time until which they are not looked up again."""

    limits: _Limits | None
    until: int


class LimitsLookup:
    """The function of a rule, and its results, which are kept for some microseconds: two generations of values.

    ``values`` returns what the function is passed, and ``parse`` the limits of its result.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        values: Callable[[Features], Sequence[Any]],
        parse: Callable[[Any], _Limits],
        kept_us: int,
        name: str,
    ) -> None:
        self.function, self.values, self.parse = function, values, parse
        self.is_async, self.kept_us, self.name = is_async(function), kept_us, f"{name}: limits"
        self._young: dict[object, _Known] = {}
        self._old: dict[object, _Known] = {}
        self._logs_at = 0.0

    def find(self, values: Sequence[Any], lookups: Lookups) -> _Limits | LimitsCall | None:
        """Return the limits of the values, None when the function failed, or the call that has to be made first."""
        key, now = tuple(map(_cached_as, values)), lookups.now
        known = self._young.get(key) or self._old.get(key)
        if known is None or not now < known.until <= now + max(self.kept_us, _RETRY):  # a clock may be turned back
            if known is not None:  # other requests neither wait nor call
                self.keep(key, known.limits, now + _RETRY)
            return LimitsCall(self, key, values, lookups.clock, known and known.limits)
        lookups.known[self] = known.limits
        return known.limits

    def keep(self, key: object, limits: _Limits | None, until: int) -> None:
        if len(self._young) >= _MAX_VALUES // 2:
            self._old, self._young = self._young, {}
        self._young[key] = _Known(limits, until)

    def log(self, error: Exception) -> None:
        """Log that the function has failed, at most once a minute."""
        if (now := monotonic()) >= self._logs_at:
            self._logs_at = now + _LOG_EVERY
            effect = "The last limits of a client stay in effect. Without any, its requests are rejected with 503"
            _log.error("%s: no limits from the function (%s). %s", self.name, _reason(error), effect)


@dataclass(frozen=True, slots=True, eq=False)
class LimitsCall:
    """One call of the function of a rule. ``last`` are the limits of the values until now.

    On an event loop, it has ``_MAX_CALL`` to return. A function that is not async cannot be stopped: without an event
    loop, it holds the request that makes the call.
    """

    lookup: LimitsLookup
    key: object
    values: Sequence[Any]
    clock: Clock
    last: _Limits | None

    def result(self) -> _Limits | None:
        """Call the function, and return the limits."""
        if self.lookup.is_async and is_on_event_loop():
            raise ConfigError(_MUST_AWAIT, of=self.lookup.name)
        try:
            result = self.lookup.function(*self.values)
            return self._keep(_run_alone(result) if isawaitable(result) else result)
        except Exception as error:
            return self._keep_last(error)

    async def aresult(self) -> _Limits | None:
        """Async form of ``result``."""
        try:
            return self._keep(await asyncio.wait_for(self._await_result(), _MAX_CALL))
        except Exception as error:
            return self._keep_last(error)

    async def _await_result(self) -> Any:
        """Return the result of the function. One that is not async runs in a thread: it may block the event loop."""
        if self.lookup.is_async:
            return await self.lookup.function(*self.values)
        call = partial(copy_context().run, self.lookup.function, *self.values)
        async with _turns.get():
            result = await asyncio.wrap_future(run_once(call, call))
        return await result if isawaitable(result) else result

    def _keep(self, result: object) -> _Limits:
        """Keep the limits from the end of the call on."""
        limits = self.lookup.parse(result)
        self.lookup.keep(self.key, limits, self.clock() + self.lookup.kept_us)
        return limits

    def _keep_last(self, error: Exception) -> _Limits | None:
        """Keep the last limits for a moment, so that not every request calls a function that fails."""
        self.lookup.keep(self.key, self.last, self.clock() + _RETRY)
        self.lookup.log(error)
        return self.last


def function_of(
    limits: object, entries: Sequence[tuple[Part, ...]], parts: Iterable[str]
) -> tuple[Callable[..., Any] | None, Sequence[tuple[Part, ...]]]:
    """Return the function that limits come from, and the parts that it is passed. None for other limits.

    ``{part: function}`` names the part. A function without a table is passed the parts that its parameters name. If a
    name is neither a built-in feature nor a part of the rule, it is passed the entries of the key.

    >>> key = [(part_of("ip"),)]
    >>> function_of(lambda plan: "5/minute", key, [])[1], function_of(lambda value: "5/minute", key, [])[1]
    ([('plan',)], [('ip',)])
    """
    if isinstance(limits, Mapping):
        if len(limits) != 1:
            raise ConfigError('expected one feature and a function of its value, such as {"plan": limits_of_plan}')
        ((name, function),) = limits.items()
        return checked_call(function, value_of([name])), [(part_of(name, in_key=False),)]
    if not callable(limits):
        return None, []
    known = {_parameter_of(part): part for part in map(part_of, (*BUILT_IN, *parts, *chain(*entries)))}
    required, optional = _parameters(limits)
    if all(name in known for name in required):
        names = [*required, *takewhile(known.__contains__, optional)]
        entries = [(known[name],) for name in names] or entries
    return checked_call(limits, *map(value_of, entries)), entries


def unread_names(limits: object, passed: Sequence[tuple[Part, ...]]) -> set[str]:
    """Return the names of the parameters of a function that are not the names of the parts that it is passed."""
    names = _parameters(limits)[0] if callable(limits) else ()
    return {*names} - {*map(_parameter_of, chain(*passed))}


def _parameter_of(part: Part) -> str:
    return re.sub(r"\W", "_", part.feature)


def value_of(names: Iterable[str]) -> str:
    """Return what a function is passed, in words."""
    return f"the value of {'|'.join(map(str, names))!r}"


def _parameters(function: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """Return the names of the parameters that need a value, and of the others; none without a signature."""
    try:
        parameters = signature(function).parameters.values()
    except ValueError:  # some functions written in C
        return [], []
    named = [each for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    required = [each.name for each in named if each.default is Parameter.empty]
    return required, [each.name for each in named if each.default is not Parameter.empty]


async def find_limits(call: Call, find: Callable[[Lookups], Result | LimitsCall], clock: Clock) -> Result:
    """Return the result of a search, after the calls of functions that it needs."""
    lookups = Lookups(clock)
    while isinstance(result := find(lookups), LimitsCall):
        lookups.known[result.lookup] = await call(result, "result")
    return result


def _run_alone(result: Any) -> Any:
    """Await a result in an event loop of its own."""
    if not is_on_event_loop():
        return asyncio.run(asyncio.wait_for(result, _MAX_CALL))
    if iscoroutine(result):
        result.close()
    raise ConfigError(_MUST_AWAIT)


def _cached_as(value: Any) -> object:
    """Return a value, or the digest of a long text, with its type: ``1`` equals ``True``, but has other limits."""
    if isinstance(value, str | bytes) and len(value) > MAX_VALUE:
        text = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        return type(value), blake2b(text, digest_size=16).digest()
    return type(value), value


def _reason(error: Exception) -> str:
    """Return the problem without the text of other errors, which may hold personal data."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "it takes too long"
    frames = (frame for frame in extract_tb(error.__traceback__) if frame.filename != __file__)
    place = next((f" at {frame.filename}:{frame.lineno}" for frame in frames), "")
    return f"{type(error).__name__}{place}"
