"""``read_data``: all that the page shows of a limiter at one moment, as JSON. Knows no HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..clock import SECOND
from ..errors import RateLimitError, StoreError
from ..limiter.adaptive_limits import HISTORY_STEP
from ..limiter.limiter import Limiter
from ..limiter.observers.events import REJECTED
from ..operations.answer import Answer, span_text, time_json
from ..operations.clients import bans
from ..operations.overrides import list_overrides
from ..operations.overview import Overview, row_of
from ..operations.traffic import LogOutcomes, TrafficSeries, missing_text
from ..runtime.blocking import blocking_call, run_blocking
from ..stores.url import redacted_url
from ..traffic import Curve
from .view import View

Json = dict[str, Any]

LABELS: Final = {
    "allowed": "allowed",
    "rejected": "rejected",
    "shadow": "would be rejected",
    "limit": "limit",
    "in_flight": "in flight",
}
"""The lines of a curve, in their order."""
_CLIENTS: Final = {"rejected": REJECTED, "shadow": {"shadow"}, "allowed": {"allowed"}}
"""The outcomes of each list of clients."""
_NO_CLIENTS: Final = "Clients need traffic_log and traffic_clients = true in your settings."
_UNREACHABLE: Final = {"error": "The store is unreachable."}
_MAX_CURVES: Final = 20
_MAX_ROWS: Final = 50
_MAX_NAMES: Final = 200
_MAX_CLIENTS: Final = 20
_MAX_PAGES: Final = 5
"""The maximum number of pages that are searched for bans, of up to 10,000 keys each."""
_KEPT_FOR: Final = 4 * SECOND
"""The time for which all pages share what the store has. Pages that ask at the same moment may each ask the store."""

_kept: Final = WeakKeyDictionary[Limiter, tuple[int, Json]]()


def read_data(limiter: Limiter, view: View) -> Json:
    """Return the parts of the page.

    A part that cannot be read is ``{"error": message}``. One that is turned off is ``{"missing": advice}``.

    Raises:
        ConfigError: The view has a range that cannot be shown.
    """
    now = limiter.clocks.time() / SECOND
    start, end = view.span(now)
    load = {"load": _read_load(limiter)} if any(rule.source.adapts for rule in limiter.rules.rules) else {}
    of_log, in_store = _read_log(limiter, view, start, end), _read_store(limiter)
    return {"now": time_json(now), **of_log, **load, "rules": {"rules": _read_rules(limiter)}, **in_store}


def forget_store(limiter: Limiter) -> None:
    """Read the store again for the next page, because an operator has changed something."""
    _kept.pop(limiter, None)


def _read_log(limiter: Limiter, view: View, start: float, end: float) -> Json:
    """Return the traffic and the top clients of a view. An error of one is that of both, and is waited for once."""
    log, has_clients = limiter.traffic_log, limiter.settings.traffic_clients
    if log is None:
        missing = 'Add traffic_log = "sqlite:///traffic.db" to your settings to see curves and totals.'
        return {"traffic": {"missing": missing}, "clients": {"missing": _NO_CLIENTS}}
    clients = {"hidden": "Clients are personal data, so they are hidden."} if has_clients else {"missing": _NO_CLIENTS}
    try:
        outcomes = LogOutcomes(log, start, end, limiter.rules)
        traffic = _traffic_json(outcomes, view)
        if has_clients and view.clients:
            clients = _clients_json(outcomes, view)
    except RateLimitError as error:
        traffic = {"error": str(error)}
        clients = traffic if has_clients and view.clients else clients
    return {"traffic": traffic, "clients": clients}


def _traffic_json(outcomes: LogOutcomes, view: View) -> Json:
    """Return the totals of a view, with the curves of the largest."""
    several = [each for each in outcomes.series if each.kind == view.kind]
    chosen = [each for each in several if view.name in (None, each.name)]
    drawn = chosen[:_MAX_CURVES]
    events = [event for each in drawn for events in each.lines().values() for event in events]
    curves = outcomes.log.curves(events, outcomes.start, outcomes.end)
    order = {name: position for position, name in enumerate(outcomes.rules.by_name)}
    drawn.sort(key=lambda each: (order.get(each.name, len(order)), each.name))
    first = next(iter(curves.values()), None)
    return {
        "log": outcomes.log.name,
        "from": time_json(outcomes.start),
        "to": time_json(outcomes.end),
        "by": view.kind,
        "name": view.name,
        "kinds": Counter(each.kind for each in outcomes.series),
        "names": sorted(each.name for each in several[:_MAX_NAMES]),
        "totals": [each.as_json() for each in chosen[:_MAX_ROWS]],
        "totals_left_out": max(0, len(chosen) - _MAX_ROWS),
        "start": first and time_json(first.start),
        "step": first and first.step,
        "curves": [_curve_json(each, curves) for each in drawn],
        "curves_left_out": len(chosen) - len(drawn),
    }


def _curve_json(series: TrafficSeries, curves: Mapping[str, Curve]) -> Json:
    lines = {
        line: [sum(column) for column in zip(*(curves[event].counts for event in events), strict=True)]
        for line, events in series.lines().items()
    }
    peaks = ", ".join(f"{max(counts):,} {LABELS[line]}" for line, counts in lines.items())
    span = span_text(next(iter(curves.values())).step)
    is_shadow = series.mode == "shadow"
    return {**series.as_json(), "is_shadow": is_shadow, "lines": lines, "peaks": f"at most {peaks} in {span}"}


def _clients_json(outcomes: LogOutcomes, view: View) -> Json:
    """Return the clients with the highest counts, per outcome. Below ``complete_from``, some may be missing."""
    name = view.name if view.kind == "rule" else None  # endpoints have no clients
    found = {line: outcomes.clients(several, _MAX_CLIENTS, name) for line, several in _CLIENTS.items()}
    complete_from = max(each for _, each in found.values())
    lists = {line: clients for line, (clients, _) in found.items()}
    return {**lists, "complete_from": complete_from, "note": missing_text(complete_from)}


def _read_load(limiter: Limiter) -> Json:
    """Return the adaptive limits of this process in the last hour: of several keys of a rule, the lowest limit."""
    start, history = limiter.adaptive.history()
    curve = {"start": time_json(start / SECOND), "step": HISTORY_STEP // SECOND}
    rows = []
    for rule, level in history[-1].items():
        lines = {name: [getattr(levels.get(rule), name, None) for levels in history] for name in ("limit", "in_flight")}
        peaks = f"the last change: {level.reason}"
        rows.append({"rule": rule, **level._asdict(), "peaks": peaks, "lines": lines, **curve})
    return {"curves": rows}


def _read_rules(limiter: Limiter) -> list[Json]:
    """Return the rules, as the command ``check`` shows them."""
    rules = map(Overview(limiter.rules, limiter.settings.amendments).as_json, limiter.rules.rules)
    return [{**rule, "shown": row_of(rule)} for rule in rules]


def _read_store(limiter: Limiter) -> Json:
    """Return the state of the store, the bans and the overrides, as they were a few seconds ago or are now."""
    at, found = _kept.get(limiter, (-_KEPT_FOR, {}))
    now = limiter.clocks.time()
    if not 0 <= now - at < _KEPT_FOR:
        store = _read_state(limiter)
        found = {"store": store, "bans": _UNREACHABLE, "overrides": _UNREACHABLE}
        if store["reachable"]:  # otherwise each call would wait for the store again
            shown = bans(blocking_call, limiter, pages=_MAX_PAGES)
            found |= {"bans": _part(shown), "overrides": _part(list_overrides(blocking_call, limiter))}
        _kept[limiter] = now, found
    return found


def _read_state(limiter: Limiter) -> Json:
    error = ""
    try:
        limiter.store.ping()
    except StoreError as problem:
        error = str(problem)
    circuit_open = limiter.remote is not None and limiter.remote.breaker.open
    return {
        "name": redacted_url(limiter.store),
        "reachable": not error,
        "error": error,
        "circuit_open": circuit_open,
        "problem": "unreachable" if error else "circuit open" if circuit_open else "",
        "on_store_error": limiter.settings.on_store_error,
        "local_decisions": limiter.local_decisions,
        "traffic_log": limiter.traffic_log.name if limiter.traffic_log else None,
        "traffic_clients": limiter.settings.traffic_clients,
        "settings": limiter.settings.source,
    }


def _part(operation: Coroutine[Any, Any, Answer]) -> Json:
    """Return the result of an operation, or its error."""
    try:
        return run_blocking(operation).json  # type: ignore[no-any-return]
    except RateLimitError as error:
        return {"error": str(error)}
