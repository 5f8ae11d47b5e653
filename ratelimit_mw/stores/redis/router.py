"""Calls to the servers of a store: the map of their slots, redirects, and servers that fail.

Blocking calls and event loops share the code, and so do one server, Sentinel and Cluster. A call is sent again only if
no server has run it: after NOSCRIPT, a redirect or a failed connect. Replicas are asked for the map only.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any, Final

from hiredis import pack_command
from redis import ResponseError

from ...clock import monotonic
from ...errors import RateLimitError
from ...runtime.blocking import run_blocking
from ..base import Facts
from ..drivers import Driver, LoopDriver
from ..servers import Server
from ..wire import NotConnectedError
from .address import Address
from .batch import Batcher, Commands
from .call import RedisCall, commands_of, frame_of, receive
from .errors import NotRunError, as_store_error, error_code, is_unwell, timed_out
from .login import log_in
from .slot_map import NO_SERVER, SlotMap

Calls = dict[Server, list[RedisCall]]
_MAX_HOPS: Final = 6
_MAP_INTERVAL: Final = 0.1  # seconds from one read of the map to the next: a redirect corrects the map for its slot
_UNKNOWN: Final = "Redis: no known server of the cluster has the slot of a key"
_ENDLESS: Final = (
    f"Redis: the servers of the cluster redirect to each other after {_MAX_HOPS} redirects."
    " Check remap, or wait until the cluster agrees"
)
_FACTS_SECONDS: Final = 1.5
_FIELD: Final = re.compile(r"^(\w+):(.*?)\r?$", re.MULTILINE)


class Sender:
    """Sends the calls of threads to one server, over a channel."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    async def ask(self, calls: tuple[RedisCall], deadline: float) -> None:
        """Send a call and wait for its result. It may raise the error of the connection."""
        (reply,) = await (await self.channel.send(frame_of(calls), 1, deadline))
        receive(calls, reply)

    def send(self, calls: Sequence[RedisCall], deadline: float) -> Awaitable[None]:
        """Send calls, and let the caller wait for their results. Both may raise the error of the connection."""
        commands = commands_of(calls)
        frame = b"".join(map(frame_of, commands))
        return _receive(commands, run_blocking(self.channel.send(frame, len(commands), deadline)))

    def close(self) -> None:
        self.channel.close()


