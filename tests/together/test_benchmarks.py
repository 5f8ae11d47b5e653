"""The benchmarks run, with one round of each comparison. No test looks at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from folders import ROOT

from benchmarks.__main__ import PARTS

pytestmark = pytest.mark.slow


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [
        pytest.param(["--limits", "3", "--mode", "threads"], 1, id="one server"),
        pytest.param(["--nodes", "3", "--replicas", "1", "--limits", "2", "--keys", "features"], 2, id="cluster"),
    ],
)
def test_a_fleet_measures_its_requests(arguments: list[str], commands: int) -> None:
    """Each request of two processes is decided by the servers, and counted."""
    record: dict[str, Any] = json.loads(run("fleet", "--rate", "200", "--seconds", "1", "--json", *arguments))
    assert record["requests"] == record["allowed"] > 0
    assert record["failed"] == record["local"] == record["unfinished"] == 0
    assert 0 < record["commands_per_request"] <= commands


@pytest.mark.parametrize("part", PARTS)
def test_each_part_reports(part: str) -> None:
    """Each comparison runs to its end and prints its tables, in which every row has all columns."""
    tables = [line for line in run("--rounds", "1", part).splitlines() if line.startswith("|")]
    columns = [line.count("|") for line in tables]
    heads = [i for i, line in enumerate(tables) if line.startswith("| ---")]
    assert heads
    assert all(columns[i] == columns[i - 1] for i in range(1, len(tables)) if i + 1 not in heads)
