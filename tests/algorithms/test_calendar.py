"""Calendar quotas: windows of days, weeks, months and years by the clock of a time zone."""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from calls import ask
from command_line import run
from starlette.applications import Starlette
from starlette.routing import Route
from starlette_apps import hello
from tables import case, expect_error

from ratelimit_mw import Limiter, Quota, Rule, load_settings
from ratelimit_mw.algorithms.fixed_window import CalendarWindow
from ratelimit_mw.clock import SECOND
from ratelimit_mw.starlette import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock

ZONES = ("Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Pacific/Apia")
HOUR = 3600
CLIENT = {"ip": "192.0.2.7"}


def window_of(period: str, zone: str) -> CalendarWindow:
    return CalendarWindow(Quota.parse(f"5 per calendar {period}").in_zone(zone))


def at(zone: str, *numbers: int) -> int:
    """Return a local time in microseconds."""
    return int(datetime(*numbers, tzinfo=ZoneInfo(zone)).timestamp()) * SECOND  # type: ignore[misc,arg-type]


def period_of(day: date, period: str) -> Any:
    return {"day": day, "week": day.isocalendar()[:2], "month": (day.year, day.month), "year": day.year}[period]


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_windows_agree_with_a_calendar_over_twenty_years_of_hours(zone: str) -> None:
    """Two hours are in one window exactly when their local dates are in one period. Half hours are edges in Kolkata."""
    tz = ZoneInfo(zone)
    start = int(datetime(2006, 1, 1, tzinfo=tz).timestamp())
    windows = {period: window_of(period, zone) for period in ("day", "week", "month", "year")}
    last: dict[str, tuple[Any, tuple[int, int]]] = {}
    for moment in range(start, start + 20 * 366 * 24 * HOUR, HOUR):
        day = datetime.fromtimestamp(moment, tz).date()
        for period, window in windows.items():
            now = moment * SECOND
            found, name = window.window(now), period_of(day, period)
            assert found[0] <= now < found[1], (zone, period, moment)
            if period in last:
                assert (last[period][0] == name) == (last[period][1] == found), (zone, period, moment)
                assert last[period][0] == name or last[period][1][1] == found[0], (zone, period, moment)
            last[period] = name, found


