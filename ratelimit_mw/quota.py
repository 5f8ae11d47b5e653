"""Quotas and durations, and their text forms. Knows no algorithm."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass
from typing import Any, Final

from .clock import SECOND, to_us
from .errors import ConfigError, parse_each

MAX_AMOUNT: Final = 10**12
MAX_PERIOD: Final = 366 * 86_400 * SECOND

_DAY = 86_400 * SECOND
_UNITS: Final[dict[str, int]] = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), SECOND // 1000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), SECOND),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60 * SECOND),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600 * SECOND),
    **dict.fromkeys(("d", "day", "days"), _DAY),
    **dict.fromkeys(("w", "week", "weeks"), 7 * _DAY),
    # The same as in the package limits, so that its strings keep their meaning.
    **dict.fromkeys(("month", "months"), 30 * _DAY),
    **dict.fromkeys(("year", "years"), 360 * _DAY),
}
_CALENDAR: Final = {"day": _DAY, "week": 7 * _DAY, "month": 30 * _DAY, "year": 365 * _DAY}
"""The usual lengths of the periods of a calendar. The real ones differ, and depend on the time zone."""
_NAMED: Final = {_UNITS[name]: name for name in ("week", "day", "hour", "minute", "second")}
_SHORT: Final = (("w", 7 * _DAY), ("d", _DAY), ("h", 3600 * SECOND), ("m", 60 * SECOND), ("s", SECOND), ("ms", 1000))

_NUMBER = r"\d{1,18}(?:\.\d{1,6})?"
# "5per minute" and "5 perminute" are valid in the package limits.
_PERIOD = rf"\s*(?:/|per)\s*({_NUMBER})?\s*([a-z]+)(?:\s+burst\s+(\d{{1,18}}))?"
_FLOOR = r"(?:adaptive\s+(\d{1,18})\s*\.\.\s*)?"
_QUOTA = re.compile(rf"\s*{_FLOOR}(\d{{1,18}})(?:{_PERIOD}|\s+concurrent)\s*", re.A | re.I)
_BY_CALENDAR = re.compile(rf"\s*(\d{{1,18}})\s*(?:/|per)\s*calendar\s+({'|'.join(_CALENDAR)})s?\s*", re.A | re.I)
_LOOSE = re.compile(rf"\s*[-+]?(\d{{1,12}})\s*([a-z]*)(?:\s*(?:/|\bper\b)\s*({_NUMBER})?\s*([a-z]+))?\s*", re.A | re.I)
_TWO_WORDS = re.compile(r"\s*([1-9]\d{0,11})\s*(?:/|per\b)?\s*([a-z]+)[\s-]+([a-z]+)\s*", re.A | re.I)
_IN_SECONDS = re.compile(r"\s*\d{1,18}/\d{1,18}\s*", re.A)  # "100/300", as django-ratelimit writes "100/300s"
_DURATION = re.compile(rf"\s*({_NUMBER})\s*([a-z]+)\s*", re.A | re.I)
_WORD = re.compile("[a-z]+", re.A | re.I)
_EXPECTED = 'AMOUNT/PERIOD, for example "5/minute"'
_ADAPTIVE_FORM = '"adaptive FLOOR..CEILING concurrent", for example "adaptive 5..200 concurrent"'
_USE_PER = ". For limits that depend on the request, use per = {FEATURE: {VALUE: limits}}"
_USE_DENY = ". To reject all requests of a client, use lists.deny"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Quota:
    """An amount per period, with an optional burst for buckets. "10 concurrent" limits concurrent requests.

    "adaptive 5..200 concurrent" and "adaptive 10..100/second" have an amount within bounds, which follows the load.
    "10000 per calendar month" begins anew at midnight of the first, by the time zone of its rule.

    Args:
        amount: The amount, a whole number up to 10**12, or the whole quota as text.
        period: The period in seconds or as text such as "15 minutes", from 1 microsecond to 366 days.
        burst: The capacity of a bucket. Default: the amount.

    Attributes:
        period_us: The period in whole microseconds; 0 for a concurrency limit. A calendar month has 30 days here.
        calendar: The period of the calendar, such as "month"; "" for a period of one length.
        zone: The name of the time zone of the calendar. The rule sets it.
        floor: The smallest amount of an adaptive limit, whose largest one is ``amount``; None for other limits.

    Raises:
        ConfigError: The text cannot be parsed, or a number is out of range.

    Example:
        >>> Quota("100/minute burst 20") == Quota(100, 60.0, burst=20)
        True
        >>> Quota("5/60s"), Quota("5/60s").amount, Quota("5/60s").period
        (Quota('5/minute'), 5, 60.0)
    """

    amount: int
    period_us: int
    burst: int | None
    concurrent: bool
    calendar: str
    zone: str
    floor: int | None

    def __init__(self, amount: int | str, period: float | str | None = None, burst: int | None = None) -> None:
        if isinstance(amount, str) and period is None and burst is None:
            self._keep(*astuple(Quota.parse(amount)))
        else:
            self._keep(amount, parse_duration(period), burst)

    @classmethod
    def exact(cls, amount: int, period_us: int, burst: int | None = None, concurrent: bool = False) -> Quota:
        """Return a quota with its period in whole microseconds: ``Quota.exact(5, 60_000_000)`` is "5/minute".

        Args:
            amount: The amount, a whole number from 1 to 10**12.
            period_us: The period in microseconds, up to 366 days; 0 for a concurrency limit.
            burst: The capacity of a bucket. Default: the amount.
            concurrent: Whether the quota limits concurrent requests.

        Raises:
            ConfigError: A number is out of range.
        """
        quota = cls.__new__(cls)
        quota._keep(amount, period_us, burst, concurrent)
        return quota

    def _keep(
        self,
        amount: Any,
        period_us: int,
        burst: int | None,
        concurrent: bool = False,
        calendar: str = "",
        zone: str = "",
        floor: int | None = None,
    ) -> None:
        _whole("amount", amount, 1, MAX_AMOUNT, instead=_USE_DENY * (amount == 0))
        if burst is not None:
            _whole("burst", burst, 1, MAX_AMOUNT)
        if concurrent:
            if burst is not None:
                raise ConfigError(f"a concurrency limit cannot have a burst; got {burst!r}")
            _whole("period of a concurrency limit", period_us, 0, 0)
        else:
            _whole("period in microseconds", period_us, 1, MAX_PERIOD, hint=" (366 days)")
        if floor is not None:
            _whole("smallest amount", floor, 1, amount)
        values = (amount, period_us, burst, concurrent, calendar, zone, floor)
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> Quota:
        """Return the quota that a text describes.

        Args:
            text: ``AMOUNT/PERIOD``, ``AMOUNT per PERIOD``, either with ``burst B``, ``AMOUNT per calendar PERIOD`` with
                a day, week, month or year, ``AMOUNT concurrent``, or ``adaptive FLOOR..`` in front of a
                concurrency limit or a rate.

        Raises:
            ConfigError: The text cannot be parsed. The message shows the text.
        """
        if not isinstance(text, str):
            raise ConfigError(f"expected {_EXPECTED}; got {text!r}")
        if by_calendar := _BY_CALENDAR.fullmatch(text):
            unit = by_calendar[2].lower()
            return cls.exact(int(by_calendar[1]), _CALENDAR[unit]).replace(calendar=unit, zone="UTC")
        match = _QUOTA.fullmatch(f"{text.rstrip()}s" if _IN_SECONDS.fullmatch(text) else text)
        if match is None or not (match[4] is None or match[4].lower() in _UNITS):
            right = _WORD.sub(_known_word, text).strip()
            match = _QUOTA.fullmatch(right)
            right = right if match and (match[4] or "s") in _UNITS else _closest(text)
            hint = f" Did you mean {right!r}?" if right else ""
            expected = _ADAPTIVE_FORM if text.lstrip().lower().startswith("adaptive") else _EXPECTED
            raise ConfigError(f"cannot parse quota {text!r}. Expected {expected}.{hint}")
        floor, amount, count, unit, burst = match.groups()
        period = 0 if unit is None else _microseconds(count or "1", unit)
        try:
            quota = cls.exact(int(amount), period, int(burst) if burst else None, concurrent=unit is None)
            return quota if floor is None else quota.replace(floor=int(floor))
        except ConfigError as error:
            raise ConfigError(f"cannot use quota {text!r}: {error}") from None

    def replace(self, **values: Any) -> Quota:
        """Return a quota with other values of its attributes; ``ConfigError`` for a number out of range.

        Args:
            values: The values. A ``burst`` of None is the amount.
        """
        quota = Quota.__new__(Quota)
        quota._keep(**{**asdict(self), **values})
        return quota

    def in_zone(self, zone: str) -> Quota:
        """Return the quota with the time zone of its calendar; the same quota without a calendar.

        Args:
            zone: The name of the time zone, such as "Europe/Berlin".
        """
        return self.replace(zone=zone) if self.calendar and self.zone != zone else self

    @property
    def period(self) -> float:
        """The period in seconds; 0.0 for a concurrency limit."""
        return self.period_us / SECOND

    def __repr__(self) -> str:
        return f"Quota({str(self)!r})"

    def __str__(self) -> str:
        amount = f"{self.amount}" if self.floor is None else f"adaptive {self.floor}..{self.amount}"
        if self.concurrent:
            return f"{amount} concurrent"
        if self.calendar:
            return f"{self.amount} per calendar {self.calendar}"
        burst = "" if self.burst is None else f" burst {self.burst}"
        return f"{amount}/{_NAMED.get(self.period_us) or format_duration(self.period_us)}{burst}"


def _known_word(word: re.Match[str]) -> str:
    """Return the word of quotas that a word is close to; any other word as it is."""
    known = (*_UNITS, "per", "burst", "concurrent", "adaptive")
    return next(iter(difflib.get_close_matches(word[0].lower(), known, 1)), word[0])


def _closest(text: str) -> str:
    """Return a quota that a text with a sign, an extra word or no period may mean; "" for other text."""
    if (words := _TWO_WORDS.fullmatch(text)) and difflib.get_close_matches(words[2].lower(), ("calendar",)):
        periods = difflib.get_close_matches(words[3].lower().removesuffix("s"), _CALENDAR, 1) or ["month"]
        return f"{words[1]} per calendar {periods[0]}"
    match = _LOOSE.fullmatch(text)
    if match is None or not int(match[1]):
        return ""
    amount, word, count, unit = match.groups("")
    if unit:
        known = difflib.get_close_matches(unit.lower(), _UNITS, 1)
        period = "2 weeks" if unit.lower() == "fortnight" and not count else f"{count}{known[0]}" if known else ""
        return f"{amount}/{period}" if period else ""
    if difflib.get_close_matches(word.lower(), ("concurrent",), 1):
        return f"{amount} concurrent"
    return "" if word else f"{amount}/minute"


def parse_quotas(limits: object) -> tuple[Quota, ...]:
    """Parse all quotas of one rule, from text ("5/minute; 20/hour"), a ``Quota`` or a list of them.

    A tuple of two whole numbers is an amount and seconds, as functions for django-ratelimit return it.
    """
    if isinstance(limits, tuple) and [*map(type, limits)] == [int, int]:
        limits = Quota(*limits)
    if isinstance(limits, str | Quota):
        quotas = _quotas_of(limits)
    elif isinstance(limits, Iterable):
        quotas = [quota for parsed in parse_each(_quotas_of, limits) for quota in parsed]
    else:
        raise ConfigError(f"expected {_EXPECTED}, or a list of them; got {limits!r}{_USE_PER * callable(limits)}")
    if not quotas:
        raise ConfigError(f"a rule needs at least one limit. Expected {_EXPECTED}.")
    periods = [(quota.period_us, quota.calendar) for quota in quotas]
    for quota, period in zip(quotas, periods, strict=True):
        if periods.count(period) > 1:  # they would share one key
            raise ConfigError(f"two limits have the period of {str(quota)!r}. Remove one, or write two rules")
    return tuple(quotas)


def parse_duration(value: object) -> int:
    """Convert a duration to whole microseconds, from text ("250ms", "15 minutes") or from seconds (1.5)."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_PERIOD // SECOND:
        return to_us(value)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f'expected a duration such as "250ms", "2s" or "15 minutes"; got {value!r}')
    if (us := _microseconds(match[1], match[2])) > MAX_PERIOD:
        raise ConfigError(f"expected a duration of at most 366 days; got {value!r}")
    return us


