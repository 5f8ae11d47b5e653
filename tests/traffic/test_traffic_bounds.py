"""The bounds of a log, on every store: totals are exact, and a list of clients says from which count it is complete."""

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from traffic_records import NOW, limit_to

from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog
from ratelimit_mw.traffic.counts import Batch
from ratelimit_mw.traffic.sketches import STANDARD_ERROR
from ratelimit_mw.traffic.store import CountStore

FAR = 1_000_000


def workers(url: str, clock: ManualClock, count: int) -> list[TrafficLog]:
    """Return the logs of several workers. A log in memory belongs to one."""
    return [TrafficLog(url, "1m:1h,1h:7d", clock) for _ in range(1 if url == "memory://" else count)]


def assert_clients_are_bounded(log: TrafficLog, event: str, exact: Counter[str]) -> int:
    """Return the count from which on the list of the clients of today is complete."""
    found = log.top(event, NOW, NOW, FAR)
    totals = dict(found)
    for client, number in exact.items():
        assert number - found.complete_from < totals.get(client, 0) <= number, client
        if client not in totals:
            assert number <= log.total(event, NOW, NOW, client) < found.complete_from
    assert totals.keys() <= exact.keys()
    assert all(later.total <= each.total for each, later in pairwise(found))
    assert abs(log.distinct(event, NOW, NOW) - len(exact)) <= 4 * STANDARD_ERROR * len(exact)
    return found.complete_from


@pytest.mark.parametrize("waiting", [20_000, 25])
def test_random_counts_stay_within_the_bounds(
    url: str, clock: ManualClock, few: int, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers add random counts to the same bucket, with room for few clients in the log, or in a process."""
    monkeypatch.setattr("ratelimit_mw.traffic.log._MAX_NEW_COUNTS", waiting)
    chance, exact = random.Random(waiting), {event: Counter[str]() for event in "ab"}
    logs = workers(url, clock, 3)
    for _ in range(8):
        log = chance.choice(logs)
        for _ in range(40):
            event, client = chance.choice("aab"), f"c{int(chance.paretovariate(0.5)) % 40}"
            number = chance.choice((1, 1, 7))
            exact[event][client] += number
            log.record(event, client, number)
        log.record("c", f"c{chance.randrange(6)}")
        log.flush()
    for event in "ab":
        assert log.total(event, NOW, NOW) == exact[event].total()
        assert assert_clients_are_bounded(log, event, exact[event]) > 1
    assert log.top("c", NOW, NOW).complete_from == 1


@pytest.mark.slow
def test_a_flood_of_clients_keeps_the_log_small(url: str, clock: ManualClock, tmp_path: Path) -> None:
    """A client with many requests is exact, even one that comes late. So is the total."""
    log = TrafficLog(url, "1h:7d", clock)
    for i in range(60_000):
        log.record("a", f"client {i * 7919}")
        if i < 1_500:
            log.record("a", "early")
        if i % 25_000 == 24_999:
            log.flush()
    for _ in range(5_000):
        log.record("a", "late")
    total = 60_000 + 1_500 + 5_000
    found = log.top("a", NOW, NOW, FAR)
    assert found[:2] == [("late", 5_000), ("early", 1_500)]
    assert 1 < found.complete_from < 50
    assert len(found) <= 2_000
    assert (log.total("a", NOW, NOW), log.total("a", NOW, NOW, by="late")) == (total, 5_000)
    assert log.total("a", NOW, NOW, by="client 7919") < found.complete_from
    assert abs(log.distinct("a", NOW, NOW) - 60_002) < 4 * STANDARD_ERROR * 60_002
    for path in tmp_path.iterdir():
        assert path.stat().st_size < 500_000
    log.close()


def test_events_beyond_the_bound_count_as_other(url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first events of a bucket keep their own counts, whoever writes. No count is lost."""
    limit_to(monkeypatch, events=3)
    logs = workers(url, clock, 2)
    for i in range(6):
        logs[i % len(logs)].record(f"e{i}", "x", n=10**i)
        logs[i % len(logs)].flush()
    expected = {"other": 111_000, "e2": 100, "e1": 10, "e0": 1}
    assert logs[0].events(NOW, NOW) == expected
    logs[0].record("e0", "x")
    logs[0].record("other", "y", n=1_000)
    logs[0].record("e7", "z")
    assert logs[0].events(NOW, NOW) == {**expected, "other": 112_001, "e0": 2}
    assert logs[0].top("other", NOW, NOW) == [("x", 111_000), ("y", 1_000), ("z", 1)]
    assert logs[0].total("e5", NOW, NOW) == 0


def test_the_counts_of_a_long_outage_are_bounded(
    url: str, clock: ManualClock, stores: list[CountStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients go first, then new events count as others. Totals stay exact."""
    monkeypatch.setattr("ratelimit_mw.traffic.log._MAX_NEW_COUNTS", 10)
    monkeypatch.setattr("ratelimit_mw.traffic.log._MAX_COUNTS", 3_000)
    log, sizes = TrafficLog(url, "1m:1h,1h:7d", clock), list[int]()
    write = stores[0].write

    def write_and_note(batch: Batch, token: str, now: int) -> str | None:
        clients = sum(len(counts.clients) for events in batch.values() for counts in events.values())
        sizes.append(clients + sum(map(len, batch.values())))
        return write(batch, token, now)

    monkeypatch.setattr(stores[0], "write", write_and_note)
    for i in range(4_000):
        log.record(f"e{i % 5}", f"c{i}", at=NOW - 60 * (i % 7))
        log.record(f"event {i // 20}")
    events = log.events(NOW - 600, NOW)
    assert sizes[0] <= 3_000 + 200
    assert sum(events.values()) == 8_000
    assert events["other"] > 0
    assert sum(events[f"e{i}"] for i in range(5)) <= 4_000
    log.close()
