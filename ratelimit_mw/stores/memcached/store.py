"""``MemcachedStore``: states behind compare-and-swap, and tiered windows as counters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from ...algorithms.window_log import SlidingWindowLog, TieredWindow
from ...decision import Charge, Correction, Decision, Hit, Limit
from ...errors import StateError
from ...quota import Quota, parse_duration
from ...runtime.blocking import run_blocking
from ..base import Facts
from ..bytecall import Write
from ..bytestore import ByteStore, StoreCall
from ..drivers import Driver
from ..servers import TlsFiles
from ..url import parse_url_of, redacted_url
from ..wire import ReplyError
from .address import MemcachedAddress
from .connections import KeyCommands, MemcachedConnections, Rendezvous
from .protocol import EXPIRED, STORED, KeyNames, StoredValue, command, expiry, swap, write
from .tiers import Window

_FACTS_SECONDS: Final = 1.5
_NO_COUNTER: Final = "non-numeric"  # in the error of an incr
_TIERED: Final = re.compile(rf"[^|]*\|[^|]*\|{TieredWindow.name}\.([^|]*)\|([^|]*)\|")
"""The prefix of a key: format, rule, algorithm with its precision, period."""


class MemcachedCall(StoreCall):
    """One call. Its values are not written in one step, so those that were not lost are undone."""

    _store: MemcachedStore

    def __init__(self, store: MemcachedStore, driver: Driver, seconds: float) -> None:
        super().__init__(store, driver, seconds)
        self._names = store.names
        self._tokens: dict[str, bytes] = {}
        self._stored: dict[str, StoredValue | None] = {}
        self._windows: dict[str, Window] = {}
        self._at: int | None = None
        """The one time of a request with tiered windows."""

    async def load(self, keys: Sequence[str]) -> tuple[Sequence[Any], int]:
        at = self._store.clock() if self._at is None else self._at
        different = dict.fromkeys(keys)
        _, values = await self._exchange([self._read(key) for key in different])
        loaded = {key: self._take_value(key, values) for key in different}
        return [loaded[key] for key in keys], at

    def _read(self, key: str) -> KeyCommands:
        if (window := self._windows.get(key)) is None:
            return self._commands(key, (), [self._state_name(key)])
        window.is_kept = False
        adds = window.add(window.cost, self.now is not None) if window.cost and not window.is_counted else ()
        return self._commands(key, adds, window.names())

    def _take_value(self, key: str, values: Mapping[bytes, StoredValue]) -> Any:
        """Return the bytes of a key, or the state of a tiered window without the cost of this request."""
        if (window := self._windows.get(key)) is None:
            stored = self._stored[key] = values.get(self._state_name(key))
            return stored and stored.value
        window.is_counted = window.cost > 0
        try:
            return window.state(values)
        except ValueError as error:
            raise StateError(f"Memcached: a value that is no counter: {error}", [key]) from error

    async def swap(self, writes: Sequence[Write]) -> Collection[str]:
        requests = {}
        for key, data, _, lasts_us in writes:
            if (window := self._windows.get(key)) is not None:
                window.is_kept = True
                continue
            value, expires = (b"", EXPIRED) if data is None else (data, expiry(lasts_us))
            stored = self._stored.get(key)
            requests[key] = self._commands(key, [swap(self._state_name(key), value, expires, stored)])
        lines, _ = await self._exchange(list(requests.values()))
        return [key for key, line in zip(requests, lines, strict=True) if line != [STORED]]

    def refunds_of(self, keys: set[str]) -> list[Correction]:
        """Leave out tiered windows: their cost stays counted until the request is decided again, or rejected."""
        for window in self._windows.values():
            window.is_kept = False
        return super().refunds_of(keys - self._windows.keys())

    async def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        """Decide. The cost of a tiered window is counted when it is read, and refunded if it must not count."""
        windows: dict[str, tuple[Limit, Window]] = {}
        for limit, key, cost in hits:
            if _is_tiered(limit):
                self._at = self._note_time(now)
                if key not in windows:
                    windows[key] = limit, self._window(limit.algorithm, key, self._at)  # type: ignore[arg-type]
                windows[key][1].cost += cost * consume
        self._windows = {key: window for key, (_, window) in windows.items()}
        self.joins = not windows
        try:
            decisions = await super().apply(hits, now, consume)
        except BaseException:
            counted = [(limit, key, window.cost) for key, (limit, window) in windows.items() if window.is_counted]
            undone = [Correction(*hit, Charge(self._at or 0, hit[2])) for hit in counted]
            self.left = [*self.left, *undone]
            raise
        back = {key: window for key, (_, window) in windows.items() if window.is_counted and not window.is_kept}
        await self._exchange([self._commands(key, window.refund(window.cost)) for key, window in back.items()])
        return decisions

    async def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        """Make corrections: first those of tiered windows, which no other client can prevent."""
        tiered = [change for change in changes if _is_tiered(change.limit)]
        if not tiered:
            return await super().correct(changes, now)
        others = [change for change in changes if change not in tiered]
        self.left, self.now, at = changes, now, self._note_time(now)
        commands = await self._window_commands(tiered, at)
        self.left = others
        await self._exchange(commands)
        times = iter(await super().correct(others, now) if others else ())
        return [at if change in tiered else next(times) for change in changes]

    async def _window_commands(self, changes: Sequence[Correction], at: int) -> list[KeyCommands]:
        """Return the commands of corrections. A refund takes at most what each of its blocks has.

        A reset has deleted at least one of them.
        """
        windows = [self._window(change.limit.algorithm, change.key, at) for change in changes]  # type: ignore[arg-type]
        names = [
            window.names_at(c.consumed.at_us if c.consumed else at) for window, c in zip(windows, changes, strict=True)
        ]
        reads = [self._commands(c.key, (), own) for c, own in zip(changes, names, strict=True) if c.consumed]
        _, values = await self._exchange(reads)
        counts = Counter({name: int(stored.value) for name, stored in values.items()})
        requests = []
        for change, window, own in zip(changes, windows, names, strict=True):
            if change.consumed is None:
                requests.append(self._commands(change.key, window.add(change.cost, self.now is not None)))
            elif back := min(change.cost, *(counts[name] for name in own)):
                counts.subtract(dict.fromkeys(own, back))
                requests.append(self._commands(change.key, window.refund(back, change.consumed.at_us)))
        return requests

    async def forget(self, keys: Iterable[str]) -> None:
        requests = []
        for key in keys:
            names = [self._state_name(key)]
            if match := _TIERED.match(key):
                precision, period = map(parse_duration, match.groups())
                algorithm = TieredWindow(Quota.exact(1, period), precision)
                names = self._window(algorithm, key, self._note_time(self._store.given_time)).forgotten_names()
            requests.append(self._commands(key, [command(b"delete", name) for name in names]))
        await self._exchange(requests)

    async def ping(self) -> None:
        """Write to each server, as much as a state. A server without room for it replies to all other commands."""
        payload = write(b"set", self._names.ping, bytes(40), 1)
        lines, _ = await self._exchange([KeyCommands(each, (payload,)) for each in self._store.rendezvous.servers])
        for (line,) in lines:
            if line != STORED:
                raise ReplyError(f"expected STORED, got {line[:40]!r}")

    async def _exchange(self, requests: Sequence[KeyCommands]) -> tuple[list[list[bytes]], Mapping[bytes, StoredValue]]:
        if not requests:
            return [], {}
        try:
            lines, values = await self.driver.connections.exchange(requests, self.deadline)
        except ReplyError as error:
            if _NO_COUNTER in str(error):
                raise StateError(f"Memcached: a value that is no counter: {error}", list(self._windows)) from error
            raise
        self.driver.replies += 1
        return lines, values

    def _token(self, key: str) -> bytes:
        token = self._tokens.get(key)
        if token is None:
            token = self._tokens[key] = self._names.token(key)
        return token

    def _commands(self, key: str, commands: Sequence[bytes] = (), names: Sequence[bytes] = ()) -> KeyCommands:
        return KeyCommands(self._store.rendezvous.server_of(self._token(key)), commands, names)

    def _state_name(self, key: str) -> bytes:
        return self._names.state(self._token(key))

    def _window(self, algorithm: TieredWindow, key: str, at: int) -> Window:
        return Window(algorithm, self._names, self._token(key), at)

    def _note_time(self, now: int | None) -> int:
        self._store.given_time = now
        return self._store.clock() if now is None else now


class MemcachedStore(ByteStore):
    """Keep states in one or several Memcached servers that all processes share.

    Args:
        url: A store URL such as ``memcached://10.0.0.1:11211,10.0.0.2:11211``.
            docs/reference/stores/memcached.md lists its options.
        timeout_us: The time budget of a call in microseconds.

    Raises:
        ConfigError: The URL or an option cannot be used.
    """

    is_atomic = False
    _title = "Memcached"
    _call = MemcachedCall
    _most_entries: ClassVar = {SlidingWindowLog.name: 1_000}  # of 16 bytes

    def __init__(self, url: str | MemcachedAddress, timeout_us: int = 50_000) -> None:
        address = parse_url_of(url, MemcachedAddress, "memcached://cache:11211") if isinstance(url, str) else url
        if isinstance(url, str):
            self.name = redacted_url(url)
        self.rendezvous = Rendezvous(address.servers)
        self.names = KeyNames(address.prefix)
        self._tls = None if address.tls is None else TlsFiles(address.tls)
        self.given_time: int | None = None
        """The time that a caller gave last. A reset has no time of its own."""
        super().__init__(timeout_us)

    def facts(self) -> Iterator[Facts]:
        driver = self._thread_driver
        for server in self.rendezvous.servers:
            try:
                values = run_blocking(driver.connections.stats(server, driver.clock.now + _FACTS_SECONDS))
                yield Facts("memcached", str(server), values)
            except Exception as error:
                yield Facts("memcached", str(server), {}, str(self._as_error(error)))

    def _connect(self, driver: Driver) -> MemcachedConnections:
        return MemcachedConnections(self._tls, driver)


def _is_tiered(limit: Limit) -> bool:
    return type(limit.algorithm) is TieredWindow


def open_address(parsed: MemcachedAddress, timeout_us: int) -> MemcachedStore:
    return MemcachedStore(parsed, timeout_us)
