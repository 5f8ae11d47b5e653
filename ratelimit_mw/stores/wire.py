"""Calls to a server over a socket: connect, send, and cut what is received into the replies of each call.

A codec does the cutting: bytes go in by ``feed``, and ``gets`` returns a reply, or ``MORE``. Replies come in the order
of the calls. A ``BlockingChannel`` has a connection for each thread that calls, a ``LoopChannel`` one for all calls of
its event loop. Both work within the time budget of a call, and send nothing twice.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ..forksafe import check_process, run_in_child
from .background import run_once
from .budget import LoopClock, ThreadClock

MORE: Final = object()
"""The value that a codec returns until it has a whole reply."""
_CHUNK: Final = 65_536
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, probes
_NO_HANDSHAKE: Final = "no TLS handshake%s (for a server without TLS, write redis:// or memcached://)"
_MAYBE_TLS: Final = " (for a server with TLS, write rediss:// or memcacheds://)"
_TLS_ALERT: Final = b"\x15\x03"
_LOST: Final = "the connection was lost"
_UNASKED: Final = "the server sent a reply without a command"
_CONNECTING: Final = 0.9
"""The part of the time of a call in which it connects. So nothing was sent, and the reason is known, when it ends."""
_Result = TypeVar("_Result")


class Codec(Protocol):
    def feed(self, data: bytes, /) -> None: ...
    def gets(self) -> Any: ...


class Channel(Protocol):
    """The connections to one server."""

    @property
    def connection(self) -> LoopConnection | None:
        """The open connection, on an event loop."""

    async def send(self, frame: bytes, replies: int, deadline: float) -> Awaitable[list[Any]]:
        """Send the bytes of a call. Return its replies, to be awaited in any case."""
        ...

    def close(self) -> None:
        """Close the idle connections now, and those in use when their calls end."""
        ...


def _until(clock: ThreadClock | LoopClock, deadline: float) -> float:
    return clock.now + (deadline - clock.now) * _CONNECTING


# -- addresses and sockets -----------------------------------------------------------------------------------------


class ResolvedAddress(NamedTuple):
    """One address of a server, as ``socket.connect`` takes it."""

    family: int
    end: Any


class Place(NamedTuple):
    """Where a server is: a host and a port, or the path of a socket; and its encryption."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    path: str = ""

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name the server in an error of connecting. A timeout has a message of its own."""
        try:
            yield
        except TimeoutError:
            raise
        except OSError as error:
            reason = os.strerror(error.errno) if isinstance(error, ConnectionError) and error.errno else error
            host = f"[{self.host}]" if ":" in self.host else self.host
            raise ConnectionError(f"cannot connect to {self.path or f'{host}:{self.port}'}: {reason}") from error


def _resolve(place: Place) -> Future[list[ResolvedAddress]]:
    """Return the addresses of a server. Only a name needs a thread, which all that wait for the name share."""
    done: Future[list[ResolvedAddress]] = Future()
    try:
        numeric = partial(_addresses, place.host, place.port, socket.AI_NUMERICHOST)
        done.set_result([ResolvedAddress(socket.AF_UNIX, place.path)] if place.path else numeric())
    except OSError:
        return run_once(("resolve", *place[:2]), partial(_addresses, place.host, place.port))
    return done


def _addresses(host: str, port: int, flags: int = 0) -> list[ResolvedAddress]:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [ResolvedAddress(family, end) for family, _, _, _, end in addresses]


def open_socket(place: Place, deadline: float, clock: ThreadClock) -> DeadlineSocket:
    """Return a socket that is connected to one of the addresses of a server."""
    with place.naming():
        return _open_socket(place, deadline, clock)


def _open_socket(place: Place, deadline: float, clock: ThreadClock) -> DeadlineSocket:
    for count, resolved in _in_turn(clock.result(_resolve(place), deadline)):
        with _new_socket(resolved, count) as plain:

            def connect(seconds: float, plain: socket.socket = plain, end: Any = resolved.end) -> None:
                plain.settimeout(seconds)
                plain.connect(end)

            clock.once(connect, clock.now + (deadline - clock.now) / count)
            if place.tls is None:
                return DeadlineSocket(plain, clock, deadline)
            encrypted = place.tls.wrap_socket(plain, server_hostname=place.host, do_handshake_on_connect=False)
            with _naming_plain_servers(encrypted):
                opened = DeadlineSocket(encrypted, clock, deadline)
                opened.within(ssl.SSLSocket.do_handshake, encrypted)
                return opened
    raise OSError("the name has no address")


async def open_stream(place: Place, deadline: float, clock: LoopClock, protocol: asyncio.Protocol) -> asyncio.Transport:
    """Return the same for an event loop: the transport of ``protocol``."""
    with place.naming():
        return await _open_stream(place, deadline, clock, protocol)


async def _open_stream(
    place: Place, deadline: float, clock: LoopClock, protocol: asyncio.Protocol
) -> asyncio.Transport:
    loop, addresses = asyncio.get_running_loop(), _resolve(place)
    options: dict[str, Any] = {} if place.tls is None else {"ssl": place.tls, "server_hostname": place.host}
    if not addresses.done():
        await clock.result(asyncio.wrap_future(addresses), deadline)
    for count, resolved in _in_turn(addresses.result()):
        with _new_socket(resolved, count) as plain:
            plain.setblocking(False)
            share = (deadline - clock.now) / count
            await clock.within(loop.sock_connect(plain, resolved.end), clock.now + share)
            stream = loop.create_connection(lambda: protocol, sock=plain, **options)
            if place.tls is None:
                return (await stream)[0]
            with _naming_plain_servers(plain):
                return await _encrypted(loop.create_task(stream), deadline, clock)
    raise OSError("the name has no address")


async def _encrypted(task: asyncio.Task[Any], deadline: float, clock: LoopClock) -> asyncio.Transport:
    try:
        return (await clock.result(task, deadline))[0]  # type: ignore[no-any-return]
    except BaseException:
        if not task.cancel() and not task.cancelled() and task.exception() is None:
            task.result()[0].abort()
        raise


@contextmanager
def _naming_plain_servers(encrypted: socket.socket) -> Iterator[None]:
    """Name the likely reason of a failed handshake: a server without TLS waits for a line, or replies in plain text."""
    try:
        yield
    except BaseException as error:
        encrypted.close()
        if not isinstance(error, (TimeoutError, ssl.SSLError)) or isinstance(error, ssl.SSLCertVerificationError):
            raise
        reason = f": {error}" if isinstance(error, ssl.SSLError) else " within the time budget"
        raise ConnectionError(_NO_HANDSHAKE % reason) from error


def _hint_of(plain: socket.socket) -> str:
    """Return the likely reason why a server ends a connection before its first reply."""
    return "" if isinstance(plain, ssl.SSLSocket) or plain.family == socket.AF_UNIX else _MAYBE_TLS


def _in_turn(addresses: list[ResolvedAddress]) -> Iterator[tuple[int, ResolvedAddress]]:
    """Return each address with the number of addresses that are left, itself included."""
    return zip(range(len(addresses), 0, -1), addresses, strict=True)


@contextmanager
def _new_socket(resolved: ResolvedAddress, count: int) -> Iterator[socket.socket]:
    """Yield a socket with keepalive, which detects a dead server even while no call is out.

    An error in the block closes the socket. It is raised unless another of the ``count`` addresses may accept.
    """
    plain = socket.socket(resolved.family, socket.SOCK_STREAM)
    try:
        if resolved.family != socket.AF_UNIX:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):  # not on every platform
                    plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        yield plain
    except BaseException as error:
        plain.close()
        if count == 1 or not isinstance(error, OSError):
            raise


# -- blocking ------------------------------------------------------------------------------------------------------


class DeadlineSocket:
    """A socket of which every operation ends by ``deadline``, a time of the clock."""

    def __init__(self, connected: socket.socket, clock: ThreadClock, deadline: float) -> None:
        self.deadline = deadline
        self._clock = clock
        self._socket = connected
        self.hint = _hint_of(connected)
        self._seconds = -1.0
        self._readable = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self._readable.register(connected.fileno(), selectors.EVENT_READ)
        self.shutdown, self.close, self.fileno = connected.shutdown, connected.close, connected.fileno

    def sendall(self, data: bytes) -> None:
        sent = self._socket.send(data)  # all, unless the buffer of the system is full
        while sent < len(data):
            sent += self.within(self._socket.send, data[sent:])

    def recv_into(self, buffer: bytearray) -> int:
        """Read what redis-py waits for in a login."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def recv(self, size: int) -> bytes:
        return self.within(self._socket.recv, size)

    def within(self, call: Callable[[Any], _Result], argument: Any) -> _Result:
        """Return the result of an operation of the socket, or ``TimeoutError`` at the deadline."""

        def attempt(seconds: float) -> _Result:
            if seconds != self._seconds:  # to set it is a system call
                self._seconds = seconds
                self._socket.settimeout(seconds)
            return call(argument)

        return self._clock.wait(attempt, self.deadline)

    def is_quiet(self) -> bool:
        """Return whether the connection is open and has nothing to read."""
        return not self._readable.select(0)


