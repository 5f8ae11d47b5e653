"""``DashboardData``: all that the page shows of a limiter at one moment, as JSON. Knows no HTML."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from ..clock import SECOND
from ..errors import RateLimitError, StoreError
from ..limiter.limiter import Limiter
from ..operations.forms import decision_json, override_json
from ..operations.times import time_json
from ..rules.describe import Overview
from ..stores import redacted_url
from .recent import Json, Recent
from .traffic import read_clients, read_traffic
from .view import View

_MOST_BANS: Final = 100
_MOST_PAGES: Final = 5
"""The maximum number of pages that are searched for bans, of up to 10,000 keys each."""

_recent: Final = Recent()


class DashboardData:
    """The parts of the page. Each is read when it is first used.

    A part that cannot be read is ``{"error": message}``. One that is turned off is ``{"missing": advice}``.
    """

    def __init__(self, limiter: Limiter, view: View) -> None:
        self.limiter = limiter
        self.view = view
        self.now = limiter._time() / SECOND
        view.span(self.now)  # raises for a range that cannot be shown

    def as_json(self) -> Json:
        """Return all parts."""
        parts = {name: getattr(self, name) for name in ("store", "traffic", "clients", "bans", "overrides", "rules")}
        return {"now": time_json(self.now), **parts}

    @cached_property
    def store(self) -> Json:
        """The state of the store."""
        return _recent.get(self.limiter, "store", self._read_store)

    @cached_property
    def traffic(self) -> Json:
        """The counts of the traffic log."""
        log = self.limiter.traffic_log
        if log is None:
            return {"missing": 'Add `traffic_log = "sqlite:///traffic.db"` to your settings to see curves and totals.'}
        return _part(lambda: read_traffic(log, self.view, self.now, self.limiter.rules))

    @cached_property
    def clients(self) -> Json:
        """The clients with the most requests and rejections, if the view has them."""
        limiter = self.limiter
        log = limiter.traffic_log
        if log is None or not limiter.settings.traffic_clients:
            return {"missing": "Clients need `traffic_log` and `traffic_clients = true` in your settings."}
        if not self.view.clients:
            return {"hidden": "Clients are personal data, so they are hidden."}
        if "error" in self.traffic:
            return self.traffic  # where the log is unreachable, each call would wait for it again
        return _part(lambda: read_clients(log, self.view, self.now, limiter.rules))

    @cached_property
    def bans(self) -> Json:
        """The clients that are banned now."""
        if all(rule.ban is None for rule in self.limiter.rules.rules):
            return {"missing": "No rule has the option ban."}
        return self._recently("bans", self._read_bans)

    @cached_property
    def overrides(self) -> Json:
        """The clients with other limits."""
        return self._recently("overrides", self._read_overrides)

    @cached_property
    def rules(self) -> Json:
        """The rules, as the command ``check`` shows them, with the place that each comes from."""
        limiter = self.limiter
        rules, overview = limiter.rules, Overview(limiter.rules, limiter.settings.amendments)
        places, views = rule_places(limiter), defaultdict[Any, list[str]](list)
        for mark in rules.marks:
            views[rules.rule_of(mark)].append(mark.view)
        return {
            "rules": [
                {
                    **overview.as_json(rule),
                    "shown": overview.row(rule) | ({"applies to": sorted(set(views[rule]))} if rule in views else {}),
                    "place": places.get(rule.name, ""),
                    "on_store_error": rule.source.on_store_error or limiter.settings.on_store_error,
                }
                for rule in rules.rules
            ]
        }

    def _of_store(self, read: Callable[[], Json]) -> Json:
        """Read a part from the store, unless the store is unreachable: each call would wait for it again."""
        return _part(read) if self.store["reachable"] else {"error": "The store is unreachable."}

    def _recently(self, name: str, read: Callable[[], Json]) -> Json:
        """Read a part from the store, unless a viewer has read it in the last seconds."""
        return _recent.get(self.limiter, name, lambda: self._of_store(read))

    def _read_store(self) -> Json:
        limiter, error = self.limiter, ""
        try:
            limiter.store.ping()
        except StoreError as problem:
            error = str(problem)
        return {
            "name": redacted_url(limiter.store),
            "reachable": not error,
            "error": error,
            "circuit_open": limiter.breaker is not None and limiter.breaker.open,
            "on_store_error": limiter.settings.on_store_error,
            "local_decisions": limiter.local_decisions,
            "traffic_log": limiter.traffic_log.name if limiter.traffic_log else None,
            "traffic_clients": limiter.settings.traffic_clients,
            "settings": limiter.settings.source,
        }

    def _read_bans(self) -> Json:
        found: list[Json] = []
        cursor: str | None = ""
        for _ in range(_MOST_PAGES):
            decisions, cursor = self.limiter.bans(cursor=cursor or "")
            found += [decision_json(each, self.limiter.rules) for each in decisions]
            if cursor is None or len(found) >= _MOST_BANS:
                break
        bans = sorted(found, key=lambda each: (each["rule"], each["client"]))
        return {"bans": bans[:_MOST_BANS], "has_more": cursor is not None or len(bans) > _MOST_BANS}

    def _read_overrides(self) -> Json:
        return {"overrides": [override_json(each, self.limiter.rules) for each in self.limiter.overrides()]}


def rule_places(limiter: Limiter) -> dict[str, str]:
    """Return where each rule is declared: its decorator, the file and line of the settings, or both."""
    rules, of_settings = limiter.rules, limiter.settings.rule_places
    places = defaultdict[str, dict[str, None]](dict)
    for mark in rules.marks:  # several views may have one limit
        places[rules.rule_of(mark).name][mark.place.rpartition(" at ")[2]] = None
    for name, place in of_settings.items():
        places[name][place] = None
    return {name: ", ".join(filter(None, places[name])) for name in rules.by_name}


def _part(read: Callable[[], Json]) -> Json:
    try:
        return read()
    except RateLimitError as error:
        return {"error": str(error)}
