"""``Fleet``: the number of processes that share the limits of a store. It makes no calls of its own.

Each process holds a slot under one key that all processes share. An additional hit in its first call takes the slot.
Additional hits in later calls renew it every 30 s, and more often at first. The other slots belong to the other
processes. The slot of a process that was killed, or has no requests, expires after ten minutes.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Final, cast

from ...algorithms.concurrency import Concurrency
from ...algorithms.limit import Limit
from ...clock import SECOND, monotonic
from ...decision import Decision, Hit, SlotCost, name_slots
from ...errors import ConfigError
from ...forksafe import check_process, run_in_child
from ...quota import Quota
from ...receipt import Correction
from ...stores import Store
from ...testmode import testmode

_FIRST_INTERVAL: Final = 0.25  # seconds between the second and the third announcement; then it doubles up to the last
_LAST_INTERVAL: Final = 30.0
_COUNTED_EVERY: Final = 10.0
_VARYING: Final = re.compile(rb"\d+|master|worker")  # in the command lines of the processes of one server

FLEET: Final = Limit("", 0, Quota.exact(10_000, 0, concurrent=True), None, shadow=True)
"""No rule has an empty name. A shadow limit rejects no request, even with more processes than slots."""
cast(Concurrency, FLEET.algorithm).lifetime = 600 * SECOND


class Fleet:
    """Announces this process in a store, and remembers the number of processes while the store is unreachable."""

    def __init__(self, store: Store, given_size: int | None) -> None:
        self._given = given_size
        self._learned = self._counted = 0
        self._counted_until = 0.0
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
        """The number of processes: the setting, else the number learned or counted on this machine; 0 if not known."""
        if self._given is not None:
            return self._given
        if (now := monotonic()) >= self._counted_until:
            self._counted, self._counted_until = count_processes(), now + _COUNTED_EVERY
        return max(self._learned, self._counted)

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


def count_processes() -> int:
    """Return the number of processes that the server of this process runs on this machine, 0 if it is not known."""
    stated = os.environ.get("WEB_CONCURRENCY", "")
    counts = [int(stated)] if re.fullmatch("[0-9]{1,4}", stated) else [0]
    try:
        return max(*counts, _count_siblings())
    except OSError:  # not Linux
        return counts[0]


def _count_siblings() -> int:
    """Count the processes that the parent has forked or spawned in the same way as this one."""
    parent, own = os.getppid(), _command(os.getpid())
    if multiprocessing.parent_process() is None and _command(parent) != own:
        return 0
    lists = Path(f"/proc/{parent}/task").glob("*/children")
    return sum(_command(int(pid)) == own for each in lists for pid in each.read_text().split())


def _command(pid: int) -> bytes:
    return _VARYING.sub(b"", Path(f"/proc/{pid}/cmdline").read_bytes())
