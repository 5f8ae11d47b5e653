"""Every figure of a log with too many clients and events is within its error, on every store."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from recorded_requests import recorded_requests
from traffic_records import NOW, BruteForce, Record, limit_to, ranges, record_all

from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import ClientCount, TrafficLog, pending
from ratelimit_mw.traffic.batch import EventCounts, without_room
from ratelimit_mw.traffic.estimate import Estimate, error_of
from ratelimit_mw.traffic.retention import Retention

pytestmark = pytest.mark.usefixtures("salt")
HOUR, DAY = 3_600, 86_400


def workers(url: str, clock: ManualClock, count: int, retention: str = "1m:1h,5m:1d,1h:7d") -> list[TrafficLog]:
    """Return the logs of several workers. A log in memory belongs to one."""
    return [TrafficLog(url, retention, clock) for _ in range(1 if url == "memory://" else count)]


def assert_clients_are_within_their_error(
    log: TrafficLog, event: str, start: float, end: float, exact: Counter[str]
) -> int:
    """Return the error of the clients of an event."""
    found = log.top(event, start, end, 1_000_000)
    counts = {each.client: each.total for each in found}
    error = log.total(event, start, end, by="a client that was never there").error
    assert {each.error for each in found} <= {error}
    for client, number in exact.items():
        assert counts.get(client, 0) <= number <= counts.get(client, 0) + error, client
    assert counts.keys() <= exact.keys()
    distinct = log.distinct(event, start, end)
    assert abs(distinct - len(exact)) <= distinct.error
    return error


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("waiting", [50_000, 25])
def test_random_counts_are_within_their_error(
    url: str, clock: ManualClock, few: int, seed: int, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers add random counts to the same buckets. Any range has the true counts, within the errors."""
    monkeypatch.setattr(pending, "MOST", waiting)
    chance, found = random.Random(seed), list[Record]()
    logs = workers(url, clock, 3)
    for _ in range(8):
        part = [
            Record(
                f"e{int(chance.paretovariate(0.9)) % 9}",
                f"c{int(chance.paretovariate(0.5)) % 40}",
                chance.choice((1, 1, 7)),
                NOW - chance.choice((0, 30, 60, 200, 4_000)),
            )
            for _ in range(40)
        ]
        found += part
        log = chance.choice(logs)
        record_all(log, part)
        log.flush()
    errors, of_events = set[bool](), set[bool]()
    for start, end in ranges(5, DAY, seed):
        runs = log._retention.runs(int(start), -int(-end // 1), NOW)
        whole = runs[0].start, runs[-1].end
        events = log.events(start, end)
        assert sum(events.values()) == sum(each.number for each in found if whole[0] <= each.at < whole[1])
        for event in (f"e{i}" for i in range(10)):
            brute = BruteForce(found, event)
            number = events.get(event, events.get("__other__", 0) and Estimate(0, events["__other__"]))
            assert number <= brute.total(*whole) <= number + error_of(number)
            of_events.add(bool(error_of(number)))
            total, curve = log.total(event, start, end), log.curve(event, start, end)
            assert abs(total - brute.total(*whole)) <= total.error
            for i, number in enumerate(curve.counts):
                at = curve.start + i * curve.step
                assert abs(number - brute.total(at, at + curve.step)) <= curve.error
            runs = log._of_clients.runs(int(start), -int(-end // 1), NOW)
            clients = Counter(dict(brute.clients(runs[0].start, runs[-1].end)))
            errors.add(bool(assert_clients_are_within_their_error(log, event, start, end, clients)))
            for client in ("c1", "c2", "c30"):
                of_client = log.total(event, start, end, client)
                assert of_client <= clients[client] <= of_client + of_client.error
    assert errors == of_events == {True, False}


def test_the_error_of_an_event_is_the_count_that_may_be_its_own(log: TrafficLog, few: int) -> None:
    """It is that of other events, in buckets without a series of the event."""
    for back, names in ((0, "abcde"), (3_600, "bcdfg"), (7_200, "a")):
        for i, name in enumerate(names):
            log.record(name, n=10**i, at=NOW - back)
    events = log.events(NOW - 7_200, NOW)
    assert events == {"g": 10_000, "e": 10_000, "d": 1_100, "f": 1_000, "c": 100, "__other__": 22, "a": 1}
    assert {event: total.error for event, total in events.items() if total.error} == {
        **dict.fromkeys("cefg", 11),
        "a": 22,
    }
    assert log.events(NOW - 7_200, NOW - 7_000)["a"].error == 0


def test_counts_below_the_limits_are_exact(log: TrafficLog) -> None:
    """As many events and clients as there is room for."""
    for i in range(1_000):
        log.record(f"e{i}", n=i + 1)
    log.flush()
    for i in range(2_000):
        log.record("e1", f"c{i}", i + 1)
    totals = [log.total(f"e{i}", NOW, NOW) for i in (0, 7, 999)]
    assert [(total, total.error) for total in totals] == [(1, 0), (8, 0), (1_000, 0)]
    (first,) = log.top("e1", NOW, NOW, 1)
    assert (first, first.error) == (("c1999", 2_000), 0)
    distinct = log.distinct("e1", NOW, NOW)
    assert (distinct, distinct.error) == (2_000, 0)
    assert log.curve("e7", NOW, NOW).error == 0


def test_a_client_that_comes_late_is_found(log: TrafficLog) -> None:
    """Thousands of clients have counted in the bucket before. The event is exact, and the error is small."""
    for i in range(6):
        for j in range(1_500):
            log.record("a", f"client {i} {j}")
        log.flush()
    for _ in range(3):
        log.record("a", "late", 40)
        log.flush()
    (late,) = log.top("a", NOW, NOW, 1)
    assert late.client == "late"
    assert late.total <= 120 <= late.total + late.error
    assert 0 < late.error <= 9_120 / 1_001
    assert log.total("a", NOW, NOW) == 9_120
    assert log.total("a", NOW, NOW).error == 0
    distinct = log.distinct("a", NOW, NOW)
    assert 0 < abs(distinct - 9_001) <= distinct.error < 9_001 / 10


def test_a_client_after_a_flood_in_one_process_is_found(log: TrafficLog) -> None:
    """The process drops the small clients that wait. The count of the late client is nearly exact."""
    for i in range(60_000):
        log.record("a", f"client {i * 7919}")
    for _ in range(10_000):
        log.record("a", "late")
    (late,) = log.top("a", NOW, NOW, 1)
    assert late.client == "late"
    assert late.total <= 10_000 <= late.total + late.error
    assert 0 < late.error <= 70_000 / 1_001
    total, distinct = log.total("a", NOW, NOW), log.distinct("a", NOW, NOW)
    assert (total, total.error) == (70_000, 0)
    assert abs(distinct - 60_001) <= distinct.error < 60_001


def test_clients_without_room_in_a_process_are_part_of_the_error(
    log: TrafficLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a process has only events, further clients have no count. Each of them could be any client."""
    monkeypatch.setattr(pending, "MOST", 4)
    for i in range(3):
        log.record(f"e{i}")
    log.record("a", "c0", 10)
    for i in (1, 2):
        log.record("a", f"c{i}", 2)
    log.record("a", "c0", 10)
    (client,) = log.top("a", NOW, NOW)
    assert (client, client.error) == (("c0", 20), 4)
    distinct, of_client = log.distinct("a", NOW, NOW), log.total("a", NOW, NOW, by="c2")
    assert distinct == 1
    assert 2 <= distinct.error <= 3
    assert (of_client, of_client.error) == (0, 4)
    total = log.total("a", NOW, NOW)
    assert (total, total.error) == (24, 0)


def test_a_batch_keeps_the_clients_with_high_counts(log: TrafficLog, few: int) -> None:
    """All clients lose the count of the first one that is too many."""
    for i in range(1, 8):
        log.record("a", f"c{i}", i)
    log.flush()
    assert log.top("a", NOW, NOW) == [("c7", 3), ("c6", 2), ("c5", 1)]
    assert {each.error for each in log.top("a", NOW, NOW)} == {4}
    log.record("a", "c1", 9)
    assert log.top("a", NOW, NOW, 1) == [ClientCount("c1", log.total("a", NOW, NOW, by="c1"))] == [("c1", 9)]


def test_events_without_room_have_a_count_with_an_error(log: TrafficLog, few: int) -> None:
    """The events with the highest counts get the room, and keep it. Clients of the others are unknown."""
    for i in range(1, 7):
        log.record(f"e{i}", "client", 1_000 * i)
    log.flush()
    log.record("e7", "client", 10**6)
    assert log.events(NOW, NOW) == {"__other__": 1_006_000, "e6": 6_000, "e5": 5_000, "e4": 4_000}
    totals = [log.total(f"e{i}", NOW, NOW) for i in range(9)]
    assert totals == [0, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 10**6, 0]
    assert [total.error for total in totals] == [0, 1_000, 2_000, 2_671, 0, 0, 0, 2_671, 0]
    curve = log.curve("e3", NOW - 60, NOW)
    assert (curve.counts, curve.error) == ([0, 3_000], 2_671)
    of_client = log.total("e3", NOW, NOW, by="client")
    assert (of_client, of_client.error) == (0, 3_000)
    assert (log.distinct("e3", NOW, NOW), log.distinct("e3", NOW, NOW).error) == (0, 3_000)
    assert log.top("__other__", NOW, NOW) == [("client", 1_006_000)]


@pytest.mark.parametrize("room", [100, 1_000])
def test_the_figures_of_a_real_log_are_within_their_errors(
    url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """1,753 clients and 1,368 paths in three and a half days, which four workers record."""
    limit_to(room, monkeypatch)
    rows = recorded_requests()
    begun = NOW // DAY * DAY - 4 * DAY
    logs = workers(url, clock, 4, "1h:7d,1d:90d")
    paths, clients = Counter[str](), Counter[str]()
    for i, (second, client, path) in enumerate(rows):
        log = logs[i % len(logs)]
        log.record("request", f"192.0.2.{client}", at=begun + second)
        log.record(f"path:{path}", at=begun + second)
        clients[f"192.0.2.{client}"] += 1
        paths[f"path:{path}"] += 1
        if i % 2_000 == 1_999:
            log.flush()
    for each in logs:
        each.flush()
    assert log.total("request", begun, NOW) == len(rows)
    error = assert_clients_are_within_their_error(log, "request", begun, NOW, clients)
    assert (error > 0) == (room == 100)
    assert error <= len(rows) / (room + 1)
    totals = {path: log.total(path, begun, NOW) for path in sorted(paths)[::7]}
    assert all(paths[path] <= total for path, total in totals.items())
    assert sum(total - paths[path] > total.error for path, total in totals.items()) <= len(totals) * 0.0067
    assert sum(log.events(begun, NOW).values()) == 2 * len(rows)


def test_a_flood_of_clients_and_events_keeps_the_log_small(url: str, clock: ManualClock, tmp_path: Path) -> None:
    """200,000 clients and 5,000 events, each once, in one bucket."""
    (log,) = workers(url, clock, 1, "1h:7d")
    for i in range(200_000):
        log.record("a", f"client {i * 7919}")
        if i % 40 == 0:
            log.record(f"event {i}")
        if i % 40_000 == 39_999:
            log.flush()
    assert log.total("a", NOW, NOW) == 200_000
    found = log._store.clients([Retention("1h:7d").runs(NOW, NOW, NOW)[0]], "a")
    assert len(found.clients) <= 2_000
    assert 0 < found.error <= 200_000 / 1_001
    distinct = log.distinct("a", NOW, NOW)
    assert abs(distinct - 200_000) <= distinct.error
    assert len(log.events(NOW, NOW)) == 1_001
    for path in tmp_path.iterdir():
        assert path.stat().st_size < 1_000_000
    log.close()


@pytest.fixture(scope="module")
def skewed() -> list[Counter[str]]:
    """20 batches of five million records together, whose 20,000 clients have a Zipf distribution."""
    chance, names = np.random.default_rng(7), 20_000
    weights = chance.permutation(1 / np.arange(1, names + 1))
    batches = chance.multinomial(250_000, weights / weights.sum(), 20).tolist()
    return [Counter({f"192.0.2.{i}": count for i, count in enumerate(batch) if count}) for batch in batches]


def added(batches: list[Counter[str]]) -> Counter[str]:
    """Return the sum, as ``sum`` does with a copy for each batch."""
    total = Counter[str]()
    for batch in batches:
        total.update(batch)
    return total


@pytest.mark.slow
def test_five_million_skewed_records_are_within_their_errors(
    url: str, clock: ManualClock, skewed: list[Counter[str]]
) -> None:
    """Four workers write five batches each. The 100 clients with the highest counts are found, in their order."""
    logs = workers(url, clock, 4, "1h:7d")
    bucket = (HOUR, NOW // HOUR * HOUR)
    for i, counts in enumerate(skewed):
        batch = {bucket: {"a": EventCounts(counts.total(), dict(counts))}}
        logs[i % len(logs)]._store.write(batch, f"token {i}", NOW)
    exact = added(skewed)
    assert logs[0].total("a", NOW, NOW) == 5_000_000
    error = assert_clients_are_within_their_error(logs[0], "a", NOW, NOW, exact)
    assert 0 < error <= 5_000_000 / 1_001
    top = [each.client for each in logs[0].top("a", NOW, NOW, 100)]
    found = Counter({each.client: each.total for each in logs[0].top("a", NOW, NOW, 1_000)})
    assert [client for client, _ in found.most_common(10)] == [client for client, _ in exact.most_common(10)]
    assert len({client for client, _ in exact.most_common(100)} - {*top}) <= 5
    for each in logs:
        each.close()


@pytest.mark.slow
def test_five_million_skewed_events_are_within_their_errors(
    url: str, clock: ManualClock, skewed: list[Counter[str]]
) -> None:
    """The names without room have a count in the count-min sketch."""
    (log,) = workers(url, clock, 1, "1h:7d")
    bucket = (HOUR, NOW // HOUR * HOUR)
    for i, counts in enumerate(skewed[:4]):
        events = {name: EventCounts(number) for name, number in counts.items()}
        log._store.write({bucket: events}, f"token {i}", NOW)
    exact, beyond = added(skewed[:4]), 0
    sample = random.Random(1).sample(sorted(exact), 400) + [name for name, _ in exact.most_common(100)]
    for name in sample:
        found = log.total(name, NOW, NOW)
        assert found >= exact[name]
        beyond += found - exact[name] > found.error
    assert beyond <= len(sample) * 0.0067
    log.close()


def test_room_is_for_the_events_with_the_highest_counts(few: int) -> None:
    assert without_room({"a": 1, "b": 2, "c": 3, "__other__": 9}, {"d"}) == {"a"}
