"""``Schedule``: the limits of a rule at certain times. It parses the options ``schedule`` and ``timezone``. Pure."""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final

from ..clock import SECOND
from ..errors import ConfigError
from ..quota import Quota

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_END_OF_DAY: Final = 24 * 60
MINUTE: Final = 60 * SECOND
"""Limits change at whole minutes, because all time zones differ by whole minutes since 1972."""
_TIMES = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)", re.ASCII)
_EXPECTED: Final = 'expected days, times or both, such as "mon-fri 08:00-18:00" or "sat,sun"'


class Schedule:
    """Ranges of time with limits of their own, by the wall clock of a time zone.

    Raises ``ConfigError`` for a text that is no range, and for ranges that overlap.
    """

    def __init__(self, limits: Mapping[str, tuple[Quota, ...]], zone: tzinfo) -> None:
        self.limits = limits
        self._zone = zone
        self._spans: dict[int, list[tuple[int, int, str]]] = {}
        self._at_minute = lru_cache(1)(self._find)
        for text in limits:
            for day, start, end in _spans_of(text):
                self._add(day, start, end, text)

    def at(self, now: int) -> str | None:
        """Return the range that a time is in, as its text; None for a time in no range."""
        return self._at_minute(now // MINUTE)

    def _find(self, minute: int) -> str | None:
        moment = datetime.fromtimestamp(minute * 60, self._zone)
        time = moment.hour * 60 + moment.minute
        spans = self._spans.get(moment.weekday(), ())
        return next((text for start, end, text in spans if start <= time < end), None)

    def _add(self, day: int, start: int, end: int, text: str) -> None:
        spans = self._spans.setdefault(day, [])
        for other_start, other_end, other in spans:
            if start < other_end and other_start < end:
                raise ConfigError(f"{other!r} and {text!r} overlap on {DAYS[day]}. Change one of them")
        spans.append((start, end, text))


def parse_timezone(name: object) -> tzinfo:
    """Return the time zone of a name; ``ConfigError`` for one that this system does not know."""
    if name == "UTC":
        return UTC  # needs no data
    try:
        return zoneinfo.ZoneInfo(name if isinstance(name, str) else "")
    except (KeyError, ValueError, OSError):
        known = zoneinfo.available_timezones()
    if not known:
        raise ConfigError(f"this system has no data of time zones for {name!r}: pip install tzdata")
    hint = "".join(f". Did you mean {close!r}?" for close in difflib.get_close_matches(str(name), known, 1))
    raise ConfigError(f'expected a name such as "Europe/Berlin"; got {name!r}{hint}')


def _spans_of(text: str) -> Iterator[tuple[int, int, int]]:
    """Split a range at midnight: yield days, 0 for Monday, each with the minutes at which its part starts and ends."""
    words = text.lower().split()
    times = _TIMES.fullmatch(words[-1]) if words else None
    days = words[: len(words) - bool(times)]
    if not words or len(days) > 1:
        raise ConfigError(f"{_EXPECTED}; got {text!r}")
    start, end = (0, _END_OF_DAY) if times is None else _minutes(times, text)
    try:
        for day in dict.fromkeys(_days(days[0]) if days else range(7)):
            yield day, start, end if start < end else _END_OF_DAY
            if start > end > 0:
                yield (day + 1) % 7, 0, end
    except ValueError:
        raise ConfigError(f"{_EXPECTED}; got {text!r}") from None


def _days(text: str) -> Iterator[int]:
    """Yield the days of a list such as "mon-wed,sat". ``ValueError`` for a word that is no day."""
    for item in text.split(","):
        first, dash, last = item.partition("-")
        start, end = DAYS.index(first), DAYS.index(last if dash else first)
        yield from ((start + i) % 7 for i in range((end - start) % 7 + 1))


def _minutes(times: re.Match[str], text: str) -> tuple[int, int]:
    """Return the minutes of the day at which a range starts and ends. ``ConfigError`` for times that no clock shows."""
    hour, minute, last_hour, last_minute = map(int, times.groups())
    start, end = hour * 60 + minute, last_hour * 60 + last_minute
    if max(minute, last_minute) > 59 or start >= _END_OF_DAY or end > _END_OF_DAY:
        raise ConfigError(f"expected times from 00:00 to 24:00; got {text!r}")
    if start == end:
        raise ConfigError(f"the range starts when it ends. For whole days, leave out the times; got {text!r}")
    return start, end
