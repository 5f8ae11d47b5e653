"""``ratelimit-mw forecast``: its counts, its models, and the limit above the predicted peak."""

from __future__ import annotations

import json
import math
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import run

from ratelimit_mw import clock
from ratelimit_mw.cli.forecast import HOUR, forecast_counts, limit_above
from ratelimit_mw.cli.output import Failure
from ratelimit_mw.traffic import TrafficLog

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
START = int(MONDAY.timestamp())


def week(working: float = 1000, other: float = 100) -> list[float]:
    """Return the counts of a week in which people work from Monday to Friday, from 08:00 to 18:00."""
    hours = [MONDAY + timedelta(hours=hour) for hour in range(168)]
    return [working if hour.weekday() < 5 and 8 <= hour.hour < 18 else other for hour in hours]


def test_the_limit_leaves_room_for_the_peak() -> None:
    """It is the lowest in whole requests of an hour, or of a minute, above the peak and the margin."""
    cases = (([30.0, 200.5], 40.2), ([0.0], 0), ([100.0, 2000.0], 10))
    assert [limit_above(*each) for each in cases] == ["241/hour", "1/hour", "34/minute"]


def growing(weeks: int) -> list[int]:
    """Return the counts of weeks that grow by half, with a little that does not repeat."""
    counts = [each for _ in range(weeks) for each in week(200, 40)]
    return [round(n * (1 + i / len(counts) / 2) + 4 * math.sin(i * i)) for i, n in enumerate(counts)]


@pytest.mark.thorough
def test_a_trend_makes_the_model_better_than_the_last_week() -> None:
    result = forecast_counts(growing(5))
    assert (result.period, len(result.counts)) == (168, 168)
    errors = result.errors
    assert result.model == "STL with exponential smoothing"
    assert errors["STL with exponential smoothing"] < errors["seasonal naive"] < 0.3
    assert 0 <= result.margin < 40


@pytest.mark.thorough
def test_a_constant_series_is_its_own_forecast() -> None:
    """A series whose last day has no request has none."""
    with pytest.raises(Failure, match="no request in the last 24 whole hours"):
        forecast_counts([5] * 60 + [0] * 24)
    result = forecast_counts([60] * 80)
    assert result.period == 24
    assert result.counts == pytest.approx([60] * 24)
    assert all(error < 1e-6 for error in result.errors.values())


def set_time(patch: pytest.MonkeyPatch, days: int) -> None:
    """Set the clock to half an hour after a midnight."""
    now = MONDAY + timedelta(days=days, minutes=30)
    patch.setattr(clock, "WALL_AT_ZERO", int(now.timestamp()) * 10**9 - time.monotonic_ns())


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Four days of a traffic log, with 30 requests an hour by day, and 6 by night."""
    set_time(monkeypatch, days=4)
    log = TrafficLog(f"sqlite:///{tmp_path}/traffic.db")
    for hour in range(4 * 24):
        log.record("api", n=30 if 8 <= hour % 24 < 18 else 6, at=START + hour * HOUR + 60)
    log.close()
    return log.name


@pytest.mark.thorough
def test_the_next_day_is_forecast(url: str) -> None:
    """The first and the last hour may be cut, so they do not count."""
    result = json.loads(run("forecast", url, "api", "--json").stdout)
    assert result["hours"] == 94
    assert (result["first"], result["last"]) == ("2026-01-05T01:00:00+00:00", "2026-01-08T23:00:00+00:00")
    assert (result["period"], result["peak"]["requests"]) == ("day", 30)
    assert result["forecast"]["start"] == START + 95 * HOUR
    assert result["limits"] == ["30/hour"]
    text = run("forecast", url, "api").stdout
    assert all(each in text for each in ('limits = ["30/hour"]', "seasonal naive", "STL with exponential smoothing"))


@pytest.mark.thorough
def test_an_event_of_a_traffic_log_is_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_time(monkeypatch, days=28)
    url = f"sqlite:///{tmp_path}/traffic.db"
    log = TrafficLog(url)
    for hour, number in enumerate(week(20, 4) * 4):
        log.record("url_shorten", n=int(number), at=START + hour * HOUR + 60)
        log.record(f"rule:api:{('rejected', 'banned')[hour % 2]}", n=int(number), at=START + hour * HOUR)
    log.record("other", n=500)
    log.close()
    result = json.loads(run("forecast", url, "url_shorten", "--json").stdout)
    assert (result["hours"], result["period"]) == (4 * 168 - 2, "week")
    assert result["limits"] == ["20/hour"]
    of_rule = json.loads(run("forecast", url, "--rule", "api", "--json").stdout)
    assert of_rule == result
    few = run("forecast", url, "other")
    assert (few.exit_code, "no record of other by the hour in the last 182 days" in few.stderr) == (1, True)


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


def test_misuse_is_explained(url: str) -> None:
    unclear = "name an EVENT, or a rule with --rule"
    for words, message in (
        ([], "Missing argument 'URL'"),
        ([url], unclear),
        ([url, "a", "--rule", "api"], unclear),
        ([url, "a", "b"], "unexpected extra argument"),
    ):
        result = run("forecast", *words)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_a_missing_library_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    monkeypatch.setitem(sys.modules, "statsmodels.tsa.api", None)
    result = run("forecast", url, "api")
    assert result.exit_code == 2
    assert 'pip install "ratelimit-mw[forecast]"' in result.stderr
