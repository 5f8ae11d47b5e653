"""``Observers``: the functions that a limiter calls with an event for each concluded request."""

from __future__ import annotations

import logging
import threading
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import iscoroutine
from time import monotonic
from types import MappingProxyType
from typing import Any, Final, get_args

from ..decision import Decision, Verdict
from ..errors import ConfigError, error_path
from ..forksafe import run_in_child
from ..settings.values import checked_observer
from ..stores import Store
from ..testmode import testmode
from ..traffic.number import Counter
from .counts import MAX_SERIES, Labels
from .events import Event, Outcome, outcome_of, outcome_of_rejection

Observer = Callable[[Event], object]

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_LOG_EVERY: Final = 60.0  # seconds
_log = logging.getLogger("ratelimit_mw")


class _Thread(threading.local):
    """Whether observers run in this thread."""

    is_busy = False


class Observers:
    """Calls observers. An error of one of them changes no request.

    They run in the thread or on the event loop of the request. An event that an observer itself causes is not sent.
    """

    def __init__(self, observers: Sequence[str | Observer], names: Sequence[str], store: Store) -> None:
        self._functions: list[tuple[str, Observer]] = []
        for i, observer in enumerate(observers):
            with error_path(f"observers[{i}]"):
                function = _imported(observer) if isinstance(observer, str) else observer
                self._functions.append((name_of(function), function))
        self._names = frozenset(names)
        self._store = type(store).__name__.removesuffix("Store").lower()
        self._counts_endpoints = any(hasattr(function, "request_counter_of") for _, function in self._functions)
        self._counters: dict[str | None, CountersByOutcome] = {}
        writers = ((name, getattr(function, "write_counts", None)) for name, function in self._functions)
        self._writers = [(name, write) for name, write in writers if write is not None]
        run_in_child(self, Observers.start_over)
        self._thread = _Thread()
        self._silent_until: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def start_over(self) -> None:
        """Ask the observers for new counters: in a forked child, or after the recorder was stopped."""
        self._counters.clear()

    def report_one(self, verdict: Verdict, endpoint: str | None = None) -> None:
        """Report a request with one verdict. Observers that only count need no event for most requests."""
        decisions = verdict.decisions
        try:
            try:
                counters = self._counters[endpoint]  # faster than ``get``
            except KeyError:
                counters = self._counters_at(endpoint)
            if len(decisions) == 1:
                decision = decisions[0]
                limit, counter = decision.hit[0], None
                if decision.allowed:
                    if not (decision.delay_us or limit.local):
                        counter = counters["allowed"][limit.rule]
                elif not (limit.local or decision.unavailable):
                    counter = counters[outcome_of_rejection(decision)][limit.rule]
                if counter is not None:
                    counter()
                    return
            elif decisions and _count_allowed(decisions, counters["allowed"]):
                return
        except Exception as error:  # for example of a file that several processes count in
            self.log(" and ".join(name for name, _ in self._functions), error)
        else:
            self.report((verdict,), endpoint=endpoint)

    def _counters_at(self, endpoint: str | None) -> CountersByOutcome:
        """Return the counters of an endpoint: those of all endpoints if no observer counts each of them."""
        if endpoint is not None and not self._counts_endpoints:
            counters = self._counters.get(None) or self._counters_at(None)
        else:
            functions = [function for _, function in self._functions]
            counters = {each: RuleCounters(functions, each, self._store, endpoint) for each in get_args(Outcome)}
        if len(self._counters) < MAX_SERIES:
            self._counters[endpoint] = counters
        return counters

    def report(self, verdicts: Sequence[Verdict], final: Verdict | None = None, endpoint: str | None = None) -> Event:
        """Call the observers with the event of these verdicts, and return it.

        ``final`` is the verdict of the request, which may be a rejection of another limiter.
        """
        outcome = outcome_of(verdicts if final is None or final.allowed else [*verdicts, final])
        event = Event(verdicts, outcome, self._store, self._features(verdicts) if self._names else _NONE, endpoint)
        thread = self._thread
        if self._functions and not thread.is_busy:
            thread.is_busy = True
            try:
                for name, function in self._functions:
                    try:
                        if iscoroutine(result := function(event)):
                            result.close()
                            raise TypeError("it returned a coroutine, which is not awaited")
                    except (Exception, CancelledError) as error:  # of a future in the observer, not of the request
                        self.log(name, error)
            finally:
                thread.is_busy = False
        return event

    def write_counts(self) -> None:
        """Let observers write what they have counted, because the process may end now."""
        for name, write in self._writers:
            try:
                write()
            except Exception as error:
                self.log(name, error)

    def log(self, name: str, error: BaseException) -> None:
        """Log the error of an observer, at most once a minute for each observer."""
        now = monotonic()
        if now < self._silent_until.get(name, 0.0):
            self._left_out[name] = self._left_out.get(name, 0) + 1
            return
        self._silent_until[name] = now + _LOG_EVERY
        more = f"; {left_out} more errors since the last message" if (left_out := self._left_out.pop(name, 0)) else ""
        message = "observer %s raised %s%s; no request is changed, and the observer is called again"
        _log.error(message, name, type(error).__name__, more, exc_info=error)

    def _features(self, verdicts: Sequence[Verdict]) -> Mapping[str, str]:
        """Return the values in the keys of the decisions, as the store has them."""
        found: dict[str, str] = {}
        for decision in (decision for verdict in verdicts for decision in verdict.decisions):
            limit, key = decision.hit[:2]
            values = limit.values_of(key.removeprefix(limit.prefix).removesuffix(testmode.key_suffix))
            found |= {name: value for name, value in values.items() if name in self._names}
        return found


def _needs_event(_: Labels) -> None: ...


class RuleCounters(dict[str | tuple[str, ...], Counter | None]):
    """The functions that count one more request with an outcome, by its rule or its rules.

    They are built when they are first used. None means that an observer needs the event.
    """

    def __init__(self, observers: Sequence[Observer], outcome: str, store: str, endpoint: str | None = None) -> None:
        self._observers = observers
        self._outcome, self._store, self._endpoint = outcome, store, endpoint

    def __missing__(self, rule: str | tuple[str, ...]) -> Counter | None:
        rules = (rule,) if isinstance(rule, str) else rule
        counters = [counter for observer in self._observers for counter in self._counters_of(observer, rules)]
        known = [counter for counter in counters if counter is not None]
        counter = known[0] if len(known) == 1 else lambda: [each() for each in known]
        found = counter if len(known) == len(counters) else None
        if len(self) < MAX_SERIES:
            self[rule] = found
        return found

    def _counters_of(self, observer: Observer, rules: tuple[str, ...]) -> list[Counter | None]:
        if (request_counter_of := getattr(observer, "request_counter_of", None)) is not None:
            return [request_counter_of(rules, self._outcome, self._endpoint)]
        counter_of = getattr(observer, "counter_of", _needs_event)
        return [counter_of((rule, self._outcome, self._store)) for rule in rules]


CountersByOutcome = Mapping[str, RuleCounters]


def _count_allowed(decisions: Sequence[Decision], allowed: RuleCounters) -> bool:
    """Count each rule once, and return True, when all limits allow the request."""
    rules: dict[str, None] = {}
    for decision in decisions:
        limit = decision.hit[0]
        if not decision.allowed or decision.delay_us or limit.local:
            return False
        rules[limit.rule] = None
    if (counter := allowed[tuple(rules)]) is None:
        return False
    counter()
    return True


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


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function or of the class of an object, for the log."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__ or 'builtins'}.{named.__qualname__}"
