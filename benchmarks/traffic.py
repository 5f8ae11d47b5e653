"""The traffic log: one record beside a dictionary under a lock, four workers on one log, and the queries of a page."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import timing
from benchmarks.servers import redis_nodes
from benchmarks.timing import per_call, progress, table
from ratelimit_mw.traffic import TrafficLog
from ratelimit_mw.traffic.counts import EventCounts, Events
from ratelimit_mw.traffic.retention import DEFAULT, Retention

CALLS = 2_000
WORKERS, RATE, SECONDS = 4, 2_000, 60.0
EVENTS, CLIENTS = 20, 50
HOURS = "1h:90d,1d:2y,1w:10y"
DRAWN = 20
"""The curves of a page."""
DAY = 86_400


def increment(calls: int) -> None:
    """Add one to a number of a dictionary, under a lock."""
    lock, counts = threading.Lock(), dict[str, int]()

    def add(name: str) -> None:
        with lock:
            counts[name] = counts.get(name, 0) + 1

    for _ in range(calls):
        add("url_shorten")


def record(*arguments: str) -> Callable[[int], None]:
    log = TrafficLog("memory://")

    def run(calls: int) -> None:
        for _ in range(calls):
            log.record(*arguments)

    return run


def work(url: str, seconds: float, results: Any) -> None:
    """Record events at a steady rate. Report how many, the writes, and the seconds of processor time."""
    log, writes, begun, count = TrafficLog(url), list[float](), time.monotonic(), 0
    write = log._store.write

    def counted(*arguments: Any) -> None:
        write(*arguments)
        writes.append(time.monotonic())

    log._store.write = counted  # type: ignore[method-assign]
    while (passed := time.monotonic() - begun) < seconds:
        while count < passed * RATE / WORKERS:
            log.record(f"event {count % EVENTS}", f"192.0.2.{count % 251}")
            count += 1
        time.sleep(0.005)
    log.close()
    results.put((count, len(writes), time.process_time()))


def several(url: str) -> tuple[str, ...]:
    """Return the row of four workers on one log."""
    context = multiprocessing.get_context("spawn")
    results, begun, seconds = context.Queue(), time.time(), 2.0 if timing.most_rounds == 1 else SECONDS
    workers = [context.Process(target=work, args=(url, seconds, results)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    found = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    total = sum(TrafficLog(url).events(begun, time.time()).values())
    recorded, writes, cpu = (sum(column) for column in zip(*found, strict=True))
    return url.partition(":")[0], f"{recorded:,}", f"{recorded - total:,}", f"{writes}", f"{cpu / recorded * 1e6:.1f}"


@contextmanager
def full_log(now: int, events: int, clients: int, retention: str) -> Iterator[TrafficLog]:
    """Yield a log of a year, in which each bucket has each event and each client of it."""
    with tempfile.TemporaryDirectory() as folder:
        log = TrafficLog(f"sqlite:///{Path(folder)}/log.db", retention, lambda: now * 1_000_000)
        for resolution in Retention(retention).resolutions:
            step, kept = resolution
            progress(f"traffic: a year of {events:,} events by {step} s")
            for start in range((now - min(kept, 365 * DAY)) // step * step, now, step * 100):
                starts = [start + i * step for i in range(100) if start + i * step <= now]
                log._store.write({(resolution, each): _bucket(events, clients) for each in starts}, "", now)
        yield log


def _bucket(events: int, clients: int) -> Events:
    of_clients = {f"192.0.2.{i}": 10 for i in range(clients)}
    return {f"event {i}": EventCounts(10 * clients + i, dict(of_clients)) for i in range(events)}


def query_times(log: TrafficLog, now: int, seconds: int) -> tuple[str, ...]:
    """Return the milliseconds of the queries of a page for a time range."""
    start = now - seconds
    calls: list[Callable[[], object]] = [
        lambda: log.curve("event 7", start, now),
        lambda: log.total("event 7", start, now, by="192.0.2.7"),
        lambda: log.top("event 7", start, now),
        lambda: log.events(start, now),
        lambda: log.curves(list(log.events(start, now))[:DRAWN], start, now),
    ]
    return tuple(f"{_milliseconds(call):.1f}" for call in calls)


def query_rows(events: int, clients: int, retention: str) -> list[tuple[str, ...]]:
    """Return the rows of the queries of a log with these events, by the length of the time range."""
    now, spans = int(time.time()), {"hour": 3600, "day": DAY, "week": 7 * DAY, "month": 30 * DAY, "year": 364 * DAY}
    if timing.most_rounds == 1:  # a log of a year takes minutes to write
        events, clients = events // 50 or 1, clients // 10
    with full_log(now, events, clients, retention) as log:
        return [(name, *query_times(log, now, seconds)) for name, seconds in spans.items()]


def _milliseconds(call: Callable[[], object]) -> float:
    def run(calls: int) -> None:
        for _ in range(calls):
            call()

    return per_call({"": run}, 1)[""] / 1e6


def report() -> str:
    times = per_call(
        {"dictionary": increment, "event": record("url_shorten"), "client": record("url_shorten", "192.0.2.7")}, CALLS
    )
    rows = [(name, f"{each:.0f}", f"{each / times['dictionary']:.1f}") for name, each in times.items()]
    with tempfile.TemporaryDirectory() as folder, redis_nodes() as nodes:
        shared = [several(url) for url in (f"sqlite:///{folder}/log.db", f"redis://localhost:{nodes.port}/0")]
    columns = ("", "curve", "total", "top", "events", f"events and {DRAWN} curves")
    parts = (
        table("One record", rows, ("", "CPU, ns", "of the dictionary")),
        table("Four workers on one log", shared, ("", "records", "lost", "writes", "CPU of a record, µs")),
        table("Queries of a year of 20 events with 50 clients each", query_rows(EVENTS, CLIENTS, DEFAULT), columns),
        table("Queries of a year of 1,000 events", query_rows(1_000, 0, HOURS), columns),
    )
    return "\n".join(parts)
