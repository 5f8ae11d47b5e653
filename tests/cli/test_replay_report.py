"""The report of a replay has bounded memory, and stays right for the clients and times that matter."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from command_line import SITE, Files, line, run
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.cli.replay import report
from ratelimit_mw.cli.replay.report import STEPS, ClientTable, ReplayCurve


@given(st.lists(st.tuples(st.integers(0, 10**9), st.booleans()), min_size=1))
def test_curve_counts_every_request(requests: list[tuple[int, bool]]) -> None:
    """The steps of a curve have all requests, each at its time."""
    curve = ReplayCurve()
    for time, rejected in requests:
        curve.add(time + 0.5, rejected)
    drawn = curve.as_json()
    step = drawn["step"]
    assert sum(drawn["requests"]) == len(requests)
    for time, every, lost in zip(drawn["times"], drawn["requests"], drawn["rejected"], strict=True):
        inside = [rejected for at, rejected in requests if time <= at < time + step]
        assert (every, lost) == (len(inside), sum(inside))


def test_curve_of_a_long_log_is_bounded() -> None:
    """The steps become wider when there are too many, and no request is lost."""
    curve = ReplayCurve()
    for minute in range(50_000):
        curve.add(minute * 60, minute % 2 == 0)
    assert len(curve._counts) <= report._MAX_STEPS
    drawn = curve.as_json()
    assert drawn["step"] in STEPS
    assert len(drawn["times"]) <= 121
    assert (sum(drawn["requests"]), sum(drawn["rejected"])) == (50_000, 25_000)


def test_steps_divide_each_other() -> None:
    """Counts of narrow steps are summed into wide ones."""
    steps = list(STEPS)
    assert all(wide % narrow == 0 for narrow, wide in pairwise(steps))


def test_client_table_keeps_the_highest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with low counts are dropped, those with most rejections last."""
    monkeypatch.setattr(report, "MAX_CLIENTS", 10)
    table = ClientTable(2, (1, 0))
    for i in range(100):
        row = table.row(f"client-{i}")
        row[0] += 1
        row[1] += 5 * (i in (3, 50))
        table.row("busy")[0] += 1
    assert len(table.rows) <= 10
    assert table.top(3) == ["client-3", "client-50", "busy"]
    assert table.rows["busy"][0] == 100
    assert not table.is_complete


def test_log_of_many_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says that there are more clients than it counts."""
    monkeypatch.setattr(report, "MAX_CLIENTS", 10)
    files = Files(tmp_path)
    lines = [line(f"192.0.2.{i}") for i in range(50)] + [line("198.51.100.1")] * 5
    result = run("replay", files.rules(SITE), files.log(lines))
    assert "55 requests from more than 10 clients" in result.stdout
    assert result.stdout.split()[-5:] == ["198.51.100.1", "5", "2", "site", "40.0%"]
    assert "more than 10 clients: only the counts" in result.stderr


def test_more_keys_than_the_store_has(tmp_path: Path) -> None:
    """A note says that the counts are not those of each client."""
    files = Files(tmp_path)
    log = files.log(line(f"192.0.2.{i}") for i in range(9))
    full = run("replay", files.rules(SITE, store="memory://?max_keys=5"), log)
    assert full.stderr.startswith("more than 5 keys at once: some clients share counts")
    assert run("replay", files.rules(SITE, store="memory://?max_keys=50"), log).stderr == ""
