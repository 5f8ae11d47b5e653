"""When workers look for changes: a busy worker before the interval ends, and an idle one before its next decision."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import become_child
from idle_workers import Later, load_instead
from override_stores import (
    ACME,
    API,
    Recording,
    hits_of_a_loop,
    hits_of_threads,
    limiter_of,
    limits,
    limits_of,
    set_elsewhere,
)
from servers import wait_for
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule, StoreError
from ratelimit_mw.limiter.followers import files

SECONDS = 3600.0
FILE = 'reload_interval = "1h"\n{}\n[[rules]]\nname = "api"\nkey = ["user"]\nlimits = "{}/minute"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ratelimit.toml"
    path.write_text(FILE.format("", 100))
    return path


each_kind = pytest.mark.parametrize("hits", [hits_of_threads, hits_of_a_loop])


@each_kind
def test_an_idle_worker_knows_an_override_before_it_decides(
    url: str, later: Later, hits: Callable[[Limiter], list[Any]]
) -> None:
    """All requests that arrive at once wait for it, whatever the store."""
    operator, worker = (limiter_of(store=url, reload_interval="1h") for _ in range(2))
    hits(worker)
    operator.clients.override("api", ACME, "7/minute")
    assert [limits_of(verdict) for verdict in hits(worker)] == [["100/minute"]] * 8
    later.passed = SECONDS
    assert [limits_of(verdict) for verdict in hits(worker)] == [["7/minute"]] * 8
    operator.close()
    worker.close()


@each_kind
def test_an_idle_worker_knows_a_changed_file_before_it_decides(
    file: Path, later: Later, hits: Callable[[Limiter], list[Any]]
) -> None:
    """It loses no request to a mistake in the file."""
    worker = Limiter.from_settings(str(file))
    file.write_text(FILE.format("", 7))
    assert [limits_of(verdict) for verdict in hits(worker)] == [["100/minute"]] * 8
    later.passed = SECONDS
    assert [limits_of(verdict) for verdict in hits(worker)] == [["7/minute"]] * 8
    for text in 'lists = { deny = { user = ["acme"] } }', "limits = 3":
        file.write_text(FILE.format(text, 7))
        later.passed += 2 * SECONDS
        assert [verdict.allowed for verdict in hits(worker)] == [False] * 8


@each_kind
def test_a_ban_applies_to_the_next_decision_of_each_worker(url: str, hits: Callable[[Limiter], list[Any]]) -> None:
    """The store decides it, in the round trip of the request."""
    rule = Rule(name="api", key=["user"], limits="100/minute", ban={"after": 10, "within": "10m", "for": "1h"})
    operator, worker = (limiter_of(rule, store=url, reload_interval="1h") for _ in range(2))
    assert [verdict.allowed for verdict in hits(worker)] == [True] * 8
    operator.clients.ban("api", ACME)
    assert [verdict.banned for verdict in hits(worker)] == [True] * 8
    operator.close()
    worker.close()


def test_a_busy_worker_looks_before_the_interval_ends_and_does_not_wait(later: Later, recording: Recording) -> None:
    """In the last quarter of the interval, one request begins a look, and no request waits for it."""
    worker = limiter_of(store=recording, reload_interval="1h")
    worker.hit(ACME)
    set_elsewhere(recording, "7/minute")
    may_end, read, reads = threading.Event(), recording.states.read_record, recording.reads
    recording.states.read_record = lambda name: read(name) if may_end.wait(60) else None  # type: ignore[method-assign]
    later.passed = 0.7 * SECONDS
    assert (limits(worker), recording.reads) == (["100/minute"], reads)
    later.passed = 0.8 * SECONDS
    assert [limits(worker) for _ in range(3)] == [["100/minute"]] * 3
    may_end.set()
    wait_for(lambda: limits(worker) == ["7/minute"], "the look in the background")
    assert recording.reads == reads + 1


def test_a_busy_event_loop_looks_in_a_task_each_time(later: Later, recording: Recording) -> None:
    worker = limiter_of(store=recording, reload_interval="1h")

    async def scenario() -> None:
        await worker.ahit(ACME)
        for intervals, changed in ((0.8, "7/minute"), (1.6, "8/minute")):
            set_elsewhere(recording, changed)
            later.passed = intervals * SECONDS
            while limits_of(await worker.ahit(ACME)) != [changed]:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_an_idle_worker_does_not_wait_for_a_store_that_is_known_to_be_away(later: Later, recording: Recording) -> None:
    worker = limiter_of(store=recording, reload_interval="1h")
    worker.hit(ACME)
    recording.down = True
    while not worker.remote.breaker.open:  # type: ignore[union-attr]
        worker.hit(ACME)
    reads, may_end = list[str](), threading.Event()

    def read(name: str) -> None:
        reads.append(name)
        assert may_end.wait(60)
        raise StoreError("it does not answer")

    recording.read_record = read  # type: ignore[assignment, method-assign]
    later.passed = SECONDS
    assert worker.hit(ACME).allowed
    wait_for(lambda: reads, "a read in the background")
    worker.hit(ACME)
    assert len(reads) == 1
    may_end.set()
    worker.close()


@each_kind
def test_a_file_that_takes_long_holds_idle_workers_up_once_and_locks_nothing(
    file: Path, later: Later, hits: Callable[[Limiter], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system that hangs. Later requests, new limiters, rules and children do not wait for it."""
    monkeypatch.setattr(files, "_MAX_WAIT", 0.01)
    worker, may_end = Limiter.from_settings(str(file)), threading.Event()
    load_instead(worker, lambda load: may_end.wait(60) and load())
    file.write_text(FILE.format("", 7))
    later.passed = SECONDS
    assert [limits_of(verdict) for verdict in hits(worker)] == [["100/minute"]] * 8
    monkeypatch.setattr(files, "_MAX_WAIT", 60.0)
    for intervals in (1, 2, 3):
        later.passed = intervals * SECONDS
        assert [limits_of(verdict) for verdict in hits(worker)] == [["100/minute"]] * 8
    worker.reloads.adopt([])
    assert limits(Limiter.from_settings(str(file))) == ["7/minute"]
    worker.clients.override("api", ACME, "8/minute")
    assert limits(worker) == ["8/minute"]
    worker.clients.clear_overrides()
    become_child()
    assert not worker._files._reading.locked()
    may_end.set()
    wait_for(lambda: limits(worker) == ["7/minute"], "the end of the read")


