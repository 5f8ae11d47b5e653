"""Limits from the past: ``replay --suggest`` and ``forecast`` find them, and ``replay --plot`` draws any log."""

import json
import logging
import math
import random
import re
import struct
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from command_line import SITE, Files, Write, answer_of, line, lines_of, replayed, run
from tables import each

from ratelimit_mw import clock, load_settings
from ratelimit_mw.cli.forecast import HOUR, forecast_counts, limit_above
from ratelimit_mw.cli.output import Failure
from ratelimit_mw.traffic import TrafficLog


def suggested(settings: Path, access_log: Path, share: str) -> dict[str, Any]:
    """Return the suggested limits of each rule."""
    limits: dict[str, Any] = replayed(settings, access_log, "--suggest", share)["suggested"]["limits"]
    return limits


# 100 requests in one minute: clients with 1, 2, 3, ... 13 requests, and one with 9 more.
LOG = [line(f"192.0.2.{n}", at=i) for n in range(1, 14) for i in range(n)] + [
    line("192.0.2.99", at=i) for i in range(9)
]


@each(("share", "limit"), [("0%", "13/minute"), ("1%", "12/minute"), ("3%", "11/minute")])
def test_lowest_limit_for_a_share(rules: Write, log: Write, share: str, limit: str) -> None:
    """One less would reject more than the share."""
    window = {**SITE, "algorithm": "fixed-window"}
    assert suggested(rules(window), log(LOG), share) == {"site": [limit]}
    assert replayed(rules({**window, "limits": limit}), log(LOG))["rejected"] <= float(share[:-1])