class Router:
    """Sends each call to the server that has its slot."""

    def __init__(self, address: Address, driver: Driver) -> None:
        self._address = address
        self.driver = driver
        self.clock = driver.clock
        self.map = SlotMap(address)
        self._senders: dict[Server, Sender | Batcher] = {}
        """The connections to each server, opened when a call needs them."""
        self._reading: Future[bool] | None = None
        """Whether a call that reads the map was cancelled. Done when it has ended."""
        self._next_read = 0.0
        self._failure = str(timed_out())
        """The reason why there is no map yet."""

    async def ask(self, call: RedisCall, deadline: float) -> Any:
        """Return the result of a call. Raises ``StoreError``."""
        location = self.map.owners[call.slot]
        sender = self._senders.get(location)
        if sender is None or self.map.is_stale:
            await self.ask_each((call,), deadline)
        else:  # as a rule, and quicker
            try:
                await sender.ask((call,), deadline)
            except Exception as error:
                call.result = error
            if isinstance(call.result, Exception):
                await self._follow(await self._settle({location: [call]}, deadline), deadline)
        if isinstance(call.result, Exception):
            raise call.take_error()
        return call.result

    async def ask_each(self, calls: Sequence[RedisCall], deadline: float) -> None:
        """Give each call its result, or its error. All go out at once, those of one server together."""
        slots, left = self.map, Calls()
        if slots.is_stale or not slots.is_known:
            await self._refresh(deadline, waits=not slots.is_known)
        for each in calls:
            left.setdefault(slots.owners[each.slot], []).append(each)
        await self._follow(left, deadline)

    async def command(self, location: Server, deadline: float, *command: Any) -> Any:
        """Return the reply of one server to a command. Raises any error."""
        (reply,) = await (await self._sender(location).channel.send(pack_command(command), 1, deadline))
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def primaries(self, deadline: float) -> list[Server]:
        """Return the servers that have slots, always in one order."""
        if self.map.is_stale:
            self._next_read = 0.0  # at once
        await self._refresh(deadline)
        if not self.map.is_known:
            raise NotRunError(self._failure)
        return sorted(self.map.primaries)

    def close(self) -> None:
        """Close the connections."""
        for sender in list(self._senders.values()):
            sender.close()

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _follow(self, left: Calls, deadline: float) -> None:
        """Send calls to their servers, and then to those that these redirect to."""
        for _ in range(_MAX_HOPS):
            if not left:
                return
            left = await self._send(left, deadline)
        for call in [each for calls in left.values() for each in calls]:
            call.fail(NotRunError(_ENDLESS))

    async def _send(self, calls: Calls, deadline: float) -> Calls:
        """Send calls, then await all replies. Return those that are left. A server that fails fails its own only."""
        flights: list[tuple[list[RedisCall], Awaitable[None]]] = []
        for location, sent in calls.items():
            try:
                flights.append((sent, self._sender(location).send(sent, deadline)))
            except Exception as error:
                _fail_all(sent, error)
        for sent, flight in flights:
            try:
                await flight
            except Exception as error:
                _fail_all(sent, error)
        return await self._settle(calls, deadline)

    async def _settle(self, calls: Calls, deadline: float) -> Calls:
        """Return the calls that have to go out again, by server. The others have their results."""
        left = Calls()
        failed = [(call, at) for at, sent in calls.items() for call in sent if isinstance(call.result, Exception)]
        if unsent := [at for call, at in failed if isinstance(call.result, NotRunError) and at is not NO_SERVER]:
            for location in unsent:
                self.map.mark_silent(location)
            await self._refresh(deadline)
        for call, location in failed:
            try:
                self._redirect(call, location, left)
            except Exception as error:  # of the remap of the application
                call.fail(NotRunError(f"Redis: remap: {type(error).__name__}: {error}"))
        return left

    def _redirect(self, call: RedisCall, source: Server, left: Calls) -> None:
        """Let a call go to another server, or go with its script or alone, unless its error is its result."""
        error, owner, again = call.result, self.map.owners[call.slot], [call]
        code = error_code(error) if isinstance(error, ResponseError) else ""
        if code == "NOSCRIPT":
            call.has_text = True
            source = owner  # which sends an ASK again
        elif code in ("MOVED", "ASK") and self._address.cluster:
            source = self.map.redirect(error, source, call.slot)
            if code == "ASK":
                call.is_alone = True
                again = [RedisCall(b"ASKING", (), (), call.slot), call]
        elif code == "TRYAGAIN" and not call.is_alone:
            call.is_alone = True
        elif isinstance(error, NotRunError | NotConnectedError) and owner not in (source, NO_SERVER):
            source = owner
        else:
            if is_unwell(error) or not (code or isinstance(error, RateLimitError)):
                self.map.mark_silent(source)  # another server may have its slots
            if is_unwell(error) and not self._address.cluster and (sender := self._senders.get(source)):
                sender.close()
            call.fail(error)
            return
        left.setdefault(source, []).extend(again)

    # -- the map -------------------------------------------------------------------------------------------------------

    async def _refresh(self, deadline: float, waits: bool = True) -> None:
        """Read the map if it is missing or stale, once in an interval. ``waits``: or let another call read it."""
        slots = self.map
        while waits and self._reading is not None and not self._reading.done():
            try:
                was_cancelled = await self.driver.result(self._reading, deadline)
            except TimeoutError:
                return
            if not was_cancelled:
                return
        if monotonic() < self._next_read or self.clock.now >= deadline or (slots.is_known and not slots.is_stale):
            return
        self._next_read = monotonic() + (_MAP_INTERVAL if self._address.cluster else 0)
        self._reading, slots.is_stale = Future(), False
        reading, was_cancelled = self._reading, True
        try:
            await self._read_map(deadline)
            was_cancelled = False
        finally:
            if was_cancelled:
                slots.is_stale, self._next_read = True, 0.0
            reading.set_result(was_cancelled)
        for location in set(self._senders).difference(slots.servers()):
            if sender := self._senders.pop(location, None):  # another thread may have taken it
                sender.close()

    async def _read_map(self, deadline: float) -> None:
        """Ask one server after another for the map. Without a reply, the old map stays in use."""
        for location in self.map.sources():
            if (now := self.clock.now) >= deadline:
                break
            until = now + (deadline - now) / 2  # leaves time for another server
            try:
                self.map.load(await self.command(location, until, *self.map.question), location)
                return
            except Exception as error:
                self.map.mark_silent(location)
                self._failure = str(as_store_error(error))
        if self._address.service:
            self._failure = f"no sentinel knows the primary of {self._address.service!r}: {self._failure}"
            self.map.forget_primary()

    # -- servers -------------------------------------------------------------------------------------------------------

    def add(self, location: Server, channel: Any) -> Sender | Batcher:
        """Let calls to a server go over a channel."""
        sender: Sender | Batcher = Sender(channel)
        if isinstance(self.driver, LoopDriver):
            sender = Batcher(channel, self.driver.clock, self._address.cluster)
        return self._senders.setdefault(location, sender)  # another thread may have opened one

    def _sender(self, location: Server) -> Sender | Batcher:
        if location is NO_SERVER:
            raise NotRunError(_UNKNOWN if self.map.is_known else self._failure)
        return self._senders.get(location) or self.add(location, self.driver.channel(partial(self._connect, location)))

    async def _connect(self, location: Server, deadline: float) -> Any:
        address = self._address
        if address.service and location in address.hosts:
            address = address.sentinels
        try:
            return await log_in(self.driver, address, location, deadline)
        except TimeoutError as error:  # a silent server leaves no time for another one
            raise NotConnectedError from error
        except Exception as error:
            raise NotRunError(str(as_store_error(error))) from error

    def facts(self) -> Iterator[Facts]:
        """Yield the facts of sentinels, of each known server by INFO, and of a cluster. Blocking."""
        address = self._address
        for location in address.hosts if address.service else ():
            yield self._facts_of("sentinel", location, *self.map.question)
        for location in sorted(self.map.servers() if address.service else self.map.sources()):
            is_replica = self.map.is_known and location not in self.map.primaries  # unknown without a map
            yield self._facts_of("replica" if is_replica else "redis", location)
        if address.cluster:
            found = (self._facts_of("cluster", each, b"CLUSTER", b"INFO") for each in sorted(self.map.sources()))
            yield from islice((facts for facts in found if facts.values), 1)

    def _facts_of(self, kind: str, location: Server, *command: bytes) -> Facts:
        reply = self.command(location, self.clock.now + _FACTS_SECONDS, *(command or (b"INFO",)))
        try:
            return Facts(kind, str(location), values_of(run_blocking(reply)))
        except Exception as error:
            return Facts(kind, str(location), {}, str(as_store_error(error)))


def _fail_all(calls: Sequence[RedisCall], error: Exception) -> None:
    for each in calls:
        each.result = error


def values_of(reply: Any) -> dict[str, str]:
    """Return the values in a reply: lines of text, or names and values in turn."""
    if isinstance(reply, bytes):
        return dict(_FIELD.findall(reply.decode("utf-8", "replace")))
    texts = [each.decode("utf-8", "replace") for each in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))


async def _receive(commands: Commands, flight: Awaitable[Sequence[Any]]) -> None:
    for calls, reply in zip(commands, await flight, strict=True):
        receive(calls, reply)
