"""``Recorder``: an observer that records outcomes, and the clients that are rejected, for all processes together.

It counts in memory. A thread adds the counts to records of the store every few seconds, by compare-and-swap.
"""

from __future__ import annotations

import atexit
import logging
import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, finalize

import msgspec

from ..clock import Clock
from ..errors import ConfigError, RateLimitError
from ..forksafe import CHANCE, create_lock
from ..stores import Store
from ..stores.blocking import run_blocking
from ..stores.heartbeat import Heartbeat
from .counts import Counter, Labels, OutcomeCounts
from .events import Event
from .history import OUTCOMES, SIZES, SPANS, Span, clients_of, decode, name_at
from .inspection import Call
from .override_reader import name_of
from .summary import Summary

if TYPE_CHECKING:
    from .limiter import Limiter

_INTERVAL: Final = 5.0
_TRIES: Final = 20
_TRIES_AT_END: Final = 3
_TOKENS: Final = 200
_log = logging.getLogger("ratelimit_mw")
_Place = tuple[str, Span]
"""The name of records, and their span."""
_Waiting = dict[_Place, Summary]


def recorder_of(limiter: Limiter) -> Recorder | None:
    """Return the recorder that the settings of a limiter want. Its thread ends with the limiter or the process."""
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
        """Even in a forked child: the parent records its own counts."""
        self._counts = OutcomeCounts()
        self._taken: dict[Labels, int] = {}
        self._clients: dict[str, Summary] = {}
        self._waiting: _Waiting = {}
        self._unknown: list[tuple[str, int, _Place, Summary]] = []  # written or not: the record, and the token
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
                    self._clients.setdefault(rule, Summary()).add(_readable(client), 1, SIZES[False])

    def flush(self) -> None:
        """Write the counts. When the store fails, they are kept for the next call."""
        run_blocking(self._flush(self._call))

    async def aflush(self) -> None:
        """Async form of ``flush``."""
        await self._flush(self._acall)

    def stop(self) -> None:
        """End the thread. The next request starts it again."""
        self._is_running = False
        self._beat.close()

    def close(self) -> None:
        """End the thread and write the rest. It is lost if the store fails several times."""
        self.stop()
        for _ in range(_TRIES_AT_END):
            self.flush()
            if not self._has_failed:
                return

    async def aclose(self) -> None:
        """Async form of ``close``."""
        self.stop()
        for _ in range(_TRIES_AT_END):
            await self.aflush()
            if not self._has_failed:
                return

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._beat.hold(self)

    async def _flush(self, call: Call) -> None:
        waiting, failure = self._take(), None
        try:
            while self._unknown:
                await self._find_out(call, waiting, *self._unknown.pop())
            for place in tuple(waiting):
                await self._write(call, place, waiting)
        except RateLimitError as error:
            failure = error
        finally:
            with self._lock:
                for place, counts in waiting.items():
                    _add(self._waiting, place, counts)
        if failure is not None and not self._has_failed:
            message = "store %s: cannot record outcomes (%s). This process keeps them and tries again in 5 s"
            _log.warning(message, name_of(self._store), failure)
        self._has_failed = failure is not None

    async def _write(self, call: Call, place: _Place, waiting: _Waiting) -> None:
        """Add counts to their record. They keep waiting if other processes were faster each time."""
        name, span = place
        record, token = name_at(name, span, self._clock()), CHANCE.getrandbits(63)
        for _ in range(_TRIES):
            before = await call("read_record", record)
            after = decode(before).merge(waiting[place], _size(place))
            after.tokens = [*after.tokens[1 - _TOKENS :], token]
            data, counts = msgspec.msgpack.encode(after), waiting.pop(place)
            try:
                if await call("write_record", record, data, before, span.kept + span.width):
                    return
            except BaseException:
                self._unknown.append((record, token, place, counts))
                raise
            waiting[place] = counts

    async def _find_out(
        self, call: Call, waiting: _Waiting, record: str, token: int, place: _Place, counts: Summary
    ) -> None:
        """Let counts wait again if a call without a reply has not written them."""
        try:
            is_written = token in decode(await call("read_record", record)).tokens
        except BaseException:
            self._unknown.append((record, token, place, counts))
            raise
        if not is_written:
            _add(waiting, place, counts)

    def _take(self) -> _Waiting:
        """Return the counts since the last call, and those that wait to be written."""
        with self._lock:
            totals, before = self._counts.totals(), self._taken
            self._taken, outcomes = totals, Summary()
            for labels, total in totals.items():
                if number := total - before.get(labels, 0):
                    outcomes.add(_readable(f"{labels[1]} {labels[0]}"), number, SIZES[True])
            found = {OUTCOMES: outcomes, **{clients_of(rule): counts for rule, counts in self._clients.items()}}
            waiting, self._clients, self._waiting = self._waiting, {}, {}
            for name, counts in found.items():
                for span in SPANS if counts.counts else ():
                    _add(waiting, (name, span), counts)
            return waiting

    async def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._store, name)(*arguments)

    async def _acall(self, name: str, *arguments: Any) -> Any:
        return await getattr(self._store, f"a{name}")(*arguments)


_of_process: Final = WeakSet[Recorder]()


def _close_all() -> None:
    """Write the rest, even in a worker of WSGI, whose server closes no limiter."""
    for recorder in tuple(_of_process):
        recorder.close()


def _size(place: _Place) -> int:
    return SIZES[place[0] == OUTCOMES]


def _add(waiting: _Waiting, place: _Place, counts: Summary) -> None:
    waiting.setdefault(place, Summary()).merge(counts, _size(place))


def _readable(text: str) -> str:
    """Return a text that UTF-8 can encode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
