"""``MemcachedStore``: carries the steps of a call out, blocking or awaiting, within its time.

The flows decide what is asked of the servers, and know no I/O; sockets and links do the asking, and know no states.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from operator import attrgetter
from typing import Final, TypeVar, cast

from ...clock import Clock
from ...decision import Correction, Decision, Hit
from ...errors import ConfigError, StoreError
from ..base import Store
from .batch import Line
from .batched_try import Request, tried
from .client.aconnection import Links
from .client.connection import Sockets
from .client.protocol import STORED, Replies, Told, Trip, WireError, put
from .client.servers import Ring, Server, servers_in
from .keys import Names
from .steps import RACING, Flow, Pause, Step, Tools, Turn, applied, corrected, forgotten, is_packed, tried_once

__all__ = ["MemcachedStore", "open_address"]

T = TypeVar("T")

_STRIPES: Final = 64
_STATE: Final = 40  # bytes
_GENERATIONS_KNOWN: Final = 10_000


def wall_us() -> int:
    """Microseconds since 1970 by the wall clock, which is what machines that share a server can agree on."""
    return time.time_ns() // 1000


class Loop:
    """What belongs to one event loop: its connections, and who goes when at which keys."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self.links = Links(loop, patience)
        self.turns = [asyncio.Lock() for _ in range(_STRIPES)]
        self.lines: dict[frozenset[Server], Line] = {}


