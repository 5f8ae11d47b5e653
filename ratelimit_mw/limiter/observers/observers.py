"""``Observers``: the functions that a limiter calls with an event for each concluded request."""

from __future__ import annotations

import logging
import threading
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import iscoroutine
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, get_args

from ...clock import monotonic
from ...decision import Decision, Verdict
from ...errors import ConfigError, error_path
from ...forksafe import run_in_child
from ...settings.values import checked_observer
from ...stores import Store
from ...testmode import testmode
from .counts import MAX_SERIES, Labels
from .events import Event, Outcome, outcome_of, outcome_of_rejection
from .number import Counter

Observer = Callable[[Event], object]

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_LOG_EVERY: Final = 60.0  # seconds
_log = logging.getLogger("ratelimit_mw")


class _Thread(threading.local):
    """Whether observers run in this thread."""

    is_busy = False


class Observers:
    """Calls observers. An exception in an observer does not affect the request.

    They run in the thread or on the event loop of the request. An event that an observer itself causes is not sent.
    """

    def __init__(self, observers: Sequence[str | Observer], names: Sequence[str], store: Store) -> None:
        self._functions = [(name_of(function), function) for function in import_observers(observers)]
        self._names = frozenset(names)
        self._store = type(store).__name__.removesuffix("Store").lower()
        functions = [function for _, function in self._functions]
        self._counters = {each: Counters(functions, each, self._store) for each in get_args(Outcome)}
        tables = [self._counters[outcome].by_endpoint for outcome in ("allowed", "shadow", "rejected")]
        self._allowed, self._shadow, self._rejected = tables  # of most requests
        writers = ((name, getattr(function, "write_counts", None)) for name, function in self._functions)
        self._writers = [(name, write) for name, write in writers if write is not None]
        run_in_child(self, Observers.start_over)
        self._thread = _Thread()
        self._silent_until: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def start_over(self) -> None:
        """Ask the observers for new counters, in a forked child."""
        for counters in self._counters.values():
            counters.by_endpoint.clear()

    def report_one(self, verdict: Verdict, endpoint: str | None = None) -> None:
        """Report a request with one verdict. Observers that only count need no event for most requests."""
        decisions, counter = verdict.decisions, None
        try:
            if len(decisions) == 1:  # without a call: most requests take this path
                decision = decisions[0]
                limit = decision.hit[0]
                try:
                    if decision.allowed:
                        if not (decision.delay_us or limit.local):
                            counter = self._allowed[endpoint][limit.rule]
                    elif not (decision.why or limit.local):  # neither "banned" nor "unavailable"
                        counter = (self._shadow if limit.shadow else self._rejected)[endpoint][limit.rule]
                except KeyError:  # it is new
                    pass
            if counter is None:
                counter = self._counter_of(decisions, endpoint)
            if counter is not None:
                next(counter)
                return
        except Exception as error:  # for example of a file that several processes count in
            self.log(" and ".join(name for name, _ in self._functions), error)
        else:
            self.report((verdict,), endpoint=endpoint)

    def _counter_of(self, decisions: Sequence[Decision], endpoint: str | None) -> Counter | None:
        """Return the counter of a request that all limits allow, or that its only limit rejects.

        Each rule counts once. None means that an observer needs the event.
        """
        rules: dict[str, None] = {}
        outcome: Outcome = "allowed"
        for decision in decisions:
            limit = decision.hit[0]
            if decision.delay_us or limit.local:
                return None
            if not decision.allowed:
                if len(decisions) > 1 or decision.unavailable:
                    return None
                outcome = outcome_of_rejection(decision)
            rules[limit.rule] = None
        names = tuple(rules) if len(rules) > 1 else next(iter(rules), None)
        return self._counters[outcome].find(names, endpoint) if names else None

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
                            raise TypeError("it returned a coroutine, but is not awaited. Pass a sync function")
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
        message = "observer %s raised %s%s; requests are not affected, and the next event goes to the observer again"
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


Rules = str | tuple[str, ...]
"""The name of a rule, or those of several rules."""


class Counters:
    """The counters of requests with one outcome. They are built when first used, and their number is bounded.

    Attributes:
        by_endpoint: The counters by endpoint, then by rules. None means that an observer needs the event.
    """

    def __init__(self, observers: Sequence[Observer], outcome: str, store: str) -> None:
        self.by_endpoint: dict[str | None, dict[Rules, Counter | None]] = {}
        self._observers, self._outcome, self._store = observers, outcome, store
        self._has_endpoints = any(hasattr(observer, "request_counter_of") for observer in observers)

    def find(self, rules: Rules, endpoint: str | None) -> Counter | None:
        """Return the counter of requests of these rules: one for all endpoints if no observer counts each of them."""
        try:
            return self.by_endpoint[endpoint][rules]
        except KeyError:  # it is new
            pass
        own = endpoint if self._has_endpoints else None
        counters = self.by_endpoint.get(own, {})
        if rules not in counters and len(counters) < MAX_SERIES:
            counters[rules] = self._build(rules, own)
        for each in (own, endpoint):
            if len(self.by_endpoint) < MAX_SERIES:
                self.by_endpoint.setdefault(each, counters)
        return counters[rules] if rules in counters else self._build(rules, own)

    def _build(self, rules: Rules, endpoint: str | None) -> Counter | None:
        names = (rules,) if isinstance(rules, str) else rules
        counters = [counter for observer in self._observers for counter in self._of(observer, names, endpoint)]
        known = [counter for counter in counters if counter is not None]
        if len(known) < len(counters):
            return None
        return known[0] if len(known) == 1 else zip(repeat(None), *known)  # endless without a counter, too

    def _of(self, observer: Observer, rules: tuple[str, ...], endpoint: str | None) -> list[Counter | None]:
        if (request_counter_of := getattr(observer, "request_counter_of", None)) is not None:
            return [request_counter_of(rules, self._outcome, endpoint)]
        counter_of = getattr(observer, "counter_of", _needs_event)
        return [counter_of((rule, self._outcome, self._store)) for rule in rules]


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


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function or of the class of an object, for the log."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__ or 'builtins'}.{named.__qualname__}"
