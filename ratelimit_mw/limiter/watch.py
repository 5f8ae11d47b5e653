"""``Watch``: checks for changes at intervals. A request only compares two timestamps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from ..forksafe import run_in_child


class Watch(Protocol):
    """Looks for changes that another process, or an operator, has made."""

    @property
    def due_at(self) -> float:
        """The time of the next look, by ``time.monotonic``."""

    def look(self) -> None:
        """Look for changes, in a thread where that may take long."""


class Watches:
    """Several of them, each with a time of its own."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches
        self._start_over()
        run_in_child(self, Watches._start_over)

    def _start_over(self) -> None:
        self.due_at = 0.0

    def look(self) -> None:
        now = monotonic()
        for each in self._watches:
            if now >= each.due_at:
                each.look()
        self.due_at = min([each.due_at for each in self._watches], default=math.inf)
