"""The simulation behind capacity.md: queueing theory, the rules of the store, and measurements of real servers."""

from pathlib import Path

import pytest
import redis
from folders import page_of
from servers import HOST, redis_running

from benchmarks import capacity
from benchmarks.capacity import measure
from benchmarks.capacity.costs import Costs, Deployment, MeasuredCosts
from benchmarks.capacity.fit import fit
from benchmarks.capacity.simulation import simulate

pytestmark = pytest.mark.thorough
NOTHING = Costs()


@pytest.mark.timeout(1800)  # the largest simulation takes a minute on an idle machine
@pytest.mark.parametrize("name", capacity.DEPLOYMENTS)
def test_the_page_has_the_rows_that_the_command_prints(name: str) -> None:
    """So any change of the simulation shows: of its leases, its slots in a cluster or its cache of rejections."""
    row = capacity.row_of(name, capacity.DEPLOYMENTS[name], capacity.read_costs())
    assert f"\n| {' | '.join(row)} |\n" in page_of("capacity").read_text()


@pytest.mark.parametrize("busy", [0.3, 0.8])
def test_wait_at_a_server_is_that_of_md1(busy: float) -> None:
    """Random arrivals and equal service wait for busy * service / (2 * (1 - busy)) in the mean."""
    costs = MeasuredCosts("test", 0.0, Costs(command=100.0), *[NOTHING] * 2, 0.0, *[NOTHING] * 2, 222.0, 20_000.0)
    plan = Deployment(rate=busy * 1e4, rtt=0.0, threads=1, workers=200)
    result = simulate(plan, costs, requests=40_000)
    assert result.node_cpu == pytest.approx(busy, rel=0.03)
    assert result.mean == pytest.approx(100 + busy * 100 / (2 * (1 - busy)), rel=0.08)


def test_fit_finds_the_costs_of_parts() -> None:
    """The costs that made the totals are found; a cost below 0 becomes 0."""
    rows = [(1, 1, 1), (1, 1, 3), (0.1, 1, 1), (0.1, 1, 3)]
    totals = [30 + 7 + h * 5 for _, _, h in rows[:2]] + [3 + 7 + h * 5 for _, _, h in rows[2:]]
    assert fit(rows, totals) == pytest.approx([30, 7, 5])
    assert min(fit([(1, 0), (1, 1), (1, 2)], [10, 9, 8])) == 0


def test_a_measurement_removes_its_keys(tmp_path: Path) -> None:
    """The costs of a server are measured; the keys of the measurement are removed."""
    with redis_running(tmp_path) as server, redis.Redis(HOST, server.port) as client:
        client.set("mine", 1)
        found = measure.measure(f"redis://{HOST}:{server.port}")
        assert client.keys() == [b"mine"]
    assert not found.is_cluster
    assert found.server.command > 0
    assert found.client.decision + found.client.message > 0
    assert found.sent.command + found.sent.hit == pytest.approx(197, rel=0.3)
    assert 100 < found.state < 500
