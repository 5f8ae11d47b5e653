"""Measure how the cost of a decision grows: ``python -m benchmarks.scaling --svg docs/images/scaling.svg``

Each curve is the processor time of a decision over one thing that grows. ``--quick`` measures with
fewer points and rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import timing
from benchmarks.decisions import rules as among_rules
from benchmarks.lmdb_store import ours, turn, work
from benchmarks.loops import gathered, repeated
from benchmarks.pictures import COLOURS, new_figure, save
from benchmarks.servers import Nodes, redis_nodes
from benchmarks.team import Team, team_of
from benchmarks.timing import Turn, in_turns, per_call, progress, table, timed
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import MemoryStore, Store, open_store

AMOUNT: Final = 1_000_000_000
BUDGET: Final = 5_000_000  # microseconds; no wait for a busy processor uses it up
SETTINGS: Final = Settings(rejection_cache=0, fleet_size=1, reload_interval=0)
Curve = dict[float, float]
"""Microseconds of processor time for one decision, by the thing that grows."""


@dataclass(frozen=True)
class Panel:
    """One picture: a title, the thing that grows, and the curves by their names."""

    title: str
    grows: str
    curves: dict[str, Curve]


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    keys: tuple[int, ...]
    stored_keys: tuple[int, ...]
    counts: tuple[int, ...]
    processes: tuple[int, ...]
    clusters: tuple[int, ...]
    clients: tuple[int, ...]
    rounds: int
    calls: int


FULL: Final = Size(
    tuple(10**n for n in range(3, 8)),
    (1_000, 10_000, 100_000),
    (1, 2, 3, 5, 10),
    (1, 2, 3, 4, 6, 8),
    (1, 3, 5),
    (1, 4, 16, 64, 256),
    9,
    2_000,
)
QUICK: Final = Size((1_000, 100_000), (1_000,), (1, 10), (1, 4), (1, 3), (1, 64), 2, 500)


def limiter_of(limits: Sequence[str], store: Store | None = None, algorithm: str = "gcra") -> Limiter:
    return Limiter([Rule(name="api", limits=list(limits), algorithm=algorithm)], store, settings=SETTINGS)


def clients(count: int) -> Callable[[int], dict[str, str]]:
    """Return the features of one of some clients, by its number."""
    return lambda i: {"ip": f"10.{i % count >> 16 & 255}.{i % count >> 8 & 255}.{i % count & 255}"}


def hitting(limiter: Limiter, count: int) -> Callable[[int], None]:
    """Return a candidate that hits random ones of some keys."""
    chance, features = random.Random(count), clients(count)

    def run(calls: int) -> None:
        hit = limiter.hit
        for each in [features(chance.randrange(count)) for _ in range(calls)]:
            hit(each)

    return run


def in_process(candidates: dict[float, Callable[[int], None]], size: Size) -> Curve:
    """Return the processor time of a decision of each candidate."""
    times = per_call({str(x): run for x, run in candidates.items()}, size.calls, size.rounds)
    return {x: times[str(x)] / 1000 for x in candidates}


def keys(size: Size) -> Panel:
    memory, lmdb = dict[float, Callable[[int], None]](), dict[float, Callable[[int], None]]()
    with tempfile.TemporaryDirectory() as folder:
        for count in size.keys:
            memory[count] = filled(limiter_of([f"{AMOUNT}/day"], MemoryStore(max_keys=count)), count)
        for count in size.stored_keys:
            lmdb[count] = filled(limiter_of([f"{AMOUNT}/day"], open_store(f"lmdb://{folder}/{count}", BUDGET)), count)
        return Panel("keys", "keys in the store", {"memory": in_process(memory, size), "LMDB": in_process(lmdb, size)})


def filled(limiter: Limiter, count: int) -> Callable[[int], None]:
    """Return a candidate that hits random ones of some keys, after it has hit each of them."""
    progress(f"scaling: {count:,} keys")
    features = clients(count)
    for i in range(count):
        limiter.hit(features(i))
    return hitting(limiter, count)


def rules(size: Size) -> Panel:
    counts = (1, 10, 100, 1_000)
    return Panel("rules", "rules", {"memory": in_process({count: among_rules(count) for count in counts}, size)})


def in_turn(runs: dict[float, Callable[[], Turn]], size: Size) -> tuple[Curve, Curve]:
    """Return the processor time of a decision, of this machine and of the servers: the lower quartiles of all turns."""
    found = in_turns(list(runs.values()), size.rounds, patience=90.0)
    calm = [Turn(*(sorted(each)[len(each) // 4] for each in zip(*turns, strict=True))) for turns in found]
    return (
        {x: each.cpu for x, each in zip(runs, calm, strict=True)},
        {x: each.server_cpu for x, each in zip(runs, calm, strict=True)},
    )


def limits(size: Size) -> Panel:
    many = [f"{AMOUNT + i}/{i + 1}h" for i in range(max(size.counts))]
    memory = in_process({count: hitting(limiter_of(many[:count]), 1_000) for count in size.counts}, size)
    features, runs = clients(256), dict[float, Callable[[], Turn]]()
    with redis_nodes() as nodes, ExitStack() as stack:
        for count in size.counts:
            limiter = limiter_of(many[:count], open_store(nodes.url, BUDGET))
            stack.callback(limiter.close)
            runs[count] = timed(repeated(lambda i, hit=limiter.hit: hit(features(i))), nodes.counters)
        client, server = in_turn(runs, size)
    return Panel("limits of a request", "limits", {"memory": memory, "Redis": client, "Redis, server": server})


def windows(size: Size) -> Panel:
    periods = {1: "second", 60: "minute", 3_600: "hour", 86_400: "day"}
    specs = {"fixed-window": 10**6, "gcra": 10**6, "sliding-window-counter": 10**6, "sliding-window-log": 10_000}
    found = {
        spec: in_process({s: hitting(limiter_of([f"{n}/{p}"], None, spec), 100) for s, p in periods.items()}, size)
        for spec, n in specs.items()
    }
    return Panel("window", "seconds of the window", found)


def processes(size: Size) -> Panel:
    with ExitStack() as stack:
        nodes = stack.enter_context(redis_nodes())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        places = {"LMDB": (f"lmdb://{folder}/states", None), "Redis": (nodes.url, nodes)}
        runs: dict[str, dict[float, Callable[[], Turn]]] = {name: {} for name in places}
        for count in size.processes:
            for name, (url, server) in places.items():
                team = stack.enter_context(team_of(work, [(ours, url)] * count))
                runs[name][count] = partial(lasting, team, server)
        (lmdb, _), (client, server_cpu) = (in_turn(each, size) for each in runs.values())
    return Panel("processes", "processes", {"LMDB": lmdb, "Redis": client, "Redis, server": server_cpu})


def lasting(team: Team, server: Nodes | None) -> Turn:
    """Let a team decide. A busy machine may let none of its processes decide in time, which is tried again."""
    while True:
        with suppress(ZeroDivisionError):
            return turn(team, server, "fixed-window", 1_000)


def clusters(size: Size) -> Panel:
    made = [Rule(name=each, key=[each], limits=f"{AMOUNT}/hour", algorithm="gcra") for each in ("ip", "user", "tenant")]
    features = [{"ip": f"192.0.2.{i}", "user": f"user-{i}", "tenant": f"tenant-{i}"} for i in range(256)]
    runs = dict[float, Callable[[], Turn]]()
    with ExitStack() as stack:
        for count in size.clusters:
            nodes = stack.enter_context(redis_nodes(count))
            limiter = Limiter(made, open_store(nodes.url, BUDGET), settings=SETTINGS)
            stack.callback(limiter.close)
            runs[count] = timed(repeated(lambda i, hit=limiter.hit: hit(features[i])), nodes.counters)
        client, servers = in_turn(runs, size)
    return Panel("Redis Cluster, three keys", "primaries", {"client": client, "servers": servers})


def loops(size: Size) -> Panel:
    features = clients(256)
    with redis_nodes() as nodes, asyncio.Runner() as runner:
        limiter = limiter_of([f"{AMOUNT}/day"], open_store(nodes.url, BUDGET))
        runs = {
            count: timed(gathered(runner, lambda i: limiter.ahit(features(i)), count, 0.1), nodes.counters)
            for count in size.clients
        }
        client, server = in_turn(dict(runs), size)
        runner.run(limiter.aclose())
    return Panel("clients of an event loop, Redis", "clients", {"client": client, "server": server})


PANELS: Final = (keys, rules, limits, windows, processes, clusters, loops)


def in_table(panel: Panel) -> str:
    """Return the table of a panel: a row for each curve."""
    places = sorted({x for curve in panel.curves.values() for x in curve})
    rows = []
    for name, curve in panel.curves.items():
        rows.append((name, *(f"{curve[x]:.1f}" if x in curve else "" for x in places)))
    return table(f"CPU of a decision in µs, by {panel.grows}", rows, ("", *(f"{x:,.0f}" for x in places)))


def draw(panels: Sequence[Panel], file: Path) -> None:
    """Draw all panels into one file."""
    figure, grid = new_figure("scaling", -(-len(panels) // 2), 2, figsize=(9, 2.6 * -(-len(panels) // 2)))
    places: Iterator[object] = iter(grid.flat)
    for panel, axes in zip(panels, places, strict=False):
        for (name, curve), colour in zip(panel.curves.items(), COLOURS, strict=False):
            axes.plot(list(curve), list(curve.values()), marker="o", markersize=3, color=colour, label=name)
        most = max(max(curve) for curve in panel.curves.values())
        axes.set(xlabel=panel.grows, ylabel="CPU of a decision, µs", ylim=(0, None), xscale="log")
        if most <= 10:
            axes.set_xscale("linear")
        axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
    for axes in places:
        axes.set_visible(False)
    save(figure, file)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer points, and short turns")
    parser.add_argument("--svg", type=Path, help="draw the curves to this file")
    asked = parser.parse_args()
    size = QUICK if asked.quick else FULL
    timing.most_rounds = size.rounds
    panels = []
    for measure in PANELS:
        progress(f"scaling: {measure.__name__}")
        panels.append(measure(size))
        print(in_table(panels[-1]), flush=True)
    if asked.svg:
        draw(panels, asked.svg)


if __name__ == "__main__":
    main()
