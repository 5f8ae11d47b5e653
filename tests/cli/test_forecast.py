"""``ratelimit-mw forecast``: its counts, its models, and the limits that fit below the predicted peak."""

from __future__ import annotations

import json
import math
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from ratelimit_mw import Rule, clock
from ratelimit_mw.cli.forecast.model import HOUR, background_settings, forecast
from ratelimit_mw.cli.output import Failure
from ratelimit_mw.cli.plot import THEMES
from ratelimit_mw.traffic import TrafficLog

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
START = int(MONDAY.timestamp())


def week(working: float = 1000, other: float = 100) -> list[float]:
    """Return the counts of a week in which people work from Monday to Friday, from 08:00 to 18:00."""
    hours = [MONDAY + timedelta(hours=hour) for hour in range(168)]
    return [working if hour.weekday() < 5 and 8 <= hour.hour < 18 else other for hour in hours]


# -- the limits -----------------------------------------------------------------------------------------------------


def test_working_hours_are_one_range() -> None:
    """At the peak, background requests have the least limit there is."""
    assert background_settings(START, week(2000), 40) == {
        "limits": ["31/minute"],
        "schedule": {"mon-fri 08:00-18:00": ["1/hour"]},
        "timezone": "UTC",
    }


def test_a_forecast_that_begins_in_the_middle_of_a_week_has_the_same_ranges() -> None:
    counts = week()
    for first in (1, 10, 100, 167):
        settings = background_settings(START + first * HOUR, counts[first:] + counts[:first], 0)
        assert settings["schedule"] == {"mon-fri 08:00-18:00": ["1/hour"]}


def test_a_forecast_of_a_day_has_ranges_without_days() -> None:
    counts = [500 if hour in (0, 1, 9, 10, 23) else 50 for hour in range(24)]
    settings = background_settings(START, counts, 0)
    assert settings["limits"] == ["450/hour"]
    assert list(settings["schedule"]) == ["00:00-02:00", "09:00-11:00", "23:00-24:00"]


def test_days_with_other_hours_have_ranges_of_their_own() -> None:
    counts = [100.0] * 168
    for day, hours in ((0, (8, 9)), (1, (8, 9)), (3, (8, 9)), (5, range(24))):
        for hour in hours:
            counts[day * 24 + hour] = 1000
    assert list(background_settings(START, counts, 0)["schedule"]) == ["sat 00:00-24:00", "mon-tue,thu 08:00-10:00"]


@each("counts", [[100.0] * 24, [100.0 + i % 3 for i in range(24)], [0.0] * 24])
def test_without_quiet_hours_there_is_no_schedule(counts: list[float]) -> None:
    assert background_settings(START, counts, 5) == {"limits": ["1/hour"]}


@given(st.sampled_from([24, 168]), st.data(), st.integers(0, 167), st.integers(0, 200))
def test_all_requests_stay_below_the_peak(period: int, data: Any, first: int, margin: int) -> None:
    """Each hour has the limit of the schedule, and the forecast may be too low by the margin."""
    counts = data.draw(st.lists(st.sampled_from([0, 10, 300, 1000, 5000]), min_size=period, max_size=period))
    start = START + first * HOUR
    settings = background_settings(start, counts, margin)
    rule = Rule(name="background", key=[], **settings)
    for i, count in enumerate(counts):
        text = rule.schedule and rule.schedule.at((start + i * HOUR) * clock.SECOND)
        (quota,) = rule.quotas if text is None or rule.schedule is None else rule.schedule.limits[text]
        amount = quota.amount * HOUR / quota.period
        assert amount == 1 or count + margin + amount <= max(counts)


# -- the models -----------------------------------------------------------------------------------------------------


def growing(weeks: int) -> list[int]:
    """Return the counts of weeks that grow by half, with a little that does not repeat."""
    counts = [each for _ in range(weeks) for each in week(200, 40)]
    return [round(n * (1 + i / len(counts) / 2) + 4 * math.sin(i * i)) for i, n in enumerate(counts)]


@pytest.mark.thorough
def test_a_trend_makes_the_model_better_than_the_last_week() -> None:
    result = forecast(growing(5))
    assert (result.period, len(result.counts)) == (168, 168)
    errors = result.errors
    assert result.model == "STL with exponential smoothing"
    assert errors["STL with exponential smoothing"] < errors["seasonal naive"] < 0.3
    assert 0 <= result.margin < 40


@pytest.mark.thorough
def test_a_last_day_without_requests_is_an_error() -> None:
    with pytest.raises(Failure, match="no request in the last 24 whole hours"):
        forecast([5] * 60 + [0] * 24)


@pytest.mark.thorough
def test_a_constant_series_is_its_own_forecast() -> None:
    result = forecast([60] * 80)
    assert result.period == 24
    assert result.counts == pytest.approx([60] * 24)
    assert all(error < 1e-6 for error in result.errors.values())


