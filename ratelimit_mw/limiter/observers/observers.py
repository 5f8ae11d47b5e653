"""``Observers``: counts each concluded request by its outcomes, and calls the functions that want its event."""

from __future__ import annotations

import logging
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from inspect import iscoroutine
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...clock import monotonic
from ...decision import Decision, Verdict
from ...errors import ConfigError, error_path
from ...forksafe import check_process, create_lock
from ...settings.options import checked_observer
from ...testmode import testmode
from ..gates import Gates
from ..remote.breaker import Breaker
from .events import Event, RequestOutcomes, outcomes_of, settled_costs
from .readers import MAX_SERIES, OutcomeReader
from .traffic import TrafficFeed

Observer = Callable[[Event], object]

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"})
_NO_VALUES: Final[Mapping[str, str]] = MappingProxyType({})
_LOG_EVERY: Final = 60.0  # seconds
_log = logging.getLogger("ratelimit_mw")


class _Thread(threading.local):
    """Whether observers run in this thread."""

    is_busy = False


class _Row(NamedTuple):
    """The requests with the same outcomes, and the same endpoint, where a traffic log counts each endpoint.

    ``next(counter)`` counts one of them. The ``functions`` receive its event, and the ``recorder`` its clients.
    """

    outcomes: RequestOutcomes
    endpoint: str | None
    counter: Iterator[object]
    functions: Sequence[tuple[str, Observer]]
    recorder: TrafficFeed | None


