"""A cluster whose slots move, whose primaries change, and that servers join and leave, under three processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from topology_scene import FAILOVER, KILLED, Row, play_all


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_three_processes_while_the_cluster_changes() -> None:
    """No client is over its limit, no request fails, and the servers hold what was allowed. See `make topology`."""
    rows = list(play_all(print))
    assert [(row.change, row.problems()) for row in rows] == [(row.change, []) for row in rows]


FINE = Row("reshard", 900, 90, 0, [], 0, made=9, lost=0, succeeds=True, books={"9/day": (90, 90)})


def test_a_row_names_what_does_not_hold() -> None:
    """Servers that fail over or are killed may fail some requests, and lose some refunds."""
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"over": 1}, "1 requests over the limit"),
        ({"unavailable": 1}, "1 requests failed"),
        ({"change": FAILOVER, "unavailable": 601}, "601 requests failed"),
        ({"change": KILLED, "lost": 151}, "151 refunds are lost"),
        ({"change": FAILOVER, "made": 0}, "0 refunds made"),
        ({"change": KILLED, "succeeds": False}, "requests fail after the change"),
        ({"books": {"9/day": (91, 90)}}, "hold 1 more"),
        ({"books": {"9/day": (89, 90)}}, "hold less"),
    ]
    assert FINE.problems() == []
    for wrong, problem in wrongs:
        (found,) = replace(FINE, **wrong).problems()
        assert problem in found