class BlockingConnection:
    """A connection for one call at a time. ``close`` closes it."""

    def __init__(self, opened: DeadlineSocket, codec: Codec, close: Callable[[], Any]) -> None:
        self.close = close
        self.is_quiet = opened.is_quiet
        self._hint = opened.hint
        self._socket = opened
        self._codec = codec

    def send(self, frame: bytes, deadline: float) -> None:
        self._socket.deadline = deadline
        self._socket.sendall(frame)

    def receive(self, count: int) -> list[Any]:
        feed, gets = self._codec.feed, self._codec.gets
        replies: list[Any] = []
        while len(replies) < count:
            try:
                data = self._socket.recv(_CHUNK)
            except ConnectionError as error:
                raise ConnectionError(f"{error}{self._hint}") from error
            if not data or (self._hint and data.startswith(_TLS_ALERT)):
                raise ConnectionError(f"the server closed the connection{self._hint}")
            self._hint = ""  # it has replied
            feed(data)
            while (reply := gets()) is not MORE:
                replies.append(reply)
        if len(replies) > count:
            raise ConnectionError(_UNASKED)
        return replies


class BlockingChannel:
    """The connections of threads to one server: those that are idle, last used first. No thread waits for another one.

    Its coroutines block: they never wait for an event loop, so ``run_blocking`` runs them and those that call them.
    """

    connection = None

    def __init__(self, connect: Callable[[float], Awaitable[BlockingConnection]], clock: ThreadClock) -> None:
        self._connect = connect
        self._clock = clock
        self._idle: list[BlockingConnection] = []
        self._closings = 0
        self._pid = os.getpid()
        run_in_child(self, BlockingChannel.close)  # a child must not use the connections of its parent

    async def send(self, frame: bytes, replies: int, deadline: float) -> Awaitable[list[Any]]:
        closings = self._closings
        connection = self._take() or await self._connect(_until(self._clock, deadline))
        try:
            connection.send(frame, deadline)
        except BaseException:
            self._drop(connection)
            raise
        return self._receive(connection, replies, closings)

    async def _receive(self, connection: BlockingConnection, count: int, closings: int) -> list[Any]:
        try:
            replies = connection.receive(count)
        except BaseException:
            self._drop(connection)
            raise
        if closings == self._closings:
            self._idle.append(connection)
        else:
            connection.close()
        return replies

    def _drop(self, connection: BlockingConnection) -> None:
        """Close a connection that failed. The idle ones may be dead too, and no other call should have to find out."""
        connection.close()
        self.close()

    def _take(self) -> BlockingConnection | None:
        if os.getpid() != self._pid:  # a fork that ran no hooks
            check_process()
            self._pid = os.getpid()
        while (connection := self._pop()) is not None and not connection.is_quiet():
            connection.close()
        return connection

    def _pop(self) -> BlockingConnection | None:
        try:
            return self._idle.pop()
        except IndexError:  # a check before would race with other threads
            return None

    def close(self) -> None:
        self._closings += 1
        while (connection := self._pop()) is not None:
            connection.close()


