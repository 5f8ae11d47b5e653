"""``Recorder``: an observer that records outcomes, and the clients that are rejected, for all processes together.

It counts in memory. A thread adds the counts to records of the store every few seconds, by compare-and-swap.
"""

from __future__ import annotations

import atexit
import logging
import threading
from typing import TYPE_CHECKING, Final
from weakref import finalize

import msgspec

from ...clock import Clock
from ...errors import ConfigError, RateLimitError
from ...forksafe import CHANCE, create_lock
from ...stores import Store, redacted_url
from ...stores.blocking import Call, async_call, blocking_call, run_blocking
from ...stores.heartbeat import Heartbeat
from ...traffic.number import Counter
from ..records import CLIENTS_SIZE, OUTCOMES, OUTCOMES_SIZE, CountsRecord, clients_of, decode, records_at, update
from ..registry import Registry
from ..summary import Summary
from .counts import Labels, OutcomeCounts
from .events import Event

if TYPE_CHECKING:
    from ..limiter import Limiter

_INTERVAL: Final = 5.0
_TRIES: Final = 20
_TRIES_AT_END: Final = 3
_TOKENS: Final = 200
_log = logging.getLogger("ratelimit_mw")
_Waiting = dict[CountsRecord, Summary]
_Unknown = list[tuple[CountsRecord, int, Summary]]
"""Counts that are written or not, with the token of their write."""


def recorder_of(limiter: Limiter) -> Recorder | None:
    """Return the recorder that the settings of a limiter require. Its thread ends with the limiter or the process."""
    if limiter.settings.record == "nothing":
        return None
    recorder = Recorder(limiter.store, limiter._time, limiter.settings.record == "clients")
    finalize(limiter, recorder.stop).atexit = False
    _of_process.add(recorder)
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # again, so that it runs before the store of this limiter ends
    return recorder


class Recorder:
    """Counts the outcomes of rules, and with ``has_clients`` the rejections of each client.

    Raises:
        ConfigError: The store keeps no records.
    """

    def __init__(self, store: Store, clock: Clock, has_clients: bool) -> None:
        if type(store).write_record is Store.write_record:
            raise ConfigError(f"{store!r} keeps no records. Add read_record and write_record to its class")
        self._store = store
        self._clock = clock
        self._has_clients = has_clients
        self._lock = create_lock(self, "_lock", threading.Lock, lambda own, _: own._start_over())
        self._start_over()
        effect = "the outcomes are recorded when the limiter is closed"
        self._beat: Heartbeat[Recorder] = Heartbeat(Recorder.flush, _INTERVAL, "record outcomes", effect)

    def _start_over(self) -> None:
        """Drop all counts. A forked child does so, because the parent records its own counts."""
        self._counts = OutcomeCounts()
        self._clients: dict[str, Summary] = {}
        self._waiting: _Waiting = {}
        self._unknown: _Unknown = []
        self._is_running = self._has_failed = False

    def counter_of(self, labels: Labels) -> Counter | None:
        """Return the function that counts a request; None for a request whose client counts, too."""
        self._start()
        return None if self._has_clients and labels[1] != "allowed" else self._counts.counter_of(labels)

    def __call__(self, event: Event) -> None:
        self._start()
        self._counts.add(event)
        if self._has_clients and event.rejections:
            clients = {each.rule: each.client for each in event.rejections if each.key}
            with self._lock:
                for rule, client in clients.items():
                    self._clients.setdefault(rule, Summary()).add(_readable(client), 1, CLIENTS_SIZE)

    def flush(self) -> None:
        """Write the counts. When the store fails, they are kept for the next call."""
        run_blocking(self._flush(blocking_call))

    async def aflush(self) -> None:
        """Async form of ``flush``."""
        await self._flush(async_call)

    def stop(self) -> None:
        """End the thread. The next request starts it again."""
        self._is_running = False
        self._beat.close()

    def close(self) -> None:
        """End the thread and write the rest. It is lost if the store fails several times."""
        run_blocking(self._finish(blocking_call))

    async def aclose(self) -> None:
        """Async form of ``close``."""
        await self._finish(async_call)

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._beat.hold(self)

    async def _finish(self, call: Call) -> None:
        self.stop()
        for _ in range(_TRIES_AT_END):
            await self._flush(call)
            if not self._has_failed:
                return

    async def _flush(self, call: Call) -> None:
        (waiting, unknown), failure = self._take(), None
        try:
            while unknown:
                await self._find_out(call, waiting, *unknown[-1])
                unknown.pop()
            for record in tuple(waiting):
                await self._write(call, record, waiting, unknown)
        except RateLimitError as error:
            failure = error
        finally:
            with self._lock:
                self._unknown += unknown
                for record, counts in waiting.items():
                    _add(self._waiting, record, counts)
        if failure is not None and not self._has_failed:
            message = "store %s: cannot record outcomes (%s). This process keeps them and tries again in 5 s"
            _log.warning(message, redacted_url(self._store), failure)
        self._has_failed = failure is not None

    async def _write(self, call: Call, record: CountsRecord, waiting: _Waiting, unknown: _Unknown) -> None:
        """Add counts to their record, unless it has ended. They keep waiting if other processes were always faster."""
        counts, token = waiting.pop(record), CHANCE.getrandbits(63)
        if record.begin + record.lifetime <= self._clock():
            return

        async def add(before: bytes | None) -> bytes:
            after = decode(before).merge(counts, record.size)
            after.tokens = [*after.tokens[1 - _TOKENS :], token]
            return msgspec.msgpack.encode(after)

        try:
            is_written = await update(call, self._store, record.name, add, _TRIES, record.lifetime)
        except BaseException:
            unknown.append((record, token, counts))
            raise
        if not is_written:
            _add(waiting, record, counts)

    async def _find_out(self, call: Call, waiting: _Waiting, record: CountsRecord, token: int, counts: Summary) -> None:
        """Let counts wait again if a call without a reply has not written them."""
        if token not in decode(await call(self._store, "read_record", record.name)).tokens:
            _add(waiting, record, counts)

    def _take(self) -> tuple[_Waiting, _Unknown]:
        """Return the counts to write: those since the last call, and those that wait."""
        with self._lock:
            now = self._clock()
            outcomes = Summary()
            for (rule, outcome, _), number in self._counts.take().items():
                outcomes.add(_readable(f"{outcome} {rule}"), number, OUTCOMES_SIZE)
            found = {OUTCOMES: outcomes, **{clients_of(rule): counts for rule, counts in self._clients.items()}}
            waiting, unknown = self._waiting, self._unknown
            self._clients, self._waiting, self._unknown = {}, {}, []
            for name, counts in found.items():
                for record in records_at(name, now) if counts.counts else ():
                    _add(waiting, record, counts)
            return waiting, unknown


_of_process: Final = Registry[Recorder]()


def _close_all() -> None:
    """Write the rest, even in a worker of WSGI, whose server closes no limiter."""
    for recorder in _of_process:
        recorder.close()


def _add(waiting: _Waiting, record: CountsRecord, counts: Summary) -> None:
    waiting.setdefault(record, Summary()).merge(counts, record.size)


def _readable(text: str) -> str:
    """Return a text that UTF-8 can encode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
