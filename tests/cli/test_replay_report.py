"""The report of a replay counts every request and client of a log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from command_line import SITE, Files, answer_of, line, lines_of, request_log, rows_of
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import load_settings
from ratelimit_mw.cli.replay.report import STEPS, ReplayReport
from ratelimit_mw.cli.replay.simulation import Simulation


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_a_curve_has_every_request(tmp_path_factory: pytest.TempPathFactory, times: list[int]) -> None:
    """Each is in the step of its time. There are few steps, whatever the length of the log."""
    log = request_log(Files(tmp_path_factory.mktemp("logs")).log([line(at=at) for at in times]))
    drawn = ReplayReport(log, Simulation(load_settings({"rules": [SITE]}))).curve()
    step = drawn["step"]
    assert step in STEPS
    assert len(drawn["times"]) <= 121
    expected = Counter((1_500_000_000 + at) // step * step for at in times)
    assert dict(zip(drawn["times"], drawn["requests"], strict=True)) == expected
    assert drawn["times"] == sorted(expected)


def test_all_clients_of_a_log_are_counted(tmp_path: Path) -> None:
    files = Files(tmp_path)
    lines = [line(f"192.0.{i // 250}.{i % 250}") for i in range(5_000)] + [line("198.51.100.1")] * 5
    answer = answer_of("replay", files.rules(SITE), files.log(lines))
    assert "5,005 requests from 5,001 clients" in lines_of(answer)
    assert tuple(rows_of(answer)[-1].values()) == ("198.51.100.1", 5, 2, "site", 0.4)


def test_more_keys_than_the_store_has(tmp_path: Path) -> None:
    """A note says that the counts are not those of each client."""
    files = Files(tmp_path)
    log = files.log(line(f"192.0.2.{i}") for i in range(9))
    (note,) = answer_of("replay", files.rules(SITE, store="memory://?max_keys=5"), log).notes
    assert note.startswith("more than 5 keys at once: some clients share counts")
    assert not answer_of("replay", files.rules(SITE, store="memory://?max_keys=50"), log).notes