def format_duration(us: int) -> str:
    """Return the shortest exact text of a duration: ``format_duration(5_400_000_000)`` is ``'90m'``."""
    exact = (f"{us // size}{unit}" for unit, size in _SHORT if us % size == 0)
    return next(exact, f"{us / SECOND:.6f}s")


def _microseconds(number: str, unit: str) -> int:
    size = _UNITS[unit.lower()]
    return int(number) * size if number.isdigit() else round(float(number) * size)


def checked_cost(cost: object) -> int:
    """Return the cost; ``ConfigError`` unless it is a whole number from 0 to 10**12."""
    if type(cost) is not int or not 0 <= cost <= MAX_AMOUNT:
        raise ConfigError(f"expected a cost as a whole number from 0 to {MAX_AMOUNT:,}; got {cost!r}")
    return cost


def _quotas_of(item: object) -> list[Quota]:
    if isinstance(item, Quota):
        return [item]
    parts: list[Any] = re.split(r"[;,|]", item) if isinstance(item, str) else [item]
    try:
        return [Quota.parse(part) for part in parts]
    except ConfigError as error:
        raise (error if repr(item) in error.message else ConfigError(f"{error.message} (in {item!r})")) from None


def _whole(what: str, value: object, low: int, high: int, hint: str = "", instead: str = "") -> None:
    if type(value) is not int or not low <= value <= high:
        expected = f"expected the {what} as a whole number from {low:,} to {high:,}{hint}"
        raise ConfigError(f"{expected}; got {value!r}{instead}")
