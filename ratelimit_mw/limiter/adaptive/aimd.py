"""A limit of concurrent requests that follows their times: additive increase, multiplicative decrease (AIMD).

The responses of a window decide its end. When at most a tenth of them are slow, their 90th percentile is within the
target, and a limit that was in use grows. Otherwise the limit falls. A response that the service has dropped is slow
even if it took little time. A window without responses changes nothing.
"""

from typing import ClassVar, Final

from ...clock import SECOND
from ...decision import Tuning

_WINDOW: Final = SECOND
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
        tuning: The bounds of the limit, and the time within which 90% of the requests should end.

    Attributes:
        limit: The limit, which has fractions while it falls.
        in_flight: The number of requests in flight.
        reason: Why the limit has changed last: ``"start"``, ``"grew"``, ``"slow"`` or ``"dropped"``.
    """

    __slots__ = ("_began", "_ceiling", "_doubles", "_dropped", "_ended", "_floor", "_kept_out", "_kept_until", "_peak",
                 "_slow", "_step", "_target", "in_flight", "limit", "reason")  # fmt: skip
    drops: ClassVar = frozenset({503, 504, None})
    """The statuses of requests that the service has dropped. None is a request that it has cancelled."""

    def __init__(self, tuning: Tuning) -> None:
        self._floor, self._ceiling, self._target, self._step = tuning.floor, tuning.ceiling, tuning.target, 1.0
        self.limit = float(min(max(tuning.floor, _START), tuning.ceiling))
        self.in_flight = 0
        self.reason = "start"
        self._doubles = True
        self._kept_out = self._kept_until = 0  # the share of a class that was rejected, and until when it matters
        self._begin(-1)  # a window begins with its first request

    @property
    def _used(self) -> int:
        """How much of the limit is in use at the start of a window."""
        return self.in_flight

    def _begin(self, now: int) -> None:
        self._began = now
        self._ended = self._slow = self._dropped = 0
        self._peak = self._used

    def room(self, now: int, share: int = 100) -> tuple[int, int]:
        """Return how many more requests of a class may pass, and its limit: a share in percent, at least 1.

        Without room, a request of the class is rejected.
        """
        if now - self._began >= _WINDOW:
            self._close(now)
        most = int(self.limit * share / 100) or 1
        room, is_apart = most - self.in_flight, now < self._kept_until
        if is_apart and share < self._kept_out and self.in_flight * 2 >= most:
            room = 0
        if room <= 1 and (share >= self._kept_out or not is_apart):
            self._kept_out, self._kept_until = share, now + _APART
        if room > 0:
            return room, most
        self._peak = self._ceiling  # the demand is above the limit
        return 0, most

    def enter(self, now: int) -> None:
        """Count a request that begins."""
        if self._began < 0:
            self._begin(now)
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)

    def respond(self, now: int, took: int, status: int | None = 200) -> None:
        """Note the response to a request.

        Args:
            now: The time in microseconds.
            took: The microseconds that it took.
            status: The status of the response; None for a request that timed out, or that the service has cancelled.
        """
        is_dropped = status in self.drops
        self._ended += 1
        self._slow += is_dropped or took > self._target
        self._dropped += is_dropped
        self._close(now)

    def leave(self) -> None:
        """End a request."""
        self.in_flight -= 1

    def _close(self, now: int) -> None:
        """Change the limit at the end of a window."""
        if self._began < 0 or now - self._began < _WINDOW:
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