class MemcachedStore(Store):
    """States in one or several Memcached servers that all processes share.

    ``servers`` is a text such as ``"10.0.0.1:11211,10.0.0.2:11211"``; ``prefix`` starts every name; no call takes
    longer than ``timeout_us``. The clocks of all clients have to agree: without a given time, ``clock`` decides.
    """

    def __init__(
        self,
        servers: str | Sequence[Server],
        prefix: str = "rl:",
        timeout_us: int = 50_000,
        clock: Clock = wall_us,
    ) -> None:
        if type(timeout_us) is not int or timeout_us < 1:
            raise ConfigError(f"timeout_us is a whole number of microseconds from 1 on; got {timeout_us!r}")
        self._ring = Ring(servers_in(servers) if isinstance(servers, str) else servers)
        self._names = Names(prefix)
        self._timeout = timeout_us / 1_000_000
        self._clock = clock
        self._generations: dict[bytes, bytes] = {}
        self._sockets = Sockets()
        self._turns = [threading.Lock() for _ in range(_STRIPES)]
        self._loops: dict[asyncio.AbstractEventLoop, Loop] = {}

    # -- blocking ------------------------------------------------------------------------------------------

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        due = time.monotonic() + self._timeout
        return self._run(applied(hits, now, consume, self._tools(due)), due) if hits else []

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        due = time.monotonic() + self._timeout
        return self._run(corrected(changes, now, self._tools(due)), due)

    def forget(self, keys: Iterable[str]) -> None:
        due = time.monotonic() + self._timeout
        self._run(forgotten(keys, self._tools(due)), due)

    def ping(self) -> None:
        payloads, replies = self._greetings()
        try:
            self._sockets.exchange(payloads, replies, time.monotonic() + self._timeout)
            _check(replies)
        except Exception as error:
            raise problem(error) from error

    def close(self) -> None:
        self._sockets.close()

    def _run(self, flow: Flow[T], due: float) -> T:
        try:
            with ExitStack() as turns:
                step = next(flow)
                while True:
                    step = flow.send(self._carry_out(step, due, turns))
        except StopIteration as done:
            return cast(T, done.value)
        except TimeoutError as error:
            return _out_of_time(flow, error)
        except Exception as error:
            raise problem(error) from error

    def _carry_out(self, step: Step, due: float, turns: ExitStack) -> list[Told]:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return []
        if isinstance(step, Turn):
            last = due - (1 - RACING) * self._timeout
            for turn in (self._turns[stripe] for stripe in _stripes(step)):
                if not turn.acquire(timeout=max(0, last - time.monotonic())):
                    break
                turns.callback(turn.release)
            return []
        trip = Trip(step, self._ring.place)
        self._sockets.exchange(trip.payloads, trip.replies, due)
        return trip.told()

    # -- awaitable -----------------------------------------------------------------------------------------

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        due = time.monotonic() + self._timeout
        tools = self._tools(due)
        if hits and consume and all(is_packed(hit.limit) for hit in hits):
            return await self._shared(hits, now, tools, due)
        return await self._arun(applied(hits, now, consume, tools), due) if hits else []

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        due = time.monotonic() + self._timeout
        return await self._arun(corrected(changes, now, self._tools(due)), due)

    async def aforget(self, keys: Iterable[str]) -> None:
        due = time.monotonic() + self._timeout
        await self._arun(forgotten(keys, self._tools(due)), due)

    async def aping(self) -> None:
        payloads, replies = self._greetings()
        try:
            async with asyncio.timeout(self._timeout):
                await self._loop().links.exchange(payloads, replies)
            _check(replies)
        except Exception as error:
            raise problem(error) from error

    async def aclose(self) -> None:
        mine = self._loops.pop(asyncio.get_running_loop(), None)
        if mine is not None:
            mine.links.close()
        self.close()

    async def _shared(self, hits: Sequence[Hit], now: int | None, tools: Tools, due: float) -> list[Decision]:
        """Decide at once where nobody is at these keys, else together with those who wait, too."""
        tokens = [self._names.token(hit.key) for hit in hits]
        line = self._line(tokens)
        request = Request(hits, tokens, now, tools, due, due - (1 - RACING) * self._timeout)
        if line.enter(tokens):
            try:
                decisions, stands = await self._arun(tried_once(hits, now, True, tools), due)
            finally:
                line.leave(tokens)
            if stands:
                return decisions
            request.loses(decisions)
            request.longest = time.monotonic() - due + self._timeout
        try:
            return await line.decided(request)
        except Exception as error:
            raise problem(error) from error

    def _line(self, tokens: Sequence[bytes]) -> Line:
        """Where requests for some servers wait."""
        lines, places = self._loop().lines, frozenset(map(self._ring.place, tokens))
        line = lines.get(places)
        if line is None:
            for unused in [each for each in lines if lines[each].idle]:
                lines.pop(unused)
            line = lines[places] = Line(self._tried)
        return line

    async def _tried(self, requests: Sequence[Request]) -> None:
        """Try once, in the time of the one who has most."""
        latest = max(requests, key=attrgetter("due"))
        await self._arun(tried(requests, latest.tools), latest.due)

    async def _arun(self, flow: Flow[T], due: float) -> T:
        loop = self._loop()
        try:
            async with asyncio.timeout(due - time.monotonic()), AsyncExitStack() as turns:
                step = next(flow)
                while True:
                    step = flow.send(await self._acarry_out(step, due, loop, turns))
        except StopIteration as done:
            return cast(T, done.value)
        except TimeoutError as error:
            return _out_of_time(flow, error)
        except Exception as error:
            raise problem(error) from error

    async def _acarry_out(self, step: Step, due: float, loop: Loop, turns: AsyncExitStack) -> list[Told]:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return []
        if isinstance(step, Turn):
            with suppress(TimeoutError):
                async with asyncio.timeout(due - (1 - RACING) * self._timeout - time.monotonic()):
                    for stripe in _stripes(step):
                        await turns.enter_async_context(loop.turns[stripe])
            return []
        trip = Trip(step, self._ring.place)
        await loop.links.exchange(trip.payloads, trip.replies)
        return trip.told()

    def _loop(self) -> Loop:
        running = asyncio.get_running_loop()
        mine = self._loops.get(running)
        if mine is None:
            for ended in [each for each in list(self._loops) if each.is_closed()]:
                self._loops.pop(ended, None)
            mine = self._loops[running] = Loop(running, self._timeout)
        return mine

    # -- both ----------------------------------------------------------------------------------------------

    def _tools(self, due: float) -> Tools:
        if len(self._generations) > _GENERATIONS_KNOWN:
            self._generations.clear()  # they are read again
        started = due - self._timeout
        return Tools(
            self._names,
            self._clock,
            lambda: (time.monotonic() - started) / self._timeout,
            self._generations,
        )

    def _greetings(self) -> tuple[dict[Server, bytes], dict[Server, Replies]]:
        """A write to each server, as large as a state: one that is full answers all else."""
        servers = self._ring.servers
        payload = put(self._names.ping(), bytes(_STATE), 1)
        return dict.fromkeys(servers, payload), {server: Replies(1, reads=False) for server in servers}


def _stripes(turn: Turn) -> list[int]:
    """The locks for some keys, in the one order that everybody takes them in."""
    return sorted({hash(token) % _STRIPES for token in turn.tokens})


def _check(replies: Mapping[Server, Replies]) -> None:
    """``WireError`` unless each server has taken it."""
    for (line,) in (told.lines for told in replies.values()):
        if line != STORED:
            raise WireError(f"an answer that the protocol does not know: {line[:40]!r}")


def _out_of_time(flow: Flow[T], error: TimeoutError) -> T:
    """What a call comes to whose next step was not answered in time, or not even asked for."""
    try:
        flow.throw(error)
    except StopIteration as done:
        return cast(T, done.value)
    except TimeoutError:
        pass
    raise problem(error) from error


def problem(error: Exception) -> StoreError:
    """Whatever was raised on the way to the server or back, as the one error of this package."""
    if isinstance(error, TimeoutError):
        return StoreError("Memcached did not answer within its time budget")
    if isinstance(error, WireError):
        return StoreError(f"Memcached answered: {error}")
    return StoreError(f"Memcached: {type(error).__name__}: {error}")


def open_address(parsed: tuple[tuple[Server, ...], str], timeout_us: int) -> MemcachedStore:
    """The store at an address that was read."""
    return MemcachedStore(*parsed, timeout_us)
