"""The benchmarks run, with one round of each comparison. No test looks at a time."""

import json
import subprocess
import sys
from typing import Any

import pytest
from folders import ROOT

from benchmarks.__main__ import PAGES, PARTS, TABLE
from benchmarks.cluster import CASES, round_trips
from benchmarks.servers import redis_nodes

pytestmark = pytest.mark.thorough


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_a_fleet_measures_its_requests() -> None:
    """The servers decide each request of two processes, and the record counts it."""
    servers = ["--nodes", "3", "--replicas", "1"]
    requests = ["--rate", "200", "--seconds", "1", "--mode", "threads", "--limits", "2", "--keys", "features"]
    record: dict[str, Any] = json.loads(run("fleet", *servers, *requests, "--json"))
    assert record["requests"] == record["allowed"] > 0
    assert record["failed"] == record["local"] == record["unfinished"] == 0
    assert record["commands"] == 2 * record["requests"]
    assert len(record["servers"]) == 6


@pytest.mark.parametrize("part", PARTS)
def test_each_comparison_runs_and_prints_its_tables(part: str) -> None:
    """Each comparison runs to its end. Its tables that are on a page have the columns of the page."""
    page = {table[1]: table[0] for each in PAGES for table in TABLE.finditer(each.read_text())}
    tables = list(TABLE.finditer(run("--rounds", "1", part)))
    assert tables
    for table in (table for table in tables if table[1] in page):
        heads = [text.split("\n")[2] for text in (page[table[1]], table[0])]
        assert heads[0] == heads[1], f"run `python -m benchmarks --write {part}`"


def test_the_tables_of_the_pages_are_printed() -> None:
    """A comparison that is renamed does not leave its old table on a page."""
    source = "".join(path.read_text() for path in (ROOT / "benchmarks").rglob("*.py"))
    titles = [table[1].strip("*") for page in PAGES for table in TABLE.finditer(page.read_text())]
    assert [title for title in titles if title not in source] == []
    assert titles


def test_a_cluster_takes_one_round_trip_and_two_to_reject() -> None:
    """The limits of a request are in one slot or in several: a rejection refunds the others."""
    with redis_nodes(3) as cluster:
        trips = {name: round_trips(rules, cluster) for name, rules in CASES.items()}
    assert trips == dict.fromkeys(CASES, 1) | {"the same, the last one rejects": 2}
