"""``ratelimit-mw capacity``: the simulation against queueing theory, the command, and measurements of real servers."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import redis
from command_line import run
from servers import HOST, STEADY, cluster_running, redis_running

from ratelimit_mw.cli.capacity import simulation, workers
from ratelimit_mw.cli.capacity.calls import ANNOUNCED_EVERY, RENEWED_EVERY, CallShares
from ratelimit_mw.cli.capacity.fit import fit
from ratelimit_mw.cli.capacity.inputs import Costs, Deployment, MeasuredCosts
from ratelimit_mw.cli.capacity.processes import Clock, Machine, Process
from ratelimit_mw.cli.capacity.report import describe
from ratelimit_mw.cli.capacity.simulation import Result, simulate
from ratelimit_mw.limiter.chain import fleet
from ratelimit_mw.stores import heartbeat
from ratelimit_mw.stores.redis import batch

NOTHING = Costs()


def costs(server: Costs = NOTHING, client: Costs = NOTHING, **options: Any) -> MeasuredCosts:
    """Costs of which only those given are not 0."""
    return MeasuredCosts("test", 0.0, server, client, client, 0.0, NOTHING, NOTHING, 145.0, 222.0, 20_000.0, **options)


SERVER = costs(Costs(command=25.0, hit=8.0, idle=1_000.0), Costs(decision=10.0, message=30.0, hit=4.0))
CLUSTER = costs(
    Costs(message=20.0, command=15.0, hit=10.0, idle=2_000.0),
    Costs(decision=5.0, message=30.0, command=15.0, hit=10.0),
    is_cluster=True,
)
STORES = {False: SERVER, True: CLUSTER}


def simulated(measured: MeasuredCosts | None = None, requests: int = 8_000, **options: Any) -> Result:
    plan = Deployment(**{"workers": 50, "rate": 1_000.0, **options})
    return simulate(plan, measured or STORES[plan.is_cluster], requests=requests)


# -- the simulation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_wait_at_a_server_is_that_of_md1(busy: float) -> None:
    """Random arrivals and equal service wait for busy * service / (2 * (1 - busy)) in the mean."""
    result = simulated(costs(Costs(command=100.0)), 40_000, rate=busy * 1e4, rtt=0.0, threads=1, workers=200)
    assert result.node_cpu == pytest.approx(busy, rel=0.03)
    assert result.mean == pytest.approx(100 + busy * 100 / (2 * (1 - busy)), rel=0.08)


def test_wait_of_random_service_is_that_of_mm1() -> None:
    """A process with random jobs at random times has a mean time of service / (1 - busy)."""
    clock, chance, times = Clock(), random.Random(7), []
    process = Process(clock, Machine(1), NOTHING)

    def arrive(_: None) -> None:
        arrived = clock.now
        clock.after(chance.expovariate(1 / 100), arrive, None)
        process.submit(lambda: (chance.expovariate(1 / 60), lambda: times.append(clock.now - arrived)))

    clock.after(0, arrive, None)
    clock.run(4e6)
    assert process.busy / 4e6 == pytest.approx(0.6, rel=0.05)
    assert sum(times) / len(times) == pytest.approx(60 / (1 - 0.6), rel=0.1)


def test_littles_law() -> None:
    """The requests that are under way are the rate times the mean latency."""
    plan = Deployment(workers=10, rate=20_000.0, rtt=1_000.0)
    whole = simulation.SimulatedFleet(plan, costs(Costs(command=20.0), Costs(decision=10.0)), 1, 40_000)
    under_way = []
    for _ in range(400):
        whole.clock.run(whole.clock.now + 2_500)
        under_way.append(whole.arrived - whole.decided)
    mean = sum(whole.latencies) / len(whole.latencies)
    assert sum(under_way) / len(under_way) == pytest.approx(mean * plan.rate / 1e6, rel=0.1)


def test_at_a_low_rate_each_decision_has_a_command() -> None:
    result = simulated(rate=50.0, workers=50)
    assert result.commands == pytest.approx(result.requests, rel=0.02)
    assert result.mean > 500


def test_at_a_high_rate_requests_share_commands() -> None:
    """A worker sends the requests that arrive in a round trip with the next call: about rate times round trip."""
    result = simulated(costs(), workers=1, rate=20_000.0, rtt=1_000.0)
    assert result.requests / result.commands == pytest.approx(20, rel=0.15)
    assert simulated(costs(), workers=1, rate=20_000.0, rtt=1_000.0, threads=8).commands == pytest.approx(
        20_000, rel=0.03
    )


def test_a_cluster_has_a_command_for_each_slot() -> None:
    """Hash tags make one command of the limits of a request. Without them, a request has a command for each limit."""
    same, different = (simulated(nodes=3, limits=3, has_tags=tags) for tags in (True, False))
    assert same.commands == pytest.approx(same.requests, rel=0.02)
    assert different.commands == pytest.approx(3 * different.requests, rel=0.02)


def test_one_client_is_on_one_server() -> None:
    result = simulated(nodes=6, rate=5_000.0, clients=1, workers=4)
    assert result.busiest_node_cpu > 4 * result.node_cpu
    assert result.commands < result.operations


def test_a_rejection_in_several_slots_refunds_the_others() -> None:
    """Two refunds and two looks at the other two slots: one command for each slot, and a second round trip."""
    result = simulated(nodes=3, limits=3, has_tags=False, rejected=1.0, rejected_clients=10**9, clients=10**6)
    assert result.commands == pytest.approx(5 * result.requests, rel=0.02)
    assert result.operations == pytest.approx(7 * result.requests, rel=0.02)
    assert result.mean > 1_000


def test_the_rejection_cache_saves_calls() -> None:
    """Each worker asks the store about once per second for a rejected client."""
    result = simulated(rate=2_000.0, workers=2, rejected=0.5, rejected_clients=1)
    assert result.commands == pytest.approx(1_002, rel=0.1)


def test_second_calls_and_held_slots_send_commands() -> None:
    assert simulated(second_calls=0.5).operations == pytest.approx(1.5 * simulated().operations, rel=0.05)
    assert simulated(held_slots=20_000).operations == pytest.approx(2 * simulated().operations, rel=0.05)


def test_reports_take_the_place_of_calls() -> None:
    """Each worker sends one operation per interval for each client that it has seen."""
    result = simulated(workers=10, rate=20_000.0, consistency="reported", clients=10)
    assert result.operations == pytest.approx(10 * 10 * 10, rel=0.05)
    assert result.percentile(0.99) < 500


def test_leases_take_the_place_of_calls() -> None:
    """A lease serves its share. With 20 requests for a client and worker in its life, 20 requests have one call."""
    exact, leased = (
        simulated(workers=10, rate=10_000.0, clients=150, consistency=name) for name in ("exact", "leased")
    )
    assert leased.commands < exact.commands / 5
    assert simulated(consistency="leased").operations > 900  # few requests for a client: no lease


def test_shares_of_leases_for_busy_and_quiet_keys() -> None:
    busy = CallShares(Deployment(workers=1, rate=1e6, clients=1, amount=1_000, consistency="leased"))
    assert busy.asked == pytest.approx(1 / 20, rel=0.01)
    quiet = CallShares(Deployment(workers=10, rate=1.0, consistency="leased"))
    assert quiet.asked == pytest.approx(1.0, rel=0.01)
    assert CallShares(Deployment(workers=1, rate=1.0, amount=10, consistency="leased")).asked == 1.0


def test_more_nodes_have_less_cpu_each() -> None:
    loads = [simulated(rate=20_000.0, nodes=nodes).node_cpu for nodes in (2, 4, 8)]
    assert loads == sorted(loads, reverse=True)
    assert loads[2] == pytest.approx(loads[0] / 4, rel=0.25)


def test_a_part_of_the_fleet_is_as_the_whole() -> None:
    """A fleet that is too large to simulate has the loads and latencies of a smaller one with the same ratios."""
    large = simulated(workers=8_000, rate=800_000.0, nodes=80)
    small = simulated(workers=800, rate=80_000.0, nodes=8)
    assert large.requests == pytest.approx(10 * small.requests, rel=0.03)
    assert large.node_cpu == pytest.approx(small.node_cpu, rel=0.05)
    assert large.percentile(0.5) == pytest.approx(small.percentile(0.5), rel=0.1)


def test_processes_share_the_cores_of_a_machine() -> None:
    """Four busy processes on two cores take twice their time."""
    clock, machine, ended = Clock(), Machine(2), []
    for _ in range(4):
        process = Process(clock, machine, NOTHING)
        for _ in range(10):
            process.submit(lambda: (1_000.0, lambda: ended.append(clock.now)))
    clock.run(1e6)
    assert max(ended) == 20_000
    crowded = simulated(costs(Costs(command=50.0), Costs(decision=200.0)), workers=8, rate=5_000.0, cores=2)
    alone = simulated(costs(Costs(command=50.0), Costs(decision=200.0)), workers=8, rate=5_000.0)
    assert crowded.mean > alone.mean


def test_a_process_that_sleeps_is_slow_at_first() -> None:
    """Between two measured pauses, the cost of a wake grows evenly; after the longest it stays."""
    wakes = Costs(wakes=((100.0, 0.0), (300.0, 40.0)))
    assert [wakes.wake(pause) for pause in (0, 100, 200, 300, 1e6)] == [0, 0, 20, 40, 40]


def test_the_same_seed_gives_the_same_result() -> None:
    assert simulated() == simulated()


def test_constants_are_those_of_the_store() -> None:
    assert workers.MOST == batch._MOST
    assert (workers.WORTHWHILE, workers.MOST_CALLS) == (batch._WORTHWHILE, batch._MOST_CALLS)
    assert (ANNOUNCED_EVERY, RENEWED_EVERY) == (fleet._LAST_INTERVAL, heartbeat._INTERVAL)


def test_fit_finds_the_costs_of_parts() -> None:
    """The costs that made the totals are found; a cost below 0 becomes 0."""
    rows = [(1, 1, 1), (1, 1, 3), (0.1, 1, 1), (0.1, 1, 3)]
    assert fit(rows, [30 + 7 + h * 5 for _, _, h in rows[:2]] + [3 + 7 + h * 5 for _, _, h in rows[2:]]) == (
        pytest.approx([30, 7, 5])
    )
    assert min(fit([(1, 0), (1, 1), (1, 2)], [10, 9, 8])) == 0
    assert fit([(1, 0), (2, 0)], [3, 6]) == pytest.approx([3, 0])


# -- the figures and the command -----------------------------------------------------------------------------


def figures(**options: Any) -> dict[str, Any]:
    return describe(Deployment(**{"workers": 50, "rate": 1_000.0, **options}), STORES, 1, 5_000)


def test_memory_connections_and_network() -> None:
    measured = {False: costs()}
    found = describe(Deployment(workers=50, rate=1_000.0, limits=3, clients=1_000, threads=4), measured, 1)
    assert found["node"]["connections"] == 250  # a thread of each worker reads overrides
    assert found["node"]["memory_bytes"] == 3 * 1_000 * 222 + 250 * 20_000
    assert figures(replicas=2, nodes=3)["node"]["replication_bytes_per_second"] > 0
    assert figures(nodes=3)["connections"] == 150
    assert figures(nodes=3)["worker"]["connections"] == 3
    assert figures(nodes=3, threads=4)["worker"]["connections"] == 14


def test_admission_of_each_consistency() -> None:
    assert figures()["admission"]["over"] == 0.0
    leased = figures(consistency="leased")["admission"]
    assert (leased["over"], leased["late"]) == (0.0, 1.0)
    assert figures(consistency="reported", clients=10)["admission"]["over"] > 0


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"rate": 100_000.0, "nodes": 2, "limits": 3}, "nodes are enough"),
        ({"rate": 100_000.0, "nodes": 2, "limits": 3}, "faster than they can be decided"),
        ({"rate": 20_000.0, "nodes": 12, "workers": 1}, "workers are enough"),
        ({"workers": 10_000, "threads": 2}, "its maxclients is 10,000"),
        ({"clients": 1, "rate": 100_000.0, "nodes": 12, "limits": 3}, "more nodes do not help"),
        ({"consistency": "leased", "lease": 0.2}, "get smaller, and workers call more often"),
        ({"rtt": 200_000.0}, "store_timeout of 50 ms"),
        ({"rate": 30_000.0, "nodes": 12, "workers": 4, "cores": 1}, "all cores of a machine (1)"),
    ],
)
def test_warnings(options: dict[str, Any], warning: str) -> None:
    assert [line for line in figures(**options)["warnings"] if warning in line]


def test_a_deployment_that_fits_has_no_warnings() -> None:
    assert figures()["warnings"] == []
    assert figures()["nodes_needed"] == 1


def test_report_as_json() -> None:
    """The JSON has these keys, whatever the deployment."""
    result = run("capacity", "--workers", 4, "--rate", 2_000, "--limits", 1, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == {
        "plan", "inputs", "seed", "requests_per_second", "commands_per_second", "decisions_per_command", "latency_ms",
        "admission", "node", "worker", "connections", "nodes", "replicas", "is_overloaded", "nodes_needed", "warnings",
    }  # fmt: skip
    assert set(report["latency_ms"]) == {"mean", "p50", "p99"}
    assert set(report["worker"]) == {"cpu", "connections"}
    assert set(report["node"]) == {
        "commands_per_second", "cpu", "busiest_cpu", "memory_bytes", "connections", "received_bytes_per_second",
        "sent_bytes_per_second", "replication_bytes_per_second",
    }  # fmt: skip
    assert report["plan"]["workers"] == 4


def test_report_as_tables() -> None:
    """The tables have units; warnings are in plain words."""
    result = run("capacity", "--workers", 50, "--rate", 100_000, "--limits", 3, "--nodes", 2, "--replicas", 1)
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert "50 workers, 100,000 requests/s, 3 limits, a cluster of 2 servers" in words
    assert re.search(r"commands [\d,]+/s [\d,]+/s CPU 1\.\d cores 2\.\d cores memory \d+ MB \d+ MB", words)
    assert re.search(r"to replicas [\d,]+ MB/s", words)
    assert "error of admission none: the store decides each request" in words
    assert "warning: " in words


def test_examples_of_the_help() -> None:
    """The examples that need no server run as printed."""
    examples = [line.strip() for line in run("capacity", "--help").stdout.partition("Examples:\n")[2].splitlines()]
    assert len(examples) == 4
    for example in examples[:2]:
        assert run(*shlex.split(example)[1:]).exit_code == 0, example


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rtt", "fast"), "expected a duration"),
        (("--rejected", "120%"), "expected a percentage from 0% to 100%"),
        (("--quota", "5/minit"), "cannot parse quota"),
        (("--workers", "0"), "is not in the range"),
        (("--consistency", "eventual"), "'exact', 'leased', 'reported'"),
        (("--save", "costs.json"), "Add --measure FILE"),
    ],
)
def test_misuse(arguments: tuple[str, ...], message: str) -> None:
    """A wrong option ends the command with exit code 2 and names the fix."""
    result = run("capacity", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_file_without_costs(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text("{}")
    result = run("capacity", "--costs", file)
    assert result.exit_code == 1
    assert "--measure FILE --save JSON" in result.stderr


# -- the measurement -----------------------------------------------------------------------------------------


def settings(folder: Path, store: str) -> Path:
    file = folder / "ratelimit.toml"
    file.write_text(f'store = "{store}"\n')
    return file


def test_measure_needs_redis(tmp_path: Path) -> None:
    result = run("capacity", "--measure", settings(tmp_path, "memory://"))
    assert result.exit_code == 1
    assert "expected a store on Redis, for example redis://cache:6379; got memory://" in result.stderr


def test_measure_a_server_that_does_not_exist(tmp_path: Path) -> None:
    result = run("capacity", "--measure", settings(tmp_path, "redis://127.0.0.1:1"))
    assert result.exit_code == 1
    assert "Redis" in result.stderr


@pytest.mark.thorough
def test_measure_a_server(tmp_path: Path) -> None:
    """The costs of a server are measured and saved; its keys are removed."""
    with redis_running(tmp_path) as server, redis.Redis(HOST, server.port) as client:
        client.set("mine", 1)
        file, saved = settings(tmp_path, f"redis://{HOST}:{server.port}"), tmp_path / "costs.json"
        result = run("capacity", "--measure", file, "--save", saved, "--rate", 1000, "--json")
        assert result.exit_code == 0, result.stderr
        assert client.keys() == [b"mine"]
    (found,) = json.loads(saved.read_text())
    assert (found["nodes"], found["is_cluster"]) == (1, False)
    assert found["server"]["command"] > 0
    assert found["client"]["decision"] + found["client"]["message"] > 0
    assert found["sent"]["command"] + found["sent"]["hit"] == pytest.approx(197, rel=0.3)
    assert 100 < found["state"] < 500
    assert run("capacity", "--costs", saved, "--rate", 1000).exit_code == 0


@pytest.mark.thorough
def test_measure_a_cluster(tmp_path: Path) -> None:
    """A cluster of three servers is measured, and is the default number of nodes."""
    with cluster_running(tmp_path, *STEADY) as nodes:
        result = run("capacity", "--measure", settings(tmp_path, f"redis+cluster://{HOST}:{nodes[0].port}"), "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["plan"]["nodes"] == 3


@pytest.mark.thorough
def test_measure_needs_rights(tmp_path: Path) -> None:
    """A user without the right to read the counters gets the names of the rights."""
    with redis_running(tmp_path) as server, redis.Redis(HOST, server.port) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-info")
        file = settings(tmp_path, f"redis://app:secret@{HOST}:{server.port}")
        result = run("capacity", "--measure", file)
    assert result.exit_code == 1
    assert "+info and +memory|usage" in result.stderr
    assert "secret" not in result.stderr
