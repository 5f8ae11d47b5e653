"""A limit of concurrent requests that follows their times: additive increase, multiplicative decrease (AIMD).

The responses of a window decide its end. When at most a tenth of them are slow, their 90th percentile is within the
target, and a limit that was in use grows. Otherwise the limit falls. A response that the service has dropped is slow
even if it took little time. A window without responses changes nothing.
"""

from typing import Final

from ...clock import SECOND

WINDOW: Final = SECOND
"""The shortest window in microseconds."""
_SAMPLES: Final = 100
"""A window has as many responses, or so many slow ones that more responses cannot change its result."""
_START: Final = 20
_DECREASE: Final = 0.8
_IN_USE: Final = 0.8
_APART: Final = SECOND
"""The microseconds for which a rejection keeps lower classes out."""


class Aimd:
    """The limit of the requests in flight of one key, and these requests.

    After a start, and from the floor, the limit doubles until a window is slow. A request of a class may pass while
    the requests in flight are below the share of its class. A class that is rejected keeps the lower classes out for
    another second, unless less than half of their share is in use. So the lowest class is rejected first.

    Args:
        floor: The smallest limit, at least 1.
        ceiling: The largest limit.
        target: The time in microseconds within which 90% of the requests should end.
        step: How much the limit grows at once.

    Attributes:
        limit: The limit, which has fractions while it falls.
        in_flight: The number of requests in flight.
        reason: Why the limit has changed last: ``"start"``, ``"grew"``, ``"slow"`` or ``"dropped"``.
    """

    __slots__ = ("_began", "_ceiling", "_doubles", "_dropped", "_ended", "_floor", "_kept_out", "_peak", "_slow",
                 "_step", "_target", "in_flight", "limit", "reason")  # fmt: skip

    def __init__(self, floor: int, ceiling: int, target: int, step: float = 1.0) -> None:
        self._floor, self._ceiling, self._target, self._step = floor, ceiling, target, step
        self.limit = float(min(max(floor, _START), ceiling))
        self.in_flight = 0
        self.reason = "start"
        self._doubles = True
        self._kept_out: tuple[int, int] = (0, 0)  # the share of a class that was rejected, and until when
        self._began = -1  # a window begins with its first request
        self._begin(-1)

    def _begin(self, now: int) -> None:
        self._began = now
        self._ended = self._slow = self._dropped = 0
        self._peak = self.in_flight

    def room(self, share: int) -> int:
        """Return how many requests a class with a share in percent may have in flight, at least 1."""
        return max(1, int(self.limit * share / 100))

    def allows(self, now: int, share: int = 100) -> bool:
        """Return whether another request may pass, for a class with a share of the limit in percent."""
        self._close(now)
        (kept_out, until), room = self._kept_out, self.room(share)
        is_kept_out = share < kept_out and now < until and self.in_flight * 2 >= room
        if self.in_flight < room and not is_kept_out:
            return True
        if share >= kept_out or now >= until:
            self._kept_out = (share, now + _APART)
        self._peak = self._ceiling  # the demand is above the limit
        return False

    def enter(self, now: int) -> None:
        """Count a request that begins."""
        if self._began < 0:
            self._begin(now)
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)

    def respond(self, now: int, took: int, dropped: bool = False) -> None:
        """Note the response to a request.

        Args:
            now: The time in microseconds.
            took: The microseconds that it took.
            dropped: Whether the service gave up: a status 503 or 504, a timeout, or a request that it cancelled.
        """
        self._ended += 1
        self._slow += dropped or took > self._target
        self._dropped += dropped
        self._close(now)

    def leave(self) -> None:
        """End a request."""
        self.in_flight -= 1

    def _close(self, now: int) -> None:
        """Change the limit at the end of a window."""
        if self._began < 0 or now - self._began < WINDOW:
            return
        if self._slow * 10 > max(self._ended, _SAMPLES):
            self.limit = max(float(self._floor), self.limit * _DECREASE)
            self.reason = "dropped" if self._dropped * 2 > self._slow else "slow"
            self._doubles = self.limit == self._floor
            self._begin(now)
        elif self._ended >= _SAMPLES:
            if self._peak >= self.limit * _IN_USE and self.limit < self._ceiling:
                self.limit = min(float(self._ceiling), self.limit * 2 if self._doubles else self.limit + self._step)
                self.reason = "grew"
            self._begin(now)
