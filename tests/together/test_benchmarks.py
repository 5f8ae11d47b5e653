"""The benchmarks run, with as few rounds as they can have. No test looks at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from folders import ROOT

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
