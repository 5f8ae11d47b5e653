"""``Fleet``: the number of processes that share the limits of a store. It makes no calls of its own.

Each process holds a slot under one key that all processes share. An additional hit in its first call takes the slot.
Additional hits in later calls renew it every 30 s, and more often at first. The other slots belong to the other
processes. The slot of a process that was killed, or has no requests, expires after ten minutes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from math import inf
from typing import Final, cast

from ...algorithms.concurrency import Concurrency
from ...clock import SECOND, monotonic
from ...decision import Correction, Decision, Hit, Limit, SlotCost, name_slots
from ...errors import ConfigError
from ...quota import Quota
from ...runtime.forksafe import check_process, run_in_child
from ...stores import Store
from ...testmode import testmode

_FIRST_INTERVAL: Final = 0.25  # seconds between the second and the third announcement; then it doubles up to the last
_LAST_INTERVAL: Final = 30.0

FLEET: Final = Limit("", 0, Quota.exact(10_000, 0, concurrent=True), Concurrency, shadow=True)
"""No rule has an empty name. A shadow limit rejects no request, even with more processes than slots."""
cast(Concurrency, FLEET.algorithm).lifetime = 600 * SECOND


class Fleet:
    """Announces this process in a store, and remembers the number of processes while the store is unreachable."""

    def __init__(self, store: Store, given_size: int | None) -> None:
        self._given = given_size
        self._learned = 0
        self._announces = given_size is None and takes_slots(store)
        self._start_over()
        run_in_child(self, Fleet._start_over)

    def _start_over(self) -> None:
        """Prepare a new announcement. A forked child does so, because it is a separate process."""
        (self._hit,) = name_slots([Hit(FLEET, FLEET.prefix, 1)])
        self._is_announced = False
        self._interval = 0.0
        self.due_at = 0.0 if self._announces else inf
        """The time of the next announcement, by the monotonic clock."""

    @property
    def size(self) -> int:
        """The number of processes: the setting, else the number learned or stated for the server; 0 if not known."""
        return max(self._learned, stated_workers()) if self._given is None else self._given

    def join(self, hits: Sequence[Hit]) -> Sequence[Hit]:
        """Add the announcement to the hits of a call."""
        if testmode.active:
            return hits
        check_process()
        self.due_at = monotonic() + _FIRST_INTERVAL
        return [*hits, self._hit]

    def learn(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Return the decisions without the decision on the announcement. A rejected call has announced nothing.

        A rejected announcement does not show the number of processes.
        """
        *others, announced = decisions
        if not announced.allowed:
            return others
        if all(decision.allowed or decision.shadow for decision in others):
            self._is_announced = True
            self.due_at = monotonic() + self._interval
            self._interval = min(max(2 * self._interval, _FIRST_INTERVAL), _LAST_INTERVAL)
        self._learned = FLEET.limit - announced.remaining + (not self._is_announced)
        return others

    def leave(self) -> list[Correction]:
        """Return the correction that ends the announcement of a process."""
        if not self._is_announced:
            return []
        limit, key, slot = self._hit
        self._start_over()
        return [Correction.return_slots(limit, key, cast(SlotCost, slot))]


def takes_slots(store: Store) -> bool:
    """Return whether processes can announce themselves in a store."""
    try:
        store.check(FLEET)
    except ConfigError:  # of a store of the application
        return False
    return True


def stated_workers() -> int:
    """Return the number of workers of the server of this process, by ``WEB_CONCURRENCY``; 0 if it is not stated."""
    stated = os.environ.get("WEB_CONCURRENCY", "")
    return int(stated) if re.fullmatch("[0-9]{1,4}", stated) else 0
