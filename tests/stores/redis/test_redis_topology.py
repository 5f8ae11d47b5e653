"""A cluster whose slots move, whose primaries change, and that servers join and leave, under three processes."""

from pathlib import Path

import pytest
from topology_scene import MAY_FAIL, play_all


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_three_processes_while_the_cluster_changes(tmp_path: Path) -> None:
    """No client is over its limit, no request fails, and the servers hold what was allowed. See `make topology`.

    Servers that fail over or are killed may fail some requests, and lose some refunds: then they hold more.
    """
    for row in play_all(tmp_path):
        print(f"\n{row}")
        assert (row.over, row.exceptions) == (0, [])
        assert max(row.unavailable, row.lost) <= MAY_FAIL.get(row.change, 0)
        assert row.allowed
        assert row.made, "no refund was needed"
        assert row.succeeds, "requests fail after the change"
        excess = [held - allowed for held, allowed in row.books.values()]
        assert min(excess) >= 0
        assert sum(excess) <= row.lost
