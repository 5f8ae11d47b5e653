"""``Observers``: counts each concluded request by its outcomes, and calls the functions that want its event."""

from __future__ import annotations

import logging
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import ismethod
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...clock import monotonic
from ...decision import Verdict
from ...errors import ConfigError, error_path, parse_each
from ...runtime.forksafe import check_process, run_in_child
from ...settings import Settings
from ...settings.options import checked_observer
from ...testmode import testmode
from ...traffic import TrafficLog
from ..adaptive_limits import AdaptiveLimits
from ..remote.breaker import Breaker
from .events import Event, RequestOutcomes, outcomes_of, settled_costs
from .readers import MAX_SERIES, OutcomeReader
from .traffic import counters_of, recorder_of

Observer = Callable[[Event], object]

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"})
_NO_VALUES: Final[Mapping[str, str]] = MappingProxyType({})
_LOG_EVERY: Final = 60.0  # seconds
_log = logging.getLogger("ratelimit_mw")


class _Row(NamedTuple):
    """Requests that are counted alike. The ``counters`` count one of them. The ``functions`` receive its event."""

    outcomes: RequestOutcomes
    counters: Sequence[Callable[[], object]]
    functions: Sequence[Observer]


class Observers:
    """The observers of a limiter. An exception in an observer does not affect the request.

    They run in the thread or on the event loop of the request. An event that an observer itself causes is not sent.

    An observer is a function. With ``needs_event``, it receives only the events whose outcomes it needs. With
    ``is_early``, it also receives an event when the response starts. An ``OutcomeReader`` counts requests without their
    events, as does the traffic log.

    Attributes:
        store: The kind of the store.
        readers: The readers.
        breaker: The circuit breaker of the store, None for the memory store.
        adaptive: The adaptive limits.
    """

    def __init__(
        self,
        observers: Sequence[str | Observer],
        log: TrafficLog | None,
        settings: Settings,
        store: str,
        adaptive: AdaptiveLimits,
    ) -> None:
        self.store, self._names = store, frozenset(settings.event_features)
        self.readers: list[OutcomeReader] = []
        self.breaker: Breaker | None = None
        self.adaptive = adaptive
        self._functions: list[Observer] = []
        self._log, self._has_clients = log, settings.traffic_clients
        self._thread = threading.local()  # is busy while it runs observers
        self._silent_until: dict[str, float] = {}
        self._start_over()
        run_in_child(self, Observers._start_over)
        for function in import_observers(observers):
            reader = getattr(function, "reader", None)
            found = reader() if reader else function
            if isinstance(found, OutcomeReader):
                self.readers.append(found)
                found.limiters[id(self)] = self
            else:
                self._functions.append(found)
        self.early = [function for function in self._functions if getattr(function, "is_early", False)]

    def _start_over(self) -> None:
        """Forget the rows. In a forked child, the counters are those of its parent."""
        self._rows: dict[object, _Row] = {}
        """The rows by all that the outcomes of a request depend on."""

    def gauges(self) -> Iterator[tuple[str, tuple[str, ...], int]]:
        """Yield the numbers of this moment, each with its name and its labels."""
        if self.breaker is not None:
            yield "breaker", (self.store,), int(self.breaker.open)
        for rule, level in self.adaptive.levels().items():
            yield "limit", (rule, level.reason), level.limit
            yield "in_flight", (rule,), level.in_flight

    def announce(self, verdicts: Sequence[Verdict], final: Verdict, endpoint: str | None, method: str | None) -> None:
        """Call the early observers. The request is not counted yet."""
        self._send(self.early, outcomes_of(verdicts, final, self.store), verdicts, endpoint, method)

    def report(
        self,
        verdicts: Sequence[Verdict],
        final: Verdict | None = None,
        endpoint: str | None = None,
        method: str | None = None,
        is_again: bool = False,
    ) -> None:
        """Report a request. ``is_again``: an earlier report has counted it for its endpoint."""
        counted = None if is_again or self._log is None else endpoint
        facts: list[object] = [counted]
        if len(verdicts) == 1 and final is None:  # most requests
            facts += type(verdicts[0]), verdicts[0].allowed
            for decision in verdicts[0].decisions:
                facts += decision.hit[0], decision.allowed, decision.why
        else:
            facts.append(outcomes_of(verdicts, final, self.store))
        row = self._rows.get(key := tuple(facts))
        if row is None:
            check_process()
            if len(self._rows) >= MAX_SERIES:
                self._rows.clear()
            row = self._rows[key] = self._build_row(outcomes_of(verdicts, final, self.store), counted)
        for count in row.counters:
            count()
        if row.functions:
            self._send(row.functions, row.outcomes, verdicts, endpoint, method)

    def _build_row(self, outcomes: RequestOutcomes, endpoint: str | None) -> _Row:
        counters = [count for reader in self.readers for count in self._call(reader.counters_of, outcomes) or ()]
        functions = [each for each in self._functions if getattr(each, "needs_event", lambda _: True)(outcomes)]
        if self._log is not None and self._has_clients:
            functions.insert(0, recorder_of(self._log, outcomes, endpoint))
        elif self._log is not None:
            counters += counters_of(self._log, outcomes, endpoint)
        return _Row(outcomes, counters, functions)

    def write(self) -> None:
        """Let the readers write what they have counted, because the process may end now."""
        for reader in self.readers:
            self._call(reader.write)

    def measure_store(self, seconds: float, result: str) -> None:
        """Report how long a call of the store took, and its result: "ok" or "error"."""
        for reader in self.readers:
            self._call(reader.measure_store, seconds, self.store, result)

    def _send(
        self,
        functions: Iterable[Observer],
        outcomes: RequestOutcomes,
        verdicts: Sequence[Verdict],
        endpoint: str | None,
        method: str | None,
    ) -> None:
        thread = self._thread
        if getattr(thread, "is_busy", False):
            return
        thread.is_busy = True
        try:
            features = self._features(verdicts) if self._names else _NO_VALUES
            method = method if method is None or method in _METHODS else "_OTHER"
            request = outcomes.outcome, self.store, endpoint, method
            event = Event(*request, outcomes, tuple(verdicts), features, settled_costs(verdicts))
            for function in functions:
                self._call(function, event)
        finally:
            thread.is_busy = False

    def _call(self, function: Callable[..., object], *arguments: object) -> Any:
        """Call an observer. Its error is logged, at most once a minute for each observer, and the result is None."""
        try:
            return function(*arguments)
        except (Exception, CancelledError) as error:  # of a future in the observer, not of the request
            name, now = _name_of(function), monotonic()
            if now >= self._silent_until.get(name, 0.0):
                self._silent_until[name] = now + _LOG_EVERY
                effect = "requests are not affected, and the next event goes to the observer again"
                _log.error("observer %s raised %s; %s", name, type(error).__name__, effect, exc_info=error)
            return None

    def _features(self, verdicts: Iterable[Verdict]) -> Mapping[str, str]:
        """Return the values in the keys of the decisions, as the store has them."""
        found: dict[str, str] = {}
        for decision in (each for verdict in verdicts for each in verdict.decisions):
            limit, key = decision.hit[:2]
            values = limit.values_of(key.removeprefix(limit.prefix).removesuffix(testmode.key_suffix))
            found |= {name: value for name, value in values.items() if name in self._names}
        return found


def import_observers(observers: Sequence[str | Observer]) -> tuple[Observer, ...]:
    """Return the functions of observers. ``ConfigError`` for one that cannot be imported."""
    with error_path("observers"):
        return parse_each(_imported, observers)


def _imported(observer: str | Observer) -> Observer:
    """Return a function, or that of ``"module:function"``."""
    if not isinstance(observer, str):
        return observer
    try:
        return checked_observer(resolve_name(observer))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import {observer!r}: {error}") from None


def _name_of(function: object) -> str:
    """Return the name of a function, or of the class of an object, for the log."""
    function = function.__self__ if ismethod(function) else function
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__ or 'builtins'}.{named.__qualname__}"
