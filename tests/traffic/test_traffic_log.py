"""The traffic log on every store: counts agree with a brute-force count, and stay exact after errors."""

import logging
import threading
from collections.abc import Callable
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from forked import become_child
from redis_handles import address
from servers import Server, wait_for
from tables import each, expect_error
from traffic_records import NOW, BruteForce, ranges, record_all, records

from ratelimit_mw import ConfigError, StoreError
from ratelimit_mw import clock as machine_clock
from ratelimit_mw.runtime import forksafe
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog, counts
from ratelimit_mw.traffic.retention import DEFAULT, Retention
from ratelimit_mw.traffic.store import CountStore

DAY = 86_400
SHORT = "1m:1h,5m:1d,1h:7d"
FAR = 10_000 * DAY


@pytest.mark.slow
def test_counts_agree_with_a_brute_force_count(log: TrafficLog) -> None:
    """For 200 random ranges of each length, at every resolution: curves, totals, events, clients and their number."""
    found, kept = records(4_000, 9 * 365 * DAY), Retention(DEFAULT)
    for part in (found[:1_000], found[1_000:]):
        record_all(log, part)
        log.flush()
    every = {event: BruteForce(found, event) for event in {each.event for each in found}}
    brute, of_client, steps = BruteForce(found, "login é"), BruteForce(found, "login é", "192.0.2.2"), set()
    for i, (start, end) in enumerate(ranges(200, 9 * 365 * DAY)):
        points = (2, 50, 300, 5_000)[i % 4]
        curve = log.curve("login é", start, end, points)
        edges = range(curve.start, curve.end + 1, curve.step)
        assert len(curve.counts) <= points
        assert curve.start <= start <= end <= curve.end
        assert curve.counts == [brute.total(*edge) for edge in pairwise(edges)]
        steps.add(curve.step)
        runs = kept.runs(int(start), ceil(end), NOW)
        assert log.total("login é", start, end) == brute.total(runs[0].start, runs[-1].stop)
        totals = {event: each.total(runs[0].start, runs[-1].stop) for event, each in every.items()}
        assert log.events(start, end) == {event: total for event, total in totals.items() if total}
        runs = kept.of_clients.runs(int(start), ceil(end), NOW)
        whole = runs[0].start, runs[-1].stop
        assert log.total("login é", start, end, by="192.0.2.2") == of_client.total(*whole)
        clients = brute.clients(*whole)
        assert log.top("login é", start, end) == clients[:10]
        assert log.distinct("login é", start, end) == len(clients)
    assert {60, 300, 3600, DAY, 7 * DAY} <= steps


def test_the_curves_of_several_events_have_the_same_steps(log: TrafficLog) -> None:
    """They agree with the curve of each event, also of one without a record, and of one with a long name.

    The curve of a client has its records alone.
    """
    events = ["a", "b" * 300, "'--", "absent"]
    for i, event in enumerate(events[:3], start=1):
        log.record(event, n=i)
        log.record(event, n=i, at=NOW - 7_200)
    curves = log.curves(events, NOW - DAY, NOW)
    assert curves == {event: log.curve(event, NOW - DAY, NOW) for event in events}
    assert [sum(curve.counts) for curve in curves.values()] == [2, 4, 6, 0]
    assert log.curves([], NOW - DAY, NOW) == {}
    log.record("a", "x", 2)
    assert sum(log.curve("a", NOW, NOW, by="x").counts) == 2