def test_edges_are_the_first_moments_of_local_days() -> None:
    """Sao Paulo skipped midnight, Apia a whole day, and in Havana midnight comes twice. Kwajalein lost a day, too."""
    for zone, period, now, start, hours in (
        ("Europe/Berlin", "day", (2026, 3, 29, 12), (2026, 3, 29), 23),
        ("Europe/Berlin", "day", (2026, 10, 25, 12), (2026, 10, 25), 25),
        ("Europe/Berlin", "month", (2026, 3, 29, 12), (2026, 3, 1), 31 * 24 - 1),
        ("Europe/Berlin", "week", (2026, 10, 25, 12), (2026, 10, 19), 7 * 24 + 1),
        ("America/Sao_Paulo", "day", (2018, 11, 4, 12), (2018, 11, 4, 1), 23),
        ("America/Sao_Paulo", "day", (2018, 2, 17, 23), (2018, 2, 17), 25),
        ("Asia/Kolkata", "year", (2026, 7, 1), (2026, 1, 1), 365 * 24),
        ("Pacific/Apia", "day", (2011, 12, 29, 12), (2011, 12, 29), 24),
        ("Pacific/Apia", "month", (2011, 12, 31, 12), (2011, 12, 1), 30 * 24),
        ("America/Havana", "day", (2024, 11, 3, 12), (2024, 11, 3), 25),
        ("UTC", "month", (2024, 2, 29, 23), (2024, 2, 1), 29 * 24),
    ):
        with case(zone, period, now):
            window = window_of(period, zone)
            first, end = window.window(at(zone, *now))
            assert (first, (end - first) // SECOND / HOUR) == (at(zone, *start), hours)
            assert window.lifetime >= end - first  # so that no store forgets it earlier
            assert window.bounds(first) == [window.window(first - 1)[0], first, end, window.window(end)[1]]
    assert window_of("day", "Pacific/Apia").end_of(at("Pacific/Apia", 2011, 12, 29, 12)) == at(
        "Pacific/Apia", 2011, 12, 31
    )


def test_a_day_that_begins_twice_begins_at_its_first_midnight() -> None:
    """In St. John's, the clocks went back from 0:01 to 23:01. The hour after that still is of the new day."""
    window = window_of("day", "America/St_Johns")
    start, end = window.window(at("America/St_Johns", 2010, 11, 7, 12))
    assert (start, end - start) == (at("America/St_Johns", 2010, 11, 7), 25 * HOUR * SECOND)
    for minutes in (0, 1, 30, 61, 62):
        assert window_of("day", "America/St_Johns").window(start + minutes * 60 * SECOND) == (start, end)


def test_the_text_of_a_calendar_quota_is_read_back() -> None:
    """The time zone is that of the rule."""
    for text, shown in (
        ("10000 per calendar month", "10000 per calendar month"),
        (" 5/Calendar Days ", "5 per calendar day"),
        ("7 per calendar week", "7 per calendar week"),
    ):
        assert str(Quota(text)) == shown
        assert Quota(shown) == Quota(text)
    assert Quota("5 per calendar month") != Quota("5/30 days")
    for text in ("5 per calendar hour", "5 per calendar 2 months", "5 per calendar month burst 9"):
        expect_error("^cannot parse quota ", Quota.parse, text)
    expect_error(
        "two limits have the period of '5 per calendar day'", Rule, limits="5 per calendar day; 6/calendar day"
    )
    (quota,) = Rule(limits="5 per calendar month", timezone="Asia/Tokyo").quotas
    assert (quota.zone, quota.replace(amount=9).zone) == ("Asia/Tokyo", "Asia/Tokyo")
    (quota,) = (
        Limiter.from_settings({"limits": "5/calendar day", "defaults": {"timezone": "Asia/Tokyo"}})
        .rules.rules[0]
        .source.quotas
    )
    assert quota.zone == "Asia/Tokyo"


def test_calendar_quotas_stand_wherever_limits_do() -> None:
    """Beside other limits, by value, by time, from a function, and as the override of a client."""
    clock = ManualClock(at("Europe/Berlin", 2026, 1, 31, 12) / SECOND)
    day = "1 per calendar day"
    for options in (
        {"limits": [day, "9/minute"]},
        {"limits": "9/minute", "per": {"plan": {"free": day}}},
        {"limits": "9/minute", "schedule": {"sat": day}},
        {"limits": lambda ip: day},
        {"limits": "9/minute", "override": day},
    ):
        with case(options):
            override = options.pop("override", None)
            rule = Rule(name="api", timezone="Europe/Berlin", **options) if override is None else None
            limiter = Limiter(
                [rule or Rule(name="api", limits=["9/minute", "99 per calendar year"], timezone="Europe/Berlin")],
                clock=clock,
            )
            if override is not None:
                limiter.clients.override("api", CLIENT, str(override))
            features = {**CLIENT, "plan": "free"}
            assert limiter.hit(features).allowed
            rejected = limiter.hit(features)
            assert rejected.retry_after == 12 * HOUR
            assert str(rejected.rejected_by[0].quota) == day


def test_a_calendar_quota_is_never_leased() -> None:
    """A share taken before midnight would count after it."""
    rule = Rule(limits="1000 per calendar day; 1000/minute", lease="10%")
    daily, minutely = Limiter([rule]).rules.rules[0].limits
    assert (daily.lease, minutely.lease) == (0, 100)
    expect_error("calendar quotas are always exact. Remove lease", Rule, limits="1000 per calendar day", lease="10%")


def test_headers_show_the_end_of_the_period() -> None:
    """The policy has no window, because its length varies."""
    app = Starlette(routes=[Route("/", hello)])
    settings: Any = {"limits": "1 per calendar month", "defaults": {"timezone": "Europe/Berlin"}}
    app.add_middleware(RateLimitMiddleware, settings=settings)
    allowed, rejected = ask(app), ask(app)
    assert allowed.headers["ratelimit-policy"] == '"default";q=1'
    assert (rejected.status_code, rejected.headers["retry-after"]) == (429, rejected.headers["x-ratelimit-reset"])
    assert 0 < int(rejected.headers["retry-after"]) <= 31 * 86_400 + HOUR


def test_a_time_zone_needs_something_that_depends_on_it() -> None:
    """In a file, the error has its place."""
    expect_error(
        "timezone: no limit of the rule uses it. Add a schedule, or a limit such as",
        Rule,
        limits="5/day",
        timezone="Asia/Tokyo",
    )
    assert load_settings({"rules": [{"limits": "5/day"}], "defaults": {"timezone": "Asia/Tokyo"}}).rules[0].quotas


def test_explain_and_check_show_the_time_zone(tmp_path: Path) -> None:
    """As an option of its own, for people and for programs."""
    file = tmp_path / "r.toml"
    text = '[[rules]]\nname = "api"\nlimits = "9 per calendar week"\ntimezone = "Asia/Kolkata"\nunit = "tokens"\n'
    file.write_text(text, encoding="utf-8")
    shown = run("check", str(file)).stdout
    for text in ("9 per calendar week", 'unit = "tokens"', 'timezone = "Asia/Kolkata"'):
        assert text in shown
    (rule,) = json.loads(run("check", str(file), "--json").stdout)["rules"]
    assert (rule["limits"], rule["timezone"], rule["algorithm"]) == (
        ["9 per calendar week"],
        "Asia/Kolkata",
        "calendar-window (week)",
    )
