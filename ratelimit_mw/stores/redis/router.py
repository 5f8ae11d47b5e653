"""Calls to the servers of a store: the map of their slots, redirects, and servers that fail.

Blocking calls and event loops share the code, and so do one server, Sentinel and Cluster. A call is sent again only if
no server has run it: after NOSCRIPT, a redirect or a failed connect. Replicas are asked for the map only.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

from hiredis import pack_command
from redis import ResponseError

from ...clock import monotonic
from ...errors import ConfigError
from ..base import Facts
from ..blocking import run_blocking
from ..servers import Server
from ..ways import Channel, Way
from ..wire import LoopConnection
from .address import Address
from .call import Call, SharedCall, calls_of
from .errors import NotRunError, as_store_error, error_code
from .login import log_in
from .slot_map import SlotMap

Calls = dict[Server | None, list[Call]]
_ASKING: Final = Call(b"ASKING", (), (), 0)
"""Goes before a call that an ASK has redirected. Nothing waits for its result."""
_MOST_HOPS: Final = 6
_MAP_INTERVAL: Final = 0.1  # seconds from one read of the map to the next: a redirect corrects the map for its slot
_UNWELL: Final = {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"}
"""Replies of a server that may have lost its slots to another one, and that may not know it."""
_UNKNOWN: Final = "Redis: no known server of the cluster has the slot of a key"
_ENDLESS: Final = (
    f"Redis: the servers of the cluster redirect to each other after {_MOST_HOPS} redirects."
    " Check remap, or wait until the cluster agrees"
)
_FACTS_SECONDS: Final = 1.5
_FIELD: Final = re.compile(r"^(\w+):(.*?)\r?$", re.MULTILINE)


class Router:
    """Sends each call to the server that has its slot. ``connect`` connects to one of the servers until a deadline."""

    def __init__(
        self, address: Address, way: Way, connect: Callable[[Way, Address, Server, float], Awaitable[Any]] = log_in
    ) -> None:
        self._address = address
        self._log_in = connect
        self.way = way
        self.clock = way.clock
        self.map = SlotMap(address)
        self.channels: dict[Server, Channel] = {}
        """The connections to each server, opened when a call needs them."""
        self._next_read = 0.0
        self._failure = ""
        """The reason why there is no map yet."""

    @property
    def router(self) -> Router:
        """This router, which ``Batches`` of an event loop have as well."""
        return self

    async def ask(self, call: Call, deadline: float) -> Any:
        """Return the result of a call. Raises ``StoreError``."""
        location = self.map.owners[call.slot]
        if location not in self.channels or self.map.is_stale:
            await self.ask_each((call,), deadline)
        else:  # as a rule, and quicker
            await self._ask_at(location, call, deadline)
        if isinstance(call.result, Exception):
            raise call.result
        return call.result

    async def _ask_at(self, location: Server, call: Call, deadline: float) -> None:
        """Give a call its result, from a server that was asked before."""
        try:
            (reply,) = await (await self.channels[location].send(call.frame, 1, deadline))
            if isinstance(reply, ResponseError):
                left: Calls = {}
                self._redirect(call, reply, location, left)
                await self.follow(left, deadline)
            else:
                call.receive(reply)
        except NotRunError:  # no connection, so it was not sent
            self.map.mark_silent(location)
            await self.ask_each((call,), deadline)
        except Exception as error:
            self.fail((call,), error, location)

    async def ask_each(self, calls: Sequence[Call], deadline: float) -> None:
        """Give each call its result, or its error. All go out at once, those of one server together."""
        left: Calls = {}
        try:
            if self.map.is_stale or not self.map.is_known:
                await self._refresh(deadline)
        except Exception as error:
            fail(calls, error)
            return
        owners = self.map.owners
        for each in calls_of(calls):
            left.setdefault(owners[each.slot], []).append(each)
        await self.follow(left, deadline)

    def connection(self, location: Server | None) -> LoopConnection | None:
        """Return the open connection of an event loop to a server, unless the map has to be read first."""
        if location is None or self.map.is_stale or not self.map.is_known:
            return None
        channel = self.channels.get(location)
        return None if channel is None else channel.connection

    async def command(self, location: Server, deadline: float, *command: Any) -> Any:
        """Return the reply of one server to a command. Raises any error."""
        (reply,) = await (await self._channel(location).send(pack_command(command), 1, deadline))
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def primaries(self, deadline: float) -> list[Server]:
        """Return the servers that have slots, always in one order."""
        if self.map.is_stale:
            self._next_read = 0.0  # at once
        await self._refresh(deadline)
        return sorted(self.map.primaries)

    def close(self) -> None:
        """Close the connections."""
        for channel in list(self.channels.values()):
            channel.close()

    # -- calls to several servers --------------------------------------------------------------------------------------

    async def follow(self, left: Calls, deadline: float) -> None:
        """Send calls to their servers, and then to those that these redirect to."""
        for _ in range(_MOST_HOPS):
            if not left:
                return
            left = await self._send(left, deadline)
        for calls in left.values():
            fail(calls, NotRunError(_ENDLESS))

    async def _send(self, calls: Calls, deadline: float) -> Calls:
        """Send calls, then await all replies. Return those that are left. A server that fails fails its own only."""
        half = (self.clock.now + deadline) / 2
        flights: list[Any] = []
        unsent: list[tuple[Call, Server, NotRunError]] = []
        left: Calls = {}
        for location, sent in calls.items():
            if location is None:
                self.map.is_stale = True
                fail(sent, NotRunError(_UNKNOWN))
                continue
            try:
                flight = await self._channel(location).send(frame_of(sent), len(sent), deadline)
                flights.append((location, sent, flight))
            except NotRunError as error:
                self.map.mark_silent(location)
                unsent += [(call, location, error) for call in sent if call is not _ASKING]
            except Exception as error:
                self.fail(sent, error, location)
        for location, sent, flight in flights:
            try:
                self.receive(sent, await flight, location, left)
            except Exception as error:
                self.fail(sent, error, location)
        if unsent and self.clock.now <= half:  # otherwise the server was silent, and there is no time left
            with suppress(NotRunError):
                await self._refresh(deadline)
        for call, location, failure in unsent:
            owner = self.map.owners[call.slot]
            if owner is None or owner == location:
                call.fail(failure)
            else:
                left.setdefault(owner, []).append(call)
        return left

    def receive(self, calls: Sequence[Call], replies: Sequence[Any], source: Server, left: Calls) -> None:
        """Give calls the replies of a server. Add those to ``left`` that have to go out again."""
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, ResponseError):
                self._redirect(call, reply, source, left)
            else:
                try:
                    call.receive(reply)
                except Exception as error:  # no reply of this command
                    self.fail((call,), error, source)

    def fail(self, calls: Sequence[Call], error: Exception, location: Server) -> None:
        """Give calls the error of their server. If the server is silent, another server may have its slots."""
        if not isinstance(error, ResponseError):
            self.map.mark_silent(location)
        fail(calls, error)

    def _redirect(self, call: Call, error: ResponseError, source: Server, left: Calls) -> None:
        """Call the server that an error reply names, or send the script."""
        code = error_code(error)
        again: Sequence[Call] = (call,)
        if code == "NOSCRIPT":
            call.has_text = True
            source = self.map.owners[call.slot] or source  # which sends an ASK again
        elif code in ("MOVED", "ASK") and self._address.cluster:
            source = self.map.redirect(error, source, call.slot)
            again = (call,) if code == "MOVED" else (_ASKING, call)
        elif code == "TRYAGAIN" and isinstance(call, SharedCall):
            again = call.items
        else:
            if code in _UNWELL:
                self.map.mark_silent(source)
            call.fail(error)
            return
        left.setdefault(source, []).extend(again)

    # -- the map -------------------------------------------------------------------------------------------------------

    async def _refresh(self, deadline: float) -> None:
        """Read the map if it is missing or stale, once in an interval."""
        slots = self.map
        if slots.is_known and (not slots.is_stale or monotonic() < self._next_read):
            return
        slots.is_stale = False
        if monotonic() >= self._next_read or not (slots.is_known or self._failure):
            self._next_read = monotonic() + (_MAP_INTERVAL if self._address.cluster else 0)
            await self._read_map(deadline)
        if not slots.is_known:
            raise NotRunError(self._failure)
        for location in set(self.channels).difference(slots.servers()):
            if channel := self.channels.pop(location, None):  # another thread may have taken it
                channel.close()

    async def _read_map(self, deadline: float) -> None:
        """Ask one server after another for the map. Without a reply, the old map stays in use."""
        for location in self.map.sources():
            now = self.clock.now
            until = now + (deadline - now) / 2  # leaves time for another server
            try:
                self.map.load(await self.command(location, until, *self.map.question), location)
                return
            except Exception as error:
                self.map.mark_silent(location)
                self._failure = str(as_store_error(error))
            except BaseException:  # the caller was cancelled
                self.map.is_stale = True
                raise
        if self._address.service:
            self._failure = f"no sentinel knows the primary of {self._address.service!r}: {self._failure}"
            self.map.forget_primary()

    # -- servers -------------------------------------------------------------------------------------------------------

    def _channel(self, location: Server) -> Channel:
        channel = self.channels.get(location)
        if channel is None:  # another thread may have opened one
            channel = self.channels.setdefault(location, self.way.channel(partial(self._connect, location)))
        return channel

    async def _connect(self, location: Server, deadline: float) -> Any:
        address = self._address
        if address.service and location in address.hosts:
            address = address.sentinels
        try:
            return await self._log_in(self.way, address, location, deadline)
        except ConfigError:
            raise
        except Exception as error:
            raise NotRunError(str(as_store_error(error))) from error

    def facts(self) -> Iterator[Facts]:
        """Yield the reply of each server to INFO, and then the facts of sentinels and cluster. Blocking."""
        address, kind = self._address, "redis"
        if address.service:
            for location in address.hosts:
                yield self._facts_of("sentinel", location, *self.map.question)
            try:
                self.map.is_stale = True
                run_blocking(self._refresh(self.clock.now + _FACTS_SECONDS))
            except Exception as error:
                yield Facts("primary", address.service, {}, str(as_store_error(error)), False)
        for location in sorted(self.map.servers() if address.service else self.map.sources()):
            is_replica = self.map.is_known and location not in self.map.primaries  # unknown without a map
            yield self._facts_of("replica" if is_replica else kind, location)
        if address.cluster:
            found = (self._facts_of("cluster", each, b"CLUSTER", b"INFO") for each in sorted(self.map.sources()))
            yield from islice((facts for facts in found if facts.values), 1)

    def _facts_of(self, kind: str, location: Server, *command: bytes) -> Facts:
        reply = self.command(location, self.clock.now + _FACTS_SECONDS, *(command or (b"INFO",)))
        try:
            return Facts(kind, str(location), values_of(run_blocking(reply)))
        except Exception as error:
            return Facts(kind, str(location), {}, str(as_store_error(error)), isinstance(error, ResponseError))


def frame_of(calls: Sequence[Call]) -> bytes:
    """Return the bytes of calls."""
    return b"".join([each.frame for each in calls])


def fail(calls: Sequence[Call], error: Exception) -> None:
    for each in calls:
        each.fail(error)


def values_of(reply: Any) -> dict[str, str]:
    """Return the values in a reply: lines of text, or names and values in turn."""
    if isinstance(reply, bytes):
        return dict(_FIELD.findall(reply.decode("utf-8", "replace")))
    texts = [each.decode("utf-8", "replace") for each in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))
