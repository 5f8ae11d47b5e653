"""fixed-window: a count for each window ``[k*P, (k+1)*P)`` from the epoch. Up to 2N can pass around a window's edge.

token-bucket with ``refill = "interval"`` is a window too: it begins at the first hit, and each window is a refill. So
are the days, weeks, months and years of a calendar, whose windows have several lengths.

State: (end of the window, count, time of its first hit).
"""

import calendar
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from ..clock import SECOND
from ..decision import Algorithm, Charge, Decision
from ..quota import Quota

State = tuple[int, int, int] | None


class FixedWindow(Algorithm):
    """Allows a cost ``c`` when ``count + c <= N`` in the current window."""

    name = "fixed-window"
    fields = 3
    is_aligned = True

    def __init__(self, quota: Quota) -> None:
        super().__init__(quota)
        self.alignment = self.period if self.is_aligned else 1
        self.shortest = self.period
        """The shortest window."""

    @property
    def lifetime(self) -> int:
        return self.period

    def end_of(self, now: int) -> int:
        """Return the end of the window that a time is in."""
        return now - now % self.alignment + self.period

    def start_of(self, end: int) -> int:
        """Return the start of the window with this end."""
        return end - self.period

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        if state is not None and now < state[0]:
            end, count, began = state
        else:
            end, count, began = self.shared(self.end_of(now)), 0, now
        # When the clock goes back, the latest window stays the current one.
        at = now if now >= end - self.shortest else max(now, self.start_of(end))
        room = self.limit - count
        if cost == 0 or cost > room:
            retry = 0 if cost == 0 else None if cost > self.limit else end - now
            return state, Decision(cost == 0, room if room > 0 else 0, retry, end - now if count else 0, at)
        # Clocks of several machines differ by a little.
        return (end, count + cost, at if at < began else began), Decision(True, room - cost, 0, end - now, at)

    def charge(self, state: State, now: int, cost: int) -> State:
        if state is not None and now < state[0]:
            end, count, began = state
            return end, count + cost, min(began, max(now, self.start_of(end)))
        return self.end_of(now), cost, now

    def refund(self, state: State, now: int, consumed: Charge, cost: int) -> State:
        if state is None or not state[2] <= consumed.at_us < state[0]:
            return state
        end, count, began = state
        return (end, count - cost, began) if count > cost else None


class IntervalTokenBucket(FixedWindow):
    """Allows a cost ``c`` when ``count + c <= B`` since the last refill. The first counted hit is a refill too."""

    name = "token-bucket"
    takes_burst = True
    variant = "interval"
    is_aligned = False


class CalendarWindow(FixedWindow):
    """Allows a cost ``c`` when ``count + c <= N`` since local midnight of the first day of a period of the calendar.

    A day without a midnight begins at its first moment.
    """

    name = "calendar-window"

    def __init__(self, quota: Quota) -> None:
        super().__init__(quota)
        self.shortest = 0
        self._zone = UTC if quota.zone == "UTC" else ZoneInfo(quota.zone)
        self._unit = quota.calendar
        self._latest = (0, 0)

    @property
    def variant(self) -> str:
        return self._unit

    @property
    def lifetime(self) -> int:
        return self.period + 2 * _DAY

    def window(self, now: int) -> tuple[int, int]:
        """Return the start and the end of the window that a time is in."""
        start, end = window = self._latest
        if not start <= now < end:
            self._latest = window = self._find(now)
        return window

    def end_of(self, now: int) -> int:
        return self.window(now)[1]

    def start_of(self, end: int) -> int:
        return self.window(end - 1)[0]

    def bounds(self, now: int) -> list[int]:
        """Return the edges of the window that a time is in, of the one before and of the one after."""
        start, end = self.window(now)
        return [self._find(start - 1)[0], start, end, self._find(end)[1]]

    def _find(self, now: int) -> tuple[int, int]:
        first_day, following = _PERIODS[self._unit]
        first = first_day(datetime.fromtimestamp(now // SECOND, self._zone).date())
        start, end = self._midnight(first), self._midnight(following(first))
        while end <= now:  # the clock went back over midnight
            first = following(first)
            start, end = end, self._midnight(following(first))
        return start, end

    def _midnight(self, day: date) -> int:
        """Return midnight, or the moment of a clock that skips it."""
        return int(datetime(day.year, day.month, day.day, tzinfo=self._zone).timestamp()) * SECOND


def _next_month(first: date) -> date:
    return first + timedelta(calendar.monthrange(first.year, first.month)[1])


_DAY: Final = 86_400 * SECOND
_PERIODS: Final[dict[str, tuple[Callable[[date], date], Callable[[date], date]]]] = {
    "day": (lambda day: day, lambda first: first + timedelta(1)),
    "week": (lambda day: day - timedelta(day.weekday()), lambda first: first + timedelta(7)),
    "month": (lambda day: day.replace(day=1), _next_month),
    "year": (lambda day: day.replace(month=1, day=1), lambda first: first.replace(year=first.year + 1)),
}
"""For each period of the calendar: the first day of the one with a day, and that of the one after."""