def test_late_records_belong_to_their_bucket(log: TrafficLog, clock: ManualClock) -> None:
    """A record for a past minute counts there, even after later minutes are written."""
    for back in (0, 120, 60, 120):
        log.record("a", at=NOW - back)
        log.flush()
    clock.advance(60)
    log.record("a", at=NOW - 120)
    assert log.curve("a", NOW - 120, NOW).counts == [3, 1, 1]
    log.record("late", at=NOW - 2 * DAY)  # too late for minutes, and not for hours
    assert log.total("late", NOW - 2 * DAY, NOW) == 1
    assert log.curve("late", NOW - 2 * DAY, NOW, 5_000).step == 300
    clock.set(NOW - 2 * DAY)
    assert log.curve("late", NOW - 2 * DAY, NOW - 2 * DAY) == ((NOW - 2 * DAY) // 60 * 60, 60, [0])


@pytest.mark.parametrize("kept", [3_600, DAY, 7 * DAY])
def test_a_bucket_is_kept_for_its_whole_retention(url: str, clock: ManualClock, kept: int) -> None:
    """At the boundary a range still has the finer resolution, and a second later the next one, or nothing."""
    log = TrafficLog(url, SHORT, clock)
    log.record("a")
    log.flush()
    clock.advance(kept)
    log.record("b")
    assert log.total("a", NOW, NOW) == 1
    clock.advance(2 * 3600)
    log.record("b")
    # A server of Redis drops buckets by its own clock.
    assert log.total("a", NOW, NOW) == (0 if kept == 7 * DAY and not url.startswith("redis") else 1)


Ask = Callable[[TrafficLog, Any], object]
WRONG: list[tuple[Ask, tuple[Any, ...], str]] = [
    # As in whisper: too old, or in the future. Milliseconds are far in the future.
    (
        lambda log, at: log.record("a", at=at),
        (NOW - FAR, NOW + 86_401, float("nan"), float("inf"), "now", True, 1e300),
        "at: expected a time from",
    ),
    (
        lambda log, n: log.record("a", n=n),
        (0, -1, 1.5, "1", True, None, 10**12 + 1),
        "n: expected a whole number from 1",
    ),
    (lambda log, event: log.record(event), ("", 5, None), "event: expected text"),
    (lambda log, by: log.record("a", by), (5, b"x"), "by: expected text"),
    # As in whisper, a range does not end before its start.
    (
        lambda log, end: log.total("a", NOW, end),
        (NOW - 1, "now", float("nan"), -1, NOW * 1000),
        "range ends|end: expected seconds since 1970",
    ),
    (lambda log, points: log.curve("a", NOW, NOW, points), (1, "2", True), "points: expected a whole number"),
    (lambda log, events: log.curves(events, NOW, NOW), ("a",), r"events: expected several events, such as \['a'\]"),
    # An empty list would look like a log without clients.
    (lambda log, k: log.top("a", 0, 60, k), (0, -1, "a", 1.5, True), "^k: expected a whole number of at least 1; got"),
    # An empty retention does not mean the default.
    (lambda _, retention: TrafficLog("memory://", retention), ("", 5), "STEP:TIME"),
    (lambda _, url: TrafficLog(url), ("memory://?retention=",), "STEP:TIME"),
]


@each(("ask", "value", "message"), [(ask, value, message) for ask, values, message in WRONG for value in values])
def test_a_value_that_makes_no_sense_is_an_error(ask: Ask, value: Any, message: str) -> None:
    """Nothing is counted, even for an event that has a count already."""
    log = TrafficLog("memory://", clock=ManualClock(NOW))
    for count in (0, 1):
        expect_error(message, ask, log, value)
        assert log.total("a", NOW, NOW) == count
        log.record("a")


@each("name", ["", "x" * 10_000, "\ud800", "a\0b", "{x}", ":n:", "other", "\N{GRINNING FACE}", "'--", "\u0436" * 1_000])
def test_any_text_of_an_event_and_of_a_client_is_one(log: TrafficLog, name: str) -> None:
    """No text breaks a store. A long one is listed in another form, which means the same as it does."""
    event, before = f"event {name}", dict(log.events(NOW, NOW))
    log.record(event, name, n=7)
    log.record(event, f"{name}x" * 200)
    (listed,) = log.events(NOW, NOW).keys() - before.keys()
    assert log.total(event, NOW, NOW) == log.total(listed, NOW, NOW) == 8
    assert log.total(event, NOW, NOW, by=name) == 7
    (client, number), _ = log.top(listed, NOW, NOW)
    assert (number, log.total(listed, NOW, NOW, by=client), log.distinct(event, NOW, NOW)) == (7, 7, 2)


def test_processes_add_to_the_same_buckets(url: str, clock: ManualClock) -> None:
    """Two logs of one URL count together, except in memory."""
    logs = [TrafficLog(url, clock=clock) for _ in range(2)]
    for own in logs:
        own.record("a", "x")
        own.flush()
    assert logs[0].total("a", NOW, NOW) == (1 if url == "memory://" else 2)
    for own in logs:
        own.close()


def test_another_retention_is_an_error(url: str, clock: ManualClock) -> None:
    """The message has the retention of the log, and the counts of the wrong one wait. A file is checked at once."""
    other = TrafficLog(url, clock=clock)
    log = TrafficLog(url, SHORT, clock)
    log.record("a")
    log.close()
    if url != "memory://":
        message = 'has the retention "1m:1h,5m:1d,1h:1w"; got .* or start a new log'
        other.record("a")
        with pytest.raises(ConfigError, match=message):
            other.total("a", NOW, NOW)
        become_child()  # nothing is left for the end of the process
        if url.startswith("sqlite"):
            with pytest.raises(ConfigError, match=message):
                TrafficLog(url, clock=clock)
        same = f"{url}{'&' if '?' in url else '?'}retention={SHORT}"
        assert TrafficLog(same, clock=clock).total("a", NOW, NOW) == 1
        another = same.replace(SHORT, "1h:5y")
        assert TrafficLog.open(another, clock).total("a", NOW, NOW) == 1


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
def test_one_of_two_logs_that_begin_at_once_is_an_error(
    url: str, clock: ManualClock, stores: list[CountStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finds no log before its write. The second write changes nothing, and its counts wait."""
    first, second = TrafficLog(url, SHORT, clock), TrafficLog(url, clock=clock)
    monkeypatch.setattr(stores[-1], "retention", lambda: None)
    first.record("a")
    first.flush()
    second.record("a")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r'has the retention "1m:1h,5m:1d,1h:1w"; got .* or start'):
            second.flush()
    assert first.total("a", NOW, NOW) == 1
    become_child()  # nothing is left for the end of the process


def test_a_batch_without_a_reply_is_written_again_with_its_token(
    redis_server: Server,
    clock: ManualClock,
    tmp_path: Path,
    stores: list[CountStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis counts it once, executed or not. Later counts are in the next batch. An outage may outlive all buckets."""
    log = TrafficLog(address(redis_server, f"?prefix={tmp_path.name}:"), clock=clock)
    write, tokens, fails = stores[0].write, list[str](), ["after", "before"]

    def write_or_fail(counts: counts.Batch, token: str, now: int) -> None:
        tokens.append(token)
        outcome = fails.pop(0) if fails else ""
        if outcome != "before":
            write(counts, token, now)
        if outcome:
            raise StoreError("no reply")

    monkeypatch.setattr(stores[0], "write", write_or_fail)
    log.record("a", "x")
    for _ in range(2):
        with pytest.raises(StoreError):
            log.flush()
        log.record("a", "x")
    log.flush()
    assert len({*tokens}) == 2
    assert log.total("a", NOW, NOW) == log.total("a", NOW, NOW, "x") == 3
    assert len(tokens) == 4
    assert len(set(tokens)) == 2
    fails.append("before")
    log.record("a", "x")
    with pytest.raises(StoreError):
        log.flush()
    clock.advance(11 * 365 * DAY)
    log.flush()


def test_the_thread_writes_and_logs_an_outage_once(
    url: str, clock: ManualClock, stores: list[CountStore], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The counts of an outage are written afterwards, and the thread ends when nothing is left."""
    monkeypatch.setattr("ratelimit_mw.traffic.log.INTERVAL", 0.01)
    log, others = TrafficLog(url, clock=clock), {*threading.enumerate()}
    written: list[counts.Batch] = []
    fails = [StoreError("down"), StoreError("down"), None]
    write = stores[0].write

    def write_later(counts: counts.Batch, token: str, now: int) -> None:
        if fails and (error := fails.pop(0)):
            raise error
        write(counts, token, now)
        written.append(counts)

    monkeypatch.setattr(stores[0], "write", write_later)
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        log.record("a")
        wait_for(lambda: written, "the thread")
    assert [record.getMessage() for record in caplog.records] == [
        "the traffic log is not written (down). Its counts wait in memory"
    ]
    assert log.total("a", NOW, NOW) == 1
    started = {each for each in threading.enumerate() if each.name == "ratelimit_mw heartbeat"} - others
    wait_for(lambda: not any(each.is_alive() for each in started), "the end of the thread")
    log.close()


def test_a_closed_log_opens_again(log: TrafficLog) -> None:
    """A forked child has no counts of its parent, only those since the fork."""
    log.record("a")
    log.close()
    log.record("a")
    assert log.total("a", NOW, NOW) == 2
    log.record("a")
    become_child()
    log.record("b")
    assert log.events(NOW, NOW) == {"a": 2, "b": 1}


def test_threads_lose_no_record(log: TrafficLog) -> None:
    """Several threads record while one of them writes."""

    def record() -> None:
        for i in range(300):
            log.record("a", f"c{i % 7}")
            log.record("b")
            if i % 100 == 0:
                log.flush()

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.events(NOW, NOW) == {"a": 1200, "b": 1200}
    assert sum(number for _, number in log.top("a", NOW, NOW)) == 1200


def test_a_record_counts_in_its_own_minute(log: TrafficLog, clock: ManualClock) -> None:
    """At the edge of a minute, when the clock steps back, and in a forked child."""
    clock.set(NOW // 60 * 60 + 59.999999)
    log.record("a")
    clock.advance(0.000001)
    log.record("a")
    assert log.curve("a", NOW, NOW + 60).counts == [1, 1]
    clock.set(NOW // 60 * 60)
    log.record("a")
    assert log.curve("a", NOW, NOW + 60).counts == [2, 1]
    log.record("a")
    become_child()
    log.record("a")
    assert log.total("a", NOW, NOW) == 3


def test_a_pause_of_the_machine_keeps_no_time_of_now_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stands still in a pause, so a log follows the wall clock. Later times are a mistake."""
    pause = 3_600
    now = machine_clock.machine.time_ns() // 10**9 + pause
    monkeypatch.setattr(machine_clock.machine, "time_ns", lambda: now * 10**9)
    log = TrafficLog("memory://")
    log.record("a", at=now)
    assert log.total("a", now, now) == 1
    with pytest.raises(ConfigError, match="expected a time from"):
        log.record("a", at=now + 86_401)


def test_a_child_of_a_server_without_hooks_has_no_counts_of_its_parent(
    log: TrafficLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a server is uWSGI. The first new event, or the next write, notices the fork."""
    for record_in_child in (True, False):
        log.record("a")
        monkeypatch.setattr(forksafe, "process", -1)
        if record_in_child:
            log.record("b")
        log.flush()
    assert log.events(NOW, NOW) == {"b": 1}