def test_a_machine_without_threads_left_keeps_the_earlier_rules(
    file: Path, later: Later, no_threads: pytest.MonkeyPatch
) -> None:
    worker = Limiter.from_settings(str(file))
    file.write_text(FILE.format("", 7))
    later.passed = SECONDS
    assert limits(worker) == ["100/minute"]
    assert asyncio.run(worker.apeek(ACME)).allowed
    no_threads.undo()


def test_a_blocking_call_on_an_event_loop_does_not_wait(file: Path, later: Later) -> None:
    """The memory store has no need of the async methods. A thread reads the file, as in a worker that is busy."""
    worker, may_end = Limiter.from_settings(str(file)), threading.Event()
    load_instead(worker, lambda load: may_end.wait(60) and load())

    async def scenario() -> None:
        assert limits(worker) == ["100/minute"]
        file.write_text(FILE.format("", 7))
        later.passed = SECONDS
        assert limits(worker) == ["100/minute"]
        may_end.set()
        wait_for(lambda: limits(worker) == ["7/minute"], "the thread")

    asyncio.run(scenario())


def test_a_look_at_an_unchanged_file_starts_no_thread(
    file: Path, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request compares the identity of the file only, once per interval."""
    worker = Limiter.from_settings(str(file))
    started, looks, identity_of = list[Any](), list[Path](), files.identity_of
    monkeypatch.setattr(files, "run_once", lambda *work: started.append(work))
    monkeypatch.setattr(files, "identity_of", lambda path: looks.append(path) or identity_of(path))
    for intervals in (0.8, 2):
        later.passed = intervals * SECONDS
        assert limits(worker) == limits(worker) == ["100/minute"]
    assert (started, looks) == ([], [file, file])


def test_what_never_changes_is_not_watched(recording: Recording) -> None:
    """Rules of your code, a store without records, and limits that are off."""
    assert Limiter([API]).reloads.watch is Limiter([API], SharedStore()).reloads.watch is None
    limiter_of(store=recording, enabled=False).hit(ACME)
    assert recording.starts == 0
