"""``Follower``: looks for changes at intervals. A request only compares two timestamps, unless its worker was idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...clock import monotonic
from ...runtime.blocking import Call, blocking_call, is_on_event_loop, twins
from ...runtime.forksafe import run_in_child

_EARLY: Final = 0.75
"""The part of the interval after which a request begins the next look, so that a busy worker never waits for one."""
NEVER: Final = -1e9
"""The time of a look that was not made yet."""


class Follower:
    """Looks for changes that another process, or an operator, has made. Times are those of ``time.monotonic``."""

    _begun_at = NEVER
    """When the last look began in the background."""
    _seen_at = NEVER
    """When the last look began that has ended: later changes are not known."""

    @property
    def interval(self) -> float:
        """The seconds after which a look is stale; infinity where nothing changes."""
        raise NotImplementedError

    @property
    def stale_at(self) -> float:
        """The time from which a request waits for a look."""
        return self._seen_at + self.interval

    @property
    def due_at(self) -> float:
        """The time from which a request begins a look. While one runs, a request waits for it once it is stale."""
        return self.stale_at if self._begun_at > self._seen_at else self._seen_at + _EARLY * self.interval

    async def look(self, call: Call, waits: bool) -> None:
        """Look for changes, in a thread or a task where it may take long.

        With ``waits``, return when they are in effect. All requests that are on the way wait for one look.
        """
        raise NotImplementedError


class Watch:
    """The followers of a limiter, each with a time of its own.

    Attributes:
        due_at: The time from which a request calls ``look`` or ``alook``.
    """

    def __init__(self, followers: Sequence[Follower]) -> None:
        self._followers = followers
        self.start_over()
        run_in_child(self, Watch.start_over)

    def start_over(self) -> None:
        """Ask the followers at the next request, because the settings have changed."""
        self.due_at = 0.0

    async def _look(self, call: Call) -> None:
        """Begin the looks that are due. Wait for those that are stale, but never block an event loop."""
        may_wait = call is not blocking_call or not is_on_event_loop()
        for each in self._followers:
            if (now := monotonic()) >= each.due_at:
                await each.look(call, may_wait and now >= each.stale_at)
        self.due_at = min(each.due_at for each in self._followers)

    look, alook = twins(_look)
