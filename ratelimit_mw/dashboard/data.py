"""``read_data``: all that the page shows of a limiter at one moment, as JSON. Knows no HTML."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..clock import SECOND
from ..errors import RateLimitError, StoreError
from ..limiter.limiter import Limiter
from ..operations.forms import decision_json, override_json
from ..operations.overview import Overview
from ..operations.times import time_json
from ..stores.url import redacted_url
from .load import read_load
from .traffic import read_clients, read_traffic
from .view import View

Json = dict[str, Any]

_MOST_BANS: Final = 100
_MOST_PAGES: Final = 5
"""The maximum number of pages that are searched for bans, of up to 10,000 keys each."""
_KEPT: Final = 4 * SECOND
"""For so long, all pages share what the store has. Pages that ask at the same moment may each ask the store."""

_kept: Final = WeakKeyDictionary[Limiter, tuple[int, Json]]()


def read_data(limiter: Limiter, view: View) -> Json:
    """Return the parts of the page.

    A part that cannot be read is ``{"error": message}``. One that is turned off is ``{"missing": advice}``.

    Raises:
        ConfigError: The view has a range that cannot be shown.
    """
    now = limiter.clocks.time() / SECOND
    view.span(now)
    traffic, in_store = _read_traffic(limiter, view, now), _read_store(limiter)
    clients = _read_clients(limiter, view, now, traffic)
    rules = {"rules": _read_rules(limiter)}
    load = {"load": read_load(limiter)} if any(rule.source.adapts for rule in limiter.rules.rules) else {}
    return {"now": time_json(now), "traffic": traffic, **load, "clients": clients, "rules": rules, **in_store}


def forget_store(limiter: Limiter) -> None:
    """Read the store again for the next page, because an operator has changed something."""
    _kept.pop(limiter, None)


def _read_traffic(limiter: Limiter, view: View, now: float) -> Json:
    log = limiter.traffic_log
    if log is None:
        return {"missing": 'Add traffic_log = "sqlite:///traffic.db" to your settings to see curves and totals.'}
    return _part(lambda: read_traffic(log, view, now, limiter.rules))


def _read_clients(limiter: Limiter, view: View, now: float, traffic: Json) -> Json:
    log = limiter.traffic_log
    if log is None or not limiter.settings.traffic_clients:
        return {"missing": "Clients need traffic_log and traffic_clients = true in your settings."}
    if not view.clients:
        return {"hidden": "Clients are personal data, so they are hidden."}
    if "error" in traffic:
        return traffic  # where the log is unreachable, each call would wait for it again
    return _part(lambda: read_clients(log, view, now, limiter.rules))


def _read_rules(limiter: Limiter) -> list[Json]:
    """Return the rules, as the command ``check`` shows them, with the place that each comes from.

    A place is a decorator, a file and line of the settings, or both.
    """
    rules, overview = limiter.rules, Overview(limiter.rules, limiter.settings.amendments)
    places, views = defaultdict[str, dict[str, None]](dict), defaultdict[Any, set[str]](set)
    for mark in rules.marks:  # several views may have one limit
        rule = rules.rule_of(mark)
        places[rule.name][mark.place.rpartition(" at ")[2]] = None
        views[rule].add(mark.view)
    for rule in rules.rules:
        places[rule.name] |= dict.fromkeys(rule.lines)
    return [
        {
            **overview.as_json(rule),
            "shown": overview.row(rule) | ({"applies to": sorted(views[rule])} if rule in views else {}),
            "place": ", ".join(filter(None, places[rule.name])),
            "on_store_error": rule.source.on_store_error or limiter.settings.on_store_error,
        }
        for rule in rules.rules
    ]


def _read_store(limiter: Limiter) -> Json:
    """Return the state of the store, the bans and the overrides, as they were a few seconds ago or are now."""
    at, found = _kept.get(limiter, (0, {}))
    now = limiter.clocks.time()
    if not found or not 0 <= now - at < _KEPT:
        store = _read_state(limiter)
        found = {
            "store": store,
            "bans": _of_store(store, lambda: _read_bans(limiter)),
            "overrides": _of_store(store, lambda: _read_overrides(limiter)),
        }
        _kept[limiter] = now, found
    return found


def _read_state(limiter: Limiter) -> Json:
    error = ""
    try:
        limiter.store.ping()
    except StoreError as problem:
        error = str(problem)
    circuit_open = limiter.breaker is not None and limiter.breaker.open
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


def _read_bans(limiter: Limiter) -> Json:
    found: list[Json] = []
    cursor: str | None = ""
    for _ in range(_MOST_PAGES):
        decisions, cursor = limiter.clients.bans(cursor=cursor or "")
        found += [decision_json(each, limiter.rules) for each in decisions]
        if cursor is None or len(found) >= _MOST_BANS:
            break
    if not found and all(rule.ban is None for rule in limiter.rules.rules):
        return {"missing": "No rule has the option ban, and no client is banned."}
    bans = sorted(found, key=lambda each: (each["rule"], each["client"]))
    return {"bans": bans[:_MOST_BANS], "has_more": cursor is not None or len(bans) > _MOST_BANS}


def _read_overrides(limiter: Limiter) -> Json:
    return {"overrides": [override_json(each, limiter.rules) for each in limiter.clients.overrides()]}


def _of_store(store: Json, read: Callable[[], Json]) -> Json:
    """Read a part from the store, unless the store is unreachable: each call would wait for it again."""
    return _part(read) if store["reachable"] else {"error": "The store is unreachable."}


def _part(read: Callable[[], Json]) -> Json:
    try:
        return read()
    except RateLimitError as error:
        return {"error": str(error)}