@each("algorithm", ["fixed-window", "sliding-window", "sliding-window-log", "gcra", "token-bucket"])
@each("share", ["0%", "10%"])
def test_suggestions_keep_their_promise(rules: Write, log: Write, algorithm: str, share: str) -> None:
    """A replay with the suggested limits rejects at most the share."""
    rng = random.Random(algorithm)
    access_log = log(line(f"192.0.2.{int(rng.paretovariate(0.7)) % 50}", at=i // 3) for i in range(300))
    rule = {"name": "site", "algorithm": algorithm}
    found = suggested(rules({**rule, "limits": ["15/minute", "100/hour"]}), access_log, share)
    again = replayed(rules({**rule, "limits": found["site"]}), access_log)
    assert again["rejected"] <= float(share[:-1]) / 100 * 300


def test_a_ban_counts_for_the_share(rules: Write, log: Write) -> None:
    """One rejection starts a ban, which rejects many more requests than the limit does, so none is rejected."""
    quiet = [line(f"192.0.2.{n % 90}", at=n * 40) for n in range(90)]
    steady = [line("192.0.2.99", at=n) for n in range(5)] + [line("192.0.2.99", at=60 * n) for n in range(1, 60)]
    ban = {"ban": {"after": 1, "within": "1m", "for": "1d"}}
    banning, access_log = {**SITE, "algorithm": "fixed-window", **ban}, log([*quiet, *steady])
    assert suggested(rules(banning), access_log, "1%") == {"site": ["5/minute"]}
    assert replayed(rules({**banning, "limits": "5/minute"}), access_log)["rejected"] == 0


def test_burst_in_proportion(rules: Write, log: Write) -> None:
    """The burst of a bucket changes with its amount."""
    rule = {"name": "bucket", "limits": "10/minute burst 5", "algorithm": "token-bucket"}
    (quota,) = suggested(rules(rule), log([line()] * 40), "0%")["bucket"]
    amount, burst = map(int, re.fullmatch(r"(\d+)/minute burst (\d+)", quota).groups())  # type: ignore[union-attr]
    assert burst == round(amount / 2) == 40


def test_rules_without_a_suggestion(rules: Write, log: Write) -> None:
    """Concurrency limits stay, and a rule without a request has no suggestion. There may be no rule at all."""
    assert suggested(rules(), log([line()]), "1%") == {}
    slots = {"name": "slots", "limits": "2 concurrent"}
    both = {"name": "both", "limits": ["2 concurrent", "5/minute"]}
    nowhere = {"name": "nowhere", "limits": "5/minute", "match": {"path": "/nowhere"}}
    settings, access_log = rules(slots, both, nowhere), log([line()] * 9)
    found = suggested(settings, access_log, "0%")
    assert found == {"slots": None, "both": ["2 concurrent", "9/minute"], "nowhere": None}
    answer = answer_of("replay", settings, access_log, "--suggest", "0%")
    assert "# nowhere: no suggestion, because no known limit decides a request of the log" in lines_of(answer)
    assert "concurrency limits reject none for slots, both" in answer.notes[0]


def test_any_rule_has_a_suggestion(rules: Write, log: Write, caplog: pytest.LogCaptureFixture) -> None:
    """Modes, outcomes, tables and costs do not matter."""
    every = [
        {"name": "shadow", "limits": "1/minute", "mode": "shadow"},
        {"name": "leased", "limits": "1/minute", "consistency": "leased"},
        {"name": "reject", "limits": "1/minute", "key": "user", "when_missing": "reject"},
        {"name": "failures", "limits": "1/minute", "count_when": {"status": 401}},
        {"name": "tables", "limits": "1/minute", "key": "user", "per_key": {"alice": "2/minute"}},
        {"name": "cost", "limits": "7/minute", "cost": 7},
    ]
    lines = [line(user=user, status=status) for user in ("alice", "bob") for status in (200, 401) for _ in range(150)]
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        limits = suggested(rules(*every, defaults={"consistency": "leased"}), log(lines), "0%")
    assert limits == {
        "shadow": ["600/minute"],
        "leased": ["600/minute"],
        "reject": ["300/minute"],
        "failures": ["300/minute"],
        "tables": ["300/minute"],  # alice has her own limit
        "cost": ["4200/minute"],
    }
    assert not [record for record in caplog.records if not any(f"rule {name}" in record.message for name in limits)]


def test_the_lines_can_be_copied(rules: Write, log: Write, tmp_path: Path) -> None:
    """The lines below the title are TOML that a rule takes."""
    lines = lines_of(answer_of("replay", rules(SITE), log(LOG), "--suggest", "1%"))
    start = lines.index("Suggested limits that reject about 1% of the requests of a rule at most")
    comment, limits, *rest = lines[start + 1 :]
    text = f'[[rules]]\nname = "site"\n{comment}\n{limits}\n'
    settings = load_settings(Files(tmp_path).settings(text, "copied.toml"))
    assert str(settings.rules[0].quotas[0]) == "12/minute"
    assert (comment, rest) == ("# site", [])


def test_a_share_is_a_percentage_below_100(rules: Write, log: Write) -> None:
    """A share is a percentage below 100%."""
    for share in ("", "1", "100%", "-1%", "1.234%", "one%", "1 %"):
        result = run("replay", rules(SITE), log([line()]), "--suggest", share)
        assert (result.exit_code, result.stdout, "expected a share" in result.stderr) == (2, "", True), share


def test_a_pipe_is_read_once(rules: Write, log: Write) -> None:
    """The passes read the requests from the database."""
    found = replayed(rules(SITE), log(LOG), "--suggest", "1%")
    result = run("replay", rules(SITE), "-", "--suggest", "1%", "--json", input="".join(LOG))
    assert json.loads(result.stdout) == found


PNG = b"\x89PNG\r\n\x1a\n"


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == PNG
    width, height = struct.unpack(">LL", head[16:24])
    return width, height


@pytest.mark.slow
def test_the_ending_of_its_name_decides_the_format_of_a_plot(rules: Write, log: Write, tmp_path: Path) -> None:
    """The ending of the name decides, in any case."""
    picture = tmp_path / "small.PNG"
    result = run("replay", rules(SITE), log(line(at=i * 60) for i in range(9)), "--plot", picture)
    assert (result.exit_code, result.stderr) == (0, f"picture written to {picture}\n")
    assert min(png_size(picture)) > 500


@pytest.mark.slow
def test_an_svg_is_the_same_each_time(rules: Write, log: Write, tmp_path: Path) -> None:
    """An SVG contains no date, is the same each time, and follows the colour scheme of its reader."""
    access_log = log(line(f"192.0.2.{i}", at=i * 7) for i in range(1, 9) for _ in range(5))
    one, two = tmp_path / "one.svg", tmp_path / "two.SVG"
    for picture in (one, two):
        assert run("replay", rules(SITE), access_log, "--plot", picture).exit_code == 0
    assert one.read_bytes() == two.read_bytes()
    root = ElementTree.fromstring(one.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "dc:date" not in one.read_text()
    assert "prefers-color-scheme: dark" in one.read_text()
    assert not re.findall(r"(?<!, )#(?:333333|ffffff)", one.read_text())


@pytest.mark.slow
@each("span", [0, 1, 90, 3_000, 86_400, 40 * 86_400, 300 * 86_400, 20 * 365 * 86_400, 7 * 10**9])
def test_plot_of_any_span(rules: Write, log: Write, tmp_path: Path, span: int) -> None:
    """The log may cover a second, a year, or centuries because of a wrong date."""
    picture = tmp_path / "a.png"
    result = run("replay", rules(SITE), log([line(at=0), line(at=span)]), "--plot", picture)
    assert result.exit_code == 0
    assert png_size(picture)[0] > 1000


@pytest.mark.slow
@each("name", ["a.pdf", "a", "nowhere/a.png"])
def test_plot_to_an_invalid_path(rules: Write, log: Write, tmp_path: Path, name: str) -> None:
    """The exit code is 2, before the work."""
    result = run("replay", rules(SITE), log([line()]), "--plot", tmp_path / name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Invalid value for '--plot'" in result.stderr


@pytest.mark.slow
def test_plot_without_its_extra(rules: Write, log: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without matplotlib ``--plot`` gives exit code 2, and replay works without ``--plot``."""
    for name in {"matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))}:
        monkeypatch.setitem(sys.modules, name, None)
    result = run("replay", rules(SITE), log([line()]), "--plot", tmp_path / "a.png")
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'pip install "ratelimit-mw[plot]"' in result.stderr
    assert run("replay", rules(SITE), log([line()])).exit_code == 0


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
    now = int((MONDAY + timedelta(days=days, minutes=30)).timestamp()) * 10**9
    patch.setattr(clock, "WALL_AT_ZERO", now - time.monotonic_ns())
    patch.setattr(clock.machine, "time_ns", lambda: now)


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
    assert (few.exit_code, "no record of other by the hour in the last 90 days" in few.stderr) == (1, True)


@pytest.mark.thorough
def test_a_traffic_log_must_keep_hours(tmp_path: Path) -> None:
    """An hour is not lost at the edge of its retention."""
    none = ("1d:1y", 9, None), ("1m:1h", 0, None)
    for retention, days, hours in (("1h:90d,1d:1y", 89, 89 * 24), ("1h:8d", 7, 7 * 24), *none):
        url = f"sqlite:///{tmp_path}/{days}.db?retention={retention}"
        log = TrafficLog(url)
        for hour in range(days * 24 or 1):
            log.record("api", at=clock.now_us() / clock.SECOND - hour * HOUR)
        log.close()
        result = run("forecast", url, "api", "--json")
        if hours is None:
            assert (result.exit_code, "the log keeps no hours" in result.stderr) == (1, True)
        else:
            assert abs(json.loads(result.stdout)["hours"] - hours) <= 3


def test_misuse_is_explained(url: str) -> None:
    unclear = "name an EVENT, or a rule with --rule"
    with pytest.raises(Failure, match="a forecast needs three whole days, or three weeks for a week; got 71 hours"):
        forecast_counts([5] * 71)
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