# -- on an event loop ----------------------------------------------------------------------------------------------


class Flight:
    """A call that was sent, and the replies to it so far."""

    __slots__ = ("deadline", "expected", "is_over", "replies")

    def __init__(self, expected: int, deadline: float) -> None:
        self.expected = expected
        self.deadline = deadline
        self.replies: list[Any] = []
        self.is_over = False

    def end(self, error: Exception | None) -> None:
        """Take the replies, or the error of the connection. Called once."""


class _FutureFlight(Flight):
    """A call whose replies are the result of a future."""

    __slots__ = ("future",)

    def __init__(self, expected: int, deadline: float, future: asyncio.Future[list[Any]]) -> None:
        super().__init__(expected, deadline)
        self.future = future

    def end(self, error: Exception | None) -> None:
        if self.future.done():
            return  # the request has left
        if error is None:
            self.future.set_result(self.replies)
        else:
            self.future.set_exception(error)
            self.future.exception()  # the request may leave yet: asyncio would log the error


class LoopConnection(asyncio.Protocol):
    """A connection that calls share. A call that is given up leaves it: its replies are read and dropped."""

    def __init__(self, codec: Codec, clock: LoopClock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._codec = codec
        self._flights: deque[Flight] = deque()
        self._is_checked = False
        self._hint = ""
        self._transport: Any = None
        self._abort: Callable[[], None] | None = None
        self.is_usable = True
        """Whether it is open, and no reply was overdue."""

    def connection_made(self, transport: Any, abort: Callable[[], None] | None = None) -> None:
        """Use an open transport. ``abort`` closes it."""
        self._transport, self._abort = transport, abort or transport.abort
        self._hint = "" if transport.get_extra_info("sslcontext") else _hint_of(transport.get_extra_info("socket"))
        transport.set_protocol(self)

    def send(self, frame: bytes, replies: int, deadline: float) -> asyncio.Future[list[Any]]:
        """Send the bytes of a call now, and return its replies."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self.post(frame, _FutureFlight(replies, deadline, future))
        return future

    def post(self, frame: bytes, flight: Flight) -> None:
        """Send the bytes of a call now."""
        if self._abort is None:
            raise ConnectionError(_LOST)
        self._flights.append(flight)
        self._transport.write(frame)
        if not self._is_checked:
            self._is_checked = True
            self._clock.check(self._give_up)

    def _give_up(self, passed: float) -> bool:
        """End the calls whose deadline has passed. Return whether there are others."""
        overdue = [each for each in self._flights if each.deadline < passed and not each.is_over]
        if overdue:
            self.is_usable = False
            self._end(overdue, TimeoutError())
        self._is_checked = bool(self._flights)
        return self._is_checked

    def data_received(self, data: bytes) -> None:
        flights, finished = self._flights, list[Flight]()
        if self._hint and data.startswith(_TLS_ALERT):
            self._fail(ConnectionError(f"{_LOST}: closed by the server{self._hint}"))
            return
        self._hint = ""  # the server has replied
        try:
            self._codec.feed(data)
            while (reply := self._codec.gets()) is not MORE:
                if not flights:
                    raise ConnectionError(_UNASKED)
                flight = flights[0]
                flight.replies.append(reply)
                if len(flight.replies) == flight.expected:
                    finished.append(flights.popleft())
        except Exception as error:  # bytes that are no reply, too
            flights.extend(finished)
            self._fail(error)
            return
        self._end(finished)

    def _end(self, flights: Iterable[Flight], error: Exception | None = None) -> None:
        for each in flights:
            if not each.is_over:
                each.is_over = True
                each.end(error)
        if not self.is_usable:
            self.retire()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError(f"{_LOST}: {exc or 'closed by the server'}{self._hint}"))

    def _fail(self, error: Exception) -> None:
        self.close()
        flights, self._flights = self._flights, deque()
        self._end(flights, error)

    def retire(self) -> None:
        """Close after the last call that was sent. It gets no more calls."""
        self.is_usable = False
        if all(each.is_over for each in self._flights):
            self.close()

    def close(self) -> None:
        self.is_usable = False
        abort, self._abort = self._abort, None
        if abort is not None:
            abort()


class LoopChannel:
    """The connection of an event loop to one server, opened when a call needs it."""

    def __init__(self, connect: Callable[[float], Awaitable[LoopConnection]], clock: LoopClock) -> None:
        self._connect = connect
        self._clock = clock
        self._connection: LoopConnection | None = None
        self._opening: asyncio.Task[LoopConnection] | None = None

    @property
    def connection(self) -> LoopConnection | None:
        """The open connection, unless a reply to it was overdue."""
        connection = self._connection
        return connection if connection is not None and connection.is_usable else None

    async def send(self, frame: bytes, replies: int, deadline: float) -> Awaitable[list[Any]]:
        connection = self.connection or await self._open(deadline)
        return connection.send(frame, replies, deadline)

    async def _open(self, deadline: float) -> LoopConnection:
        """Wait until one task has connected for all calls, at most until the deadline."""
        if self._connection is not None:
            self._connection.retire()
            self._connection = None
        if self._opening is None or self._opening.done():
            self._opening = asyncio.get_running_loop().create_task(self._set(deadline))
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await self._clock.result(self._opening, deadline)

    async def _set(self, deadline: float) -> LoopConnection:
        self._connection = connection = await self._connect(_until(self._clock, deadline))
        return connection

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.retire()