class Observers:
    """The observers of a limiter. An exception in an observer does not affect the request.

    They run in the thread or on the event loop of the request. An event that an observer itself causes is not sent.

    An observer is a function. With ``needs_event``, it receives only the events whose outcomes it needs. With
    ``counter_of``, it counts requests without their events: an ``OutcomeReader``, and the feed of a traffic log. With
    ``is_early``, it also receives an event when the response starts.

    Attributes:
        store: The kind of the store.
        readers: The readers, each with the name of its observer.
        breaker: The circuit breaker of the store, None for the memory store.
        gates: The adaptive limits.
    """

    def __init__(
        self,
        observers: Sequence[str | Observer],
        feed: TrafficFeed | None,
        names: Sequence[str],
        store: str,
        gates: Gates,
    ) -> None:
        self.store, self._names = store, frozenset(names)
        self.readers: list[tuple[str, OutcomeReader]] = []
        self.breaker: Breaker | None = None
        self.gates = gates
        self._functions: list[tuple[str, Observer]] = []
        self.early: list[tuple[str, Observer]] = []
        self._feed, self._feed_name = feed, name_of(feed)
        self._recorder = feed if feed is not None and feed.has_clients else None
        """The traffic log, if it counts the clients of each request."""
        self._thread = _Thread()
        self._silent_until: dict[str, float] = {}
        self._left_out: dict[str, int] = {}
        self._lock = create_lock(self, "_lock", threading.Lock, Observers._start_over)
        self._start_over()
        for function in import_observers(observers):
            self._add(name_of(function), function)

    def _add(self, name: str, function: Any) -> None:
        if reader := getattr(function, "reader", None):
            function = reader()
        if isinstance(function, OutcomeReader):
            self.readers.append((name, function))
            function.limiters.add(self)
        else:
            self._functions.append((name, function))
            self.early += [(name, function)] * getattr(function, "is_early", False)

    def _start_over(self, _intact: bool = True) -> None:
        """Forget the rows. In a forked child, the counters are those of its parent."""
        self._rows: dict[tuple[RequestOutcomes, str | None], _Row] = {}
        self._allowed: dict[object, _Row] = {}
        self._rejected: dict[object, _Row] = {}
        """The rows of most requests, by all that they depend on."""

    def gauges(self) -> Iterator[tuple[str, tuple[str, ...], int]]:
        """Yield the numbers of this moment, each with its name and its labels."""
        if self.breaker is not None:
            yield "breaker", (self.store,), int(self.breaker.open)
        for rule, level in self.gates.levels().items():
            yield "limit", (rule, level.reason), level.limit
            yield "in_flight", (rule,), level.in_flight

    def announce(self, verdicts: Sequence[Verdict], final: Verdict, endpoint: str | None, method: str | None) -> None:
        """Call the early observers. The request is not counted yet."""
        outcomes = outcomes_of(verdicts, final, self.store)
        self._send(_Row(outcomes, endpoint, repeat(None), self.early, None), verdicts, endpoint, method)

    def report_one(self, verdict: Verdict, endpoint: str | None = None, method: str | None = None) -> None:
        """Report a request with one verdict."""
        decisions = verdict.decisions
        key: object = None
        if len(decisions) == 1:  # most requests: without a loop
            decision = decisions[0]
            rows = self._allowed if decision.allowed else self._rejected
            if not decision.why:  # neither "banned" nor "unavailable"
                key = decision.hit[0] if self._feed is None else (decision.hit[0], endpoint)
        elif verdict.allowed:
            rows = self._allowed
            key = self._key(decisions, endpoint)
        if key is None:
            self.report((verdict,), None, endpoint, method)
            return
        row = rows.get(key)
        if row is None:
            if len(rows) >= MAX_SERIES:
                rows.clear()
            row = rows[key] = self._row(outcomes_of((verdict,), None, self.store), endpoint)
        next(row.counter)
        if row.functions or row.recorder:
            self._send(row, (verdict,), endpoint, method)

    def _key(self, decisions: Sequence[Decision], endpoint: str | None) -> object:
        """Return the limits and the endpoint of an allowed request, which determine its row. None for others."""
        limits: list[object] = [endpoint if self._feed is not None else None]
        for decision in decisions:
            if not decision.allowed:
                return None
            limits.append(decision.hit[0])
        return tuple(limits)

    def report(
        self,
        verdicts: Sequence[Verdict],
        final: Verdict | None = None,
        endpoint: str | None = None,
        method: str | None = None,
        is_again: bool = False,
    ) -> None:
        """Report a request. ``is_again``: an earlier report has counted it for its endpoint."""
        outcomes = outcomes_of(verdicts, final, self.store)
        row = self._row(outcomes, None if is_again else endpoint)
        next(row.counter)
        if row.functions or row.recorder:
            self._send(row, verdicts, endpoint, method)

    def _row(self, outcomes: RequestOutcomes, endpoint: str | None) -> _Row:
        key = outcomes, endpoint if self._feed is not None else None
        row = self._rows.get(key)
        if row is None:
            check_process()
            row = self._build_row(*key)
            with self._lock:
                if len(self._rows) < MAX_SERIES:
                    row = self._rows.setdefault(key, row)
        return row

    def _build_row(self, outcomes: RequestOutcomes, endpoint: str | None) -> _Row:
        counters = [self._call(name, reader.counter_of, outcomes) for name, reader in self.readers]
        if self._feed is not None and self._recorder is None:
            counters.append(self._call(self._feed_name, self._feed.counter_of, outcomes, endpoint))
        counters = [counter for counter in counters if counter is not None]
        counter = counters[0] if len(counters) == 1 else zip(*counters, strict=True) if counters else repeat(None)
        functions = [each for each in self._functions if getattr(each[1], "needs_event", _always)(outcomes)]
        return _Row(outcomes, endpoint, counter, functions, self._recorder)

    def write(self) -> None:
        """Let the readers write what they have counted, because the process may end now."""
        for name, reader in self.readers:
            self._call(name, reader.write)

    def measure_store(self, seconds: float, result: str) -> None:
        """Report how long a call of the store took, and its result: "ok" or "error"."""
        for name, reader in self.readers:
            self._call(name, reader.measure_store, seconds, self.store, result)

    def _send(self, row: _Row, verdicts: Sequence[Verdict], endpoint: str | None, method: str | None) -> None:
        """Call the functions with the event of a request, and the traffic log with its clients."""
        thread = self._thread
        if thread.is_busy:
            return
        thread.is_busy = True
        try:
            decisions = [decision for verdict in verdicts for decision in verdict.decisions]
            if row.recorder is not None:
                clients = {each.rule: each.client for each in decisions if each.key}
                self._call(self._feed_name, row.recorder.record, row.outcomes, row.endpoint, clients)
            if row.functions:
                features = self._features(decisions) if self._names else _NO_VALUES
                method = method if method is None or method in _METHODS else "_OTHER"
                request = row.outcomes.outcome, self.store, endpoint, method
                event = Event(*request, row.outcomes, tuple(verdicts), features, settled_costs(verdicts))
            for name, function in row.functions:
                self._call(name, function, event)
        finally:
            thread.is_busy = False

    def _call(self, name: str, function: Callable[..., object], *arguments: object) -> Any:
        """Call an observer. Its error is logged, and the result is None."""
        try:
            if iscoroutine(result := function(*arguments)):
                result.close()
                raise TypeError("it returned a coroutine, but is not awaited. Pass a sync function")
            return result
        except (Exception, CancelledError) as error:  # of a future in the observer, not of the request
            self._log(name, error)
            return None

    def _features(self, decisions: Sequence[Decision]) -> Mapping[str, str]:
        """Return the values in the keys of the decisions, as the store has them."""
        found: dict[str, str] = {}
        for decision in decisions:
            limit, key = decision.hit[:2]
            values = limit.values_of(key.removeprefix(limit.prefix).removesuffix(testmode.key_suffix))
            found |= {name: value for name, value in values.items() if name in self._names}
        return found

    def _log(self, name: str, error: BaseException) -> None:
        """Log the error of an observer, at most once a minute for each observer."""
        now = monotonic()
        if now < self._silent_until.get(name, 0.0):
            self._left_out[name] = self._left_out.get(name, 0) + 1
            return
        self._silent_until[name] = now + _LOG_EVERY
        more = f"; {left_out} more errors since the last message" if (left_out := self._left_out.pop(name, 0)) else ""
        message = "observer %s raised %s%s; requests are not affected, and the next event goes to the observer again"
        _log.error(message, name, type(error).__name__, more, exc_info=error)


def _always(_: RequestOutcomes) -> bool:
    return True


def import_observers(observers: Sequence[str | Observer]) -> list[Observer]:
    """Return the functions of observers. ``ConfigError`` for one that cannot be imported."""
    functions = []
    for i, observer in enumerate(observers):
        with error_path(f"observers[{i}]"):
            functions.append(_imported(observer) if isinstance(observer, str) else observer)
    return functions


def _imported(path: str) -> Observer:
    """Return the function of ``"module:function"``."""
    module, _, name = path.partition(":")
    try:
        function: Any = import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import {path!r}: {error}") from None
    return checked_observer(function)


def name_of(function: object) -> str:
    """Return the name of a function or of the class of an object, for the log."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__ or 'builtins'}.{named.__qualname__}"
