"""A cluster whose slots move, whose primaries change, and that servers join and leave, under three processes."""

from __future__ import annotations

import pytest
from topology_scene import play_all

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_three_processes_while_the_cluster_changes() -> None:
    """No client is over its limit, no request fails, and the servers hold what was allowed. See `make topology`."""
    rows = list(play_all(print))
    assert [(row.change, row.problems()) for row in rows] == [(row.change, []) for row in rows]
    assert all(row.allowed and row.made for row in rows)