# -- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Four days of a traffic log, with 30 requests an hour by day, and 6 by night."""
    now = MONDAY + timedelta(days=4, minutes=30)
    monkeypatch.setattr(clock, "_WALL_AT_ZERO", int(now.timestamp()) * 10**9 - time.monotonic_ns())
    log = TrafficLog(f"sqlite:///{tmp_path}/traffic.db")
    for hour in range(4 * 24):
        log.record("api", n=30 if 8 <= hour % 24 < 18 else 6, at=START + hour * HOUR + 60)
    log.close()
    return log.name


@pytest.mark.thorough
def test_the_next_day_is_forecast(url: str) -> None:
    """The first and the last hour may be cut, so they do not count."""
    result = json.loads(run("forecast", url, "api", "--json").stdout)
    assert (result["hours"], result["first"], result["last"]) == (
        94,
        "2026-01-05T01:00:00+00:00",
        "2026-01-08T23:00:00+00:00",
    )
    assert (result["period"], result["peak"]["requests"]) == ("day", 30)
    assert result["forecast"]["start"] == START + 95 * HOUR
    assert result["settings"] == {"limits": ["24/hour"], "schedule": {"08:00-18:00": ["1/hour"]}, "timezone": "UTC"}
    text = run("forecast", url, "api").stdout
    assert 'schedule = { "08:00-18:00" = ["1/hour"] }' in text
    assert "seasonal naive" in text
    assert "STL with exponential smoothing" in text


@pytest.mark.thorough
def test_an_event_of_a_traffic_log_is_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = MONDAY + timedelta(days=28, minutes=30)
    monkeypatch.setattr(clock, "_WALL_AT_ZERO", int(now.timestamp()) * 10**9 - time.monotonic_ns())
    url = f"sqlite:///{tmp_path}/traffic.db"
    log = TrafficLog(url)
    for hour, number in enumerate(week(20, 4) * 4):
        log.record("url_shorten", n=int(number), at=START + hour * HOUR + 60)
        log.record(f"rule:api:{('rejected', 'banned')[hour % 2]}", n=int(number), at=START + hour * HOUR)
    log.record("other", n=500)
    log.close()
    result = json.loads(run("forecast", url, "url_shorten", "--json").stdout)
    assert (result["hours"], result["period"]) == (4 * 168 - 2, "week")
    assert result["settings"]["schedule"] == {"mon-fri 08:00-18:00": ["1/hour"]}
    of_rule = json.loads(run("forecast", url, "--rule", "api", "--json").stdout)
    assert of_rule == result
    few = run("forecast", url, "other")
    assert (few.exit_code, few.stderr) == (
        1,
        f"Error: {url}: no record of other by the hour in the last 182 days\n",
    )


@pytest.mark.thorough
def test_a_traffic_log_must_keep_hours(tmp_path: Path) -> None:
    """An hour is not lost at the edge of its retention."""
    for retention, days, hours in (("1h:90d,1d:1y", 89, 89 * 24), ("1h:8d", 7, 7 * 24), ("1d:1y", 9, None)):
        url = f"sqlite:///{tmp_path}/{days}.db?retention={retention}"
        log = TrafficLog(url)
        for hour in range(days * 24):
            log.record("api", at=clock.now_us() / clock.SECOND - hour * HOUR)
        log.close()
        result = run("forecast", url, "api", "--json")
        if hours is None:
            assert (result.exit_code, "the log keeps no hours" in result.stderr) == (1, True)
        else:
            assert abs(json.loads(result.stdout)["hours"] - hours) <= 3


@pytest.mark.thorough
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("name", "head"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG")])
def test_the_picture_has_the_form_of_its_name(url: str, tmp_path: Path, theme: str, name: str, head: bytes) -> None:
    picture = tmp_path / name
    result = run("forecast", url, "api", "--plot", picture, "--theme", theme)
    assert (result.exit_code, result.stderr) == (0, f"picture written to {picture}\n")
    assert picture.read_bytes().startswith(head)
    if name.endswith("svg"):
        assert THEMES[theme].background in picture.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'URL'"),
        (["{url}"], "name an EVENT, or a rule with --rule"),
        (["{url}", "a", "--rule", "api"], "name an EVENT, or a rule with --rule"),
        (["{url}", "a", "b"], "unexpected extra argument"),
        (["{url}", "api", "--plot", "a.jpg"], "expected a file name that ends in .png or .svg"),
    ],
)
def test_misuse_is_explained(url: str, arguments: list[str], message: str) -> None:
    result = run("forecast", *(argument.format(url=url) for argument in arguments))
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_a_missing_library_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    monkeypatch.setitem(sys.modules, "statsmodels.tsa.api", None)
    result = run("forecast", url, "api")
    assert result.exit_code == 2
    assert 'pip install "ratelimit-mw[forecast]"' in result.stderr
