"""Quotas: every text that is read, every one that is not, and back to text."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from ratelimit_mw import ConfigError, Quota
from ratelimit_mw.quota import MAX_AMOUNT, MAX_PERIOD, format_duration, parse_duration, parse_quotas

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
EXPECTED = 'xpected AMOUNT/PERIOD, for example "5/minute"'


@each(
    ("text", "amount", "period_us", "burst"),
    [
        ("5/second", 5, SECOND, None),
        ("5/minute", 5, MINUTE, None),
        ("5/hour", 5, HOUR, None),
        ("5/day", 5, DAY, None),
        ("5/week", 5, 7 * DAY, None),
        ("5/month", 5, 30 * DAY, None),
        ("5/year", 5, 360 * DAY, None),
        ("5/s", 5, SECOND, None),
        ("5/m", 5, MINUTE, None),
        ("5/h", 5, HOUR, None),
        ("5/d", 5, DAY, None),
        ("5/w", 5, 7 * DAY, None),
        ("5/ms", 5, 1000, None),
        ("5/10s", 5, 10 * SECOND, None),
        ("5/15 minutes", 5, 15 * MINUTE, None),
        ("5/500ms", 5, SECOND // 2, None),
        ("5/20 milliseconds", 5, 20_000, None),
        ("5/1 millisecond", 5, 1000, None),
        ("5/1.5s", 5, 1_500_000, None),
        ("5/0.000007s", 5, 7, None),
        ("5/2 months", 5, 60 * DAY, None),
        ("5/1 years", 5, 360 * DAY, None),
        ("5/366 days", 5, 366 * DAY, None),
        ("5 per minute", 5, MINUTE, None),
        ("5 per 15 minutes", 5, 15 * MINUTE, None),
        ("5 per 10s", 5, 10 * SECOND, None),
        ("5  PER\t2 Hours", 5, 2 * HOUR, None),
        ("  5 / minute  ", 5, MINUTE, None),
        ("100/minute burst 20", 100, MINUTE, 20),
        ("100 per minute burst 200", 100, MINUTE, 200),
        ("100/10s  Burst  1", 100, 10 * SECOND, 1),
        ("1000000000000/day", 10**12, DAY, None),
        ("007/minute", 7, MINUTE, None),
        ("100/300", 100, 5 * MINUTE, None),
        ("5/min", 5, MINUTE, None),
        ("3/sec", 3, SECOND, None),
        ("1/hr", 1, HOUR, None),
        ("10 per 5 mins", 10, 5 * MINUTE, None),
    ],
)
def test_a_quota_is_read_from_its_text(text: str, amount: int, period_us: int, burst: int | None) -> None:
    """Each form of amount, period and burst means these numbers."""
    assert Quota.parse(text) == Quota(text) == Quota.exact(amount, period_us, burst)
    assert parse_quotas(text) == (Quota.exact(amount, period_us, burst),)


def test_a_concurrent_quota_is_read_from_its_text() -> None:
    """It counts concurrent requests: no period, no burst, and back to the same text."""
    quota = Quota.parse(" 10 Concurrent ")
    assert (quota.amount, quota.period, quota.burst, quota.concurrent) == (10, 0.0, None, True)
    assert Quota.parse(str(quota)) == quota


@each(
    "value",
    [
        *("", " ", "5", "/minute", "minute", "five/minute", "5/", "5 per", "5 minute", "5//minute"),
        *("5/minute/hour", "5/fortnight", "5/minutess", "5 per 15", "5/1.5", "5/15 per minute", "5/minute 10"),
        *("-5/minute", "+5/minute", "5/-1 minutes", "1.5/minute", "1e3/minute", "1_000/minute", "5/1e3s"),
        *("5/.5s", "5/1.s", "5/1.0000001s", "\u0665/minute", "5/minute burst", "5/minute burst -1"),
        *("5/minute burst 1.5", "5/minute burst20", "5/minuteburst 20", "burst 20", "5/minute burst 20 burst 30"),
        *("concurrent", "10concurrent", "10 concurrents", "10 concurrent requests", "10 concurrent burst 5"),
        *("1.5 concurrent", "1234567890123456789/minute", 5, None, b"5/minute", ["5/minute"], 5.0),
    ],
)
def test_what_is_no_quota_is_an_error_that_shows_it(value: Any) -> None:
    """No guess: the error shows the value and the expected form. Another type is no crash."""
    with pytest.raises(ConfigError) as error:
        Quota.parse(value)
    assert repr(value) in str(error.value)
    assert EXPECTED in str(error.value)


@each(
    ("text", "said"),
    [
        ("0/minute", "expected the amount as a whole number from 1 to 1,000,000,000,000; got 0"),
        (
            "1000000000001/minute",
            "expected the amount as a whole number from 1 to 1,000,000,000,000; got 1000000000001",
        ),
        ("5/minute burst 0", "expected the burst as a whole number from 1 to 1,000,000,000,000; got 0"),
        ("5/minute burst 1000000000001", "expected the burst as a whole number from 1 to"),
        (
            "5/0s",
            "expected the period in microseconds as a whole number from 1 to 31,622,400,000,000 (366 days); got 0",
        ),
        ("5/0.000001ms", "expected the period in microseconds as a whole number from 1"),
        ("5/367 days", "(366 days)"),
        ("5/2 years", "(366 days)"),
        ("5/999999999999999999w", "(366 days)"),
        ("0 concurrent", "expected the amount as a whole number from 1"),
    ],
)
def test_a_quota_beyond_the_bounds_is_an_error_that_shows_it(text: str, said: str) -> None:
    """Amounts end at 10^12 and periods at 366 days, within which all arithmetic is exact."""
    with pytest.raises(ConfigError) as error:
        Quota.parse(text)
    assert repr(text) in str(error.value)
    assert said in str(error.value)


@each(
    "numbers",
    [
        {"amount": 0, "period_us": 1},
        {"amount": 10**12 + 1, "period_us": 1},
        {"amount": 5.0, "period_us": 1},
        {"amount": True, "period_us": 1},
        {"amount": 5, "period_us": 0},
        {"amount": 5, "period_us": 366 * DAY + 1},
        {"amount": 5, "period_us": 1.0},
        {"amount": 5, "period_us": 1, "burst": 0},
        {"amount": 5, "period_us": 1, "concurrent": True},
        {"amount": 5, "period_us": 0, "burst": 3, "concurrent": True},
    ],
)
def test_a_quota_of_wrong_numbers_is_not_built(numbers: dict[str, Any]) -> None:
    """The bounds hold however a quota is made, and only whole numbers are numbers."""
    with pytest.raises(ConfigError):
        Quota.exact(**numbers)


def test_the_bounds_themselves_are_within() -> None:
    """10^12 in 366 days and one a microsecond are quotas."""
    assert Quota.exact(MAX_AMOUNT, MAX_PERIOD, MAX_AMOUNT).amount == 10**12
    assert Quota.exact(1, 1).period_us == 1
    assert MAX_PERIOD == 366 * DAY


def test_a_quota_from_numbers() -> None:
    """``Quota`` takes the period in seconds, as all Python arguments do."""
    assert Quota(5, 60) == Quota.parse("5/minute")
    assert Quota(100, 0.5, burst=20) == Quota.parse("100/500ms burst 20")
    assert Quota(5, 60).period == 60.0
    with pytest.raises(ConfigError, match="expected the amount as a whole number"):
        Quota("5/minute", 60)
    with pytest.raises(ConfigError):
        Quota("5/minute", burst=3)
    for period in (0, -1, math.nan, math.inf, 367 * 86_400, 1e-7, True, None):
        with pytest.raises(ConfigError):
            Quota(5, period)  # type: ignore[arg-type]


# -- several ---------------------------------------------------------------------------------------------------


def test_several_quotas_come_as_text_or_list_or_both() -> None:
    """One text with separators, a list of texts and quotas, or a quota alone: the same quotas in the same order."""
    both = (Quota.exact(5, MINUTE), Quota.exact(20, HOUR))
    assert parse_quotas("5/minute; 20/hour") == both
    assert parse_quotas("5/minute,20/hour") == both
    assert parse_quotas("5/minute|20/hour") == both
    assert parse_quotas(["5/minute", Quota.exact(20, HOUR)]) == both
    assert parse_quotas(("5/minute; 20/hour",)) == both
    assert parse_quotas(Quota.exact(5, MINUTE)) == both[:1]
    assert parse_quotas(["5/minute; 20/hour", "10 concurrent"])[2].concurrent


@each(
    ("limits", "said"),
    [
        ("5/minute;", "cannot parse quota ''. "),
        ("5/minute;", "(in '5/minute;')"),
        ("5/minute; 20/fortnight", "cannot parse quota ' 20/fortnight'. "),
        ("5/minute 20/hour", "cannot parse quota '5/minute 20/hour'"),
        (["5/minute", "20"], "[1]: cannot parse quota '20'"),
        (["5/minute; x"], "[0]: cannot parse quota ' x'"),
        (["5/minute", 5], "[1]: expected AMOUNT/PERIOD"),
        (["5/minute", ["20/hour"]], "[1]: expected AMOUNT/PERIOD"),
        (b"5/minute", "[0]: expected AMOUNT/PERIOD"),
        ([], "a rule needs at least one limit"),
        (None, "or a list of them; got None"),
        ("5/minute; 10/60s", "two limits have the period of '5/minute'"),
        (["5/minute", "5/minute"], "two limits have the period of '5/minute'"),
        (["5 concurrent", "10 concurrent"], "two limits have the period of '5 concurrent'"),
    ],
)
def test_what_are_no_quotas_says_which_and_why(limits: Any, said: str) -> None:
    """The error names the place in the list and shows the text; two limits with one period would share one key."""
    with pytest.raises(ConfigError) as error:
        parse_quotas(limits)
    assert said in str(error.value)


# -- and back to text ------------------------------------------------------------------------------------------

PERIODS = st.one_of(
    st.integers(1, MAX_PERIOD),
    st.sampled_from([1000, SECOND, MINUTE, HOUR, DAY, 7 * DAY]).flatmap(
        lambda unit: st.integers(1, min(500, MAX_PERIOD // unit)).map(lambda n: n * unit)
    ),
)


@given(amount=st.integers(1, MAX_AMOUNT), period_us=PERIODS, burst=st.one_of(st.none(), st.integers(1, MAX_AMOUNT)))
def test_the_text_of_a_quota_is_read_as_the_same_quota(amount: int, period_us: int, burst: int | None) -> None:
    """To the microsecond, for any period."""
    quota = Quota.exact(amount, period_us, burst)
    assert Quota.parse(str(quota)) == quota
    assert parse_duration(format_duration(period_us)) == period_us


@each(
    ("quota", "text"),
    [
        (Quota.exact(5, SECOND), "5/second"),
        (Quota.exact(5, MINUTE), "5/minute"),
        (Quota.exact(5, DAY), "5/day"),
        (Quota.exact(5, 7 * DAY), "5/week"),
        (Quota.exact(5, 90 * MINUTE, 3), "5/90m burst 3"),
        (Quota.exact(5, 1500_000), "5/1500ms"),
        (Quota.exact(5, 7), "5/0.000007s"),
        (Quota.exact(5, 0, concurrent=True), "5 concurrent"),
    ],
)
def test_a_quota_says_itself_shortly(quota: Quota, text: str) -> None:
    """Units that have a name are named, others are the largest unit that is exact."""
    assert (str(quota), repr(quota)) == (text, f"Quota({text!r})")


@each(
    ("text", "right"),
    [
        ("10 concurent", "10 concurrent"),
        ("10concurrent", "10 concurrent"),
        ("5/fortnight", "5/2 weeks"),
        ("5 requests per minute", "5/minute"),
        ("5 requests / 2 hour", "5/2hour"),
        ("-5/minute", "5/minute"),
        (" 5 ", "5/minute"),
        ("5/minut", "5/minute"),
        ("5 per r burst 5", "5 per hr burst 5"),
        ("5 pre Minute brust 3", "5 per minute burst 3"),
        ("adaptiv 5..20 concurent", "adaptive 5..20 concurrent"),
        ("10 per calender month", "10 per calendar month"),
        ("10 per calendar yaers", "10 per calendar year"),
        ("10/calendar-week", "10 per calendar week"),
        ("10 per calendar quarter", "10 per calendar month"),
        ("0 per calender day", ""),
        ("five/minute", ""),
        ("5 minute", ""),
        ("0", ""),
        ("5/parsec of light", ""),
        ("5 requests per xyzzy", ""),
    ],
)
def test_an_error_names_the_closest_quota(text: str, right: str) -> None:
    """What it names can be parsed."""
    with pytest.raises(ConfigError) as error:
        Quota.parse(text)
    hint = f"{EXPECTED}. Did you mean {right!r}?" if right else f"{EXPECTED}."
    assert str(error.value).endswith(hint)
    assert not right or Quota.parse(right)
