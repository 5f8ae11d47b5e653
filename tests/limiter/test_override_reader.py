"""How workers read the overrides that other processes have changed: when, over which calls, and what they log."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from forked import become_child
from idle_workers import Later
from override_stores import (
    ACME,
    Recording,
    hits_of_a_loop,
    hits_of_threads,
    learns,
    limiter_of,
    limits,
    limits_of,
    set_elsewhere,
)
from servers import HOST, Server, wait_for
from tables import each

from ratelimit_mw import Limiter, StoreError
from ratelimit_mw.errors import StateError
from ratelimit_mw.stores import MemoryStore


@each("damage", [lambda data: data[:-1], lambda data: data[data.index(b"[") :]])
def test_a_damaged_record_keeps_the_last_overrides_and_is_logged_once(
    damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    store = Recording()
    limiter = limiter_of(store=store)
    limiter.clients.override("api", ACME, "7/minute")
    data = store.states.read_record("overrides")
    assert data is not None
    store.states.write_record("overrides", damage(data), data)
    wait_for(lambda: limits(limiter) and store.messages(caplog), "a read")
    reads = store.reads
    wait_for(lambda: limits(limiter) and store.reads > reads + 3, "more reads")
    assert limits(limiter) == ["7/minute"]
    (message,) = store.messages(caplog)
    assert message == (
        f"store {store.name}: cannot read the overrides (the record of overrides is damaged, or of another version)."
        " The last known overrides stay active. To remove all overrides, run `ratelimit-mw override clear`"
    )
    with pytest.raises(StoreError, match="is damaged"):
        limiter.clients.override("api", ACME, "5/minute")


def test_a_store_that_is_away_keeps_the_last_overrides(caplog: pytest.LogCaptureFixture, recording: Recording) -> None:
    limiter = limiter_of(store=recording)
    limiter.clients.override("api", ACME, "7/minute")
    recording.down = True
    wait_for(lambda: limiter.match(ACME) and recording.messages(caplog), "a failed read")
    reads = recording.reads
    wait_for(lambda: limiter.match(ACME) and recording.reads > reads + 2, "more reads")
    assert len(recording.messages(caplog)) == 1
    assert "cannot read the overrides (it does not answer)" in recording.messages(caplog)[0]
    recording.down = False
    assert limits(limiter) == ["7/minute"]
    wait_for(lambda: limiter.match(ACME) and len(recording.messages(caplog)) == 2, "a read")
    assert recording.messages(caplog)[1].endswith("the overrides can be read again")
    recording.states = MemoryStore()
    learns(limiter, ["100/minute"])
    assert "has lost the overrides; the limits of the rules apply" in recording.messages(caplog)


def test_a_store_that_fails_for_decisions_too_is_logged_by_the_breaker_only(caplog: pytest.LogCaptureFixture) -> None:
    recording = Recording()
    limiter = limiter_of(store=recording)
    recording.down = True
    for _ in range(3):
        limiter.hit(ACME)
    reads = recording.reads
    wait_for(lambda: limiter.match(ACME) and recording.reads > reads + 3, "some reads")
    assert [message for message in recording.messages(caplog) if "overrides" in message] == []


def test_a_login_without_the_right_to_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Decisions work, so nothing else shows that this worker never learns of an override."""
    recording = Recording()
    limiter = limiter_of(store=recording)
    recording.may_read = False
    wait_for(lambda: limiter.hit(ACME) and recording.reads > 9, "some reads")
    (message,) = recording.messages(caplog)
    assert message == (
        f"store {recording.name}: cannot read the overrides (NOPERM). The last known overrides stay active."
        " Check that the store is reachable, and that its login may use all keys with its prefix"
    )
    recording.may_read = True
    wait_for(lambda: limiter.hit(ACME) and len(recording.messages(caplog)) == 2, "a read")


def test_a_defect_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged state is an error that names the repair: Redis finds a key of another type in its place."""
    recording = Recording()
    limiter = limiter_of(store=recording)
    monkeypatch.setattr(recording.states, "read_record", Mock(side_effect=StateError("a damaged state", ["overrides"])))
    with pytest.raises(StoreError, match=r"a damaged state\..*`override clear`"):
        limiter.clients.overrides()
    monkeypatch.setattr(recording.states, "read_record", lambda _: 1 // 0)
    wait_for(lambda: limiter.match(ACME) and recording.messages(caplog), "a failed read")
    assert "ZeroDivisionError" in caplog.text


def test_no_change_waits_for_the_threads_of_the_application(recording: Recording) -> None:
    """A change has a thread of its own, because jobs may occupy all of ``asyncio.to_thread``, and requests wait."""
    limiter, may_end = limiter_of(store=recording), threading.Event()

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        job = asyncio.create_task(asyncio.to_thread(may_end.wait))
        await asyncio.sleep(0)
        try:
            await asyncio.wait_for(limiter.clients.aoverride("api", ACME, "7/minute"), 60)
        finally:
            may_end.set()
            await job

    asyncio.run(scenario())
    assert limits(limiter) == ["7/minute"]


def test_closing_waits_for_a_thread_that_reads(way: Any, later: Later) -> None:
    """The thread has taken a connection, which no later call would close."""
    store, is_reading, may_end = Recording(), threading.Event(), threading.Event()
    ended: list[str] = []

    def read(_: str) -> None:
        is_reading.set()
        assert may_end.wait(60)
        ended.append("the read")

    limiter = limiter_of(store=store, reload_interval="1h")
    limiter.match(ACME)
    store.states.read_record = read  # type: ignore[assignment, method-assign]
    store.close = lambda: ended.append("the store")  # type: ignore[method-assign]
    later.passed = 0.8 * 3600
    limiter.match(ACME)
    wait_for(is_reading.is_set, "a read in a thread")
    threading.Timer(0.05, may_end.set).start()
    way(limiter).close()
    assert [ended[0], ended[-1]] == ["the read", "the store"]


def hit_and_block_a_loop(limiter: Limiter) -> list[Any]:
    async def hit() -> list[Any]:
        return [limiter.hit(ACME) for _ in range(8)]

    return asyncio.run(hit())


@pytest.mark.parametrize("interval", ["1ms", 0])
@pytest.mark.parametrize("requests", [hits_of_threads, hits_of_a_loop, hit_and_block_a_loop])
def test_the_first_parallel_requests_of_a_worker_know_the_overrides(
    requests: Callable[[Limiter], list[Any]], interval: Any
) -> None:
    """A forked worker does, too. Its parent knows older ones."""
    recording = Recording()
    worker = limiter_of(store=recording, reload_interval=interval)
    for expected in ("70/minute", "80/minute"):
        set_elsewhere(recording, expected)
        assert [limits_of(verdict) for verdict in requests(worker)] == [[expected]] * 8
        become_child()


def test_a_store_that_is_away_at_the_start_is_not_read(recording: Recording, later: Later) -> None:
    """The first request waits for one call. Later reads find the overrides. Then no change is looked for."""
    set_elsewhere(recording, "7/minute")
    worker = limiter_of(store=recording, reload_interval=0)
    recording.down, reads = True, recording.reads
    worker.start()
    assert recording.reads == reads
    recording.down = False
    learns(worker, ["7/minute"])
    set_elsewhere(recording, "8/minute")
    later.passed = 3600
    assert limits(worker) == ["7/minute"]


def test_an_event_loop_makes_no_blocking_call(recording: Recording) -> None:
    """The read shares the connection of the loop, and the loop does not wait for it."""
    limiter = limiter_of(store=recording)

    async def scenario() -> None:
        await limiter.ahit(ACME)
        set_elsewhere(recording, "7/minute")
        recording.read_record = lambda _: 1 // 0  # type: ignore[assignment, method-assign]
        recording.aread_record = read  # type: ignore[method-assign]
        recording.apply = lambda *_: 1 // 0  # type: ignore[assignment, method-assign]
        recording.aapply = recording.states.aapply  # type: ignore[method-assign]
        while limits_of(await limiter.ahit(ACME)) != ["7/minute"]:
            await asyncio.sleep(0.001)
        await limiter.aclose()

    async def read(name: str) -> bytes | None:
        await asyncio.sleep(0)
        return recording.states.read_record(name)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_an_event_loop_has_one_connection(redis_server: Server) -> None:
    """Decisions and reads share it."""
    limiter = limiter_of(store=f"redis://{HOST}:{redis_server.port}/13")

    async def scenario() -> int:
        for _ in range(50):
            await asyncio.gather(*(limiter.ahit(ACME) for _ in range(5)))
            await asyncio.sleep(0.002)
        with redis.Redis(HOST, redis_server.port) as client:
            databases = [each["db"] for each in client.client_list()]
        await limiter.aclose()
        return databases.count("13")

    assert asyncio.run(scenario()) == 1


def test_a_read_that_a_short_event_loop_cancels_is_made_in_a_thread(recording: Recording, later: Later) -> None:
    """An async view of Flask has an event loop of its own, which ends with the view."""
    limiter = limiter_of(store=recording, reload_interval="1h")
    asyncio.run(limiter.ahit(ACME))
    begun: list[str] = []
    may_read, read = threading.Event(), recording.read_record

    async def never(name: str) -> None:
        begun.append(name)
        await asyncio.sleep(3600)

    async def view(*times: float) -> None:
        for intervals in times:
            later.passed = intervals * 3600
            limiter.match(ACME)
            await asyncio.sleep(0)

    recording.aread_record = never  # type: ignore[assignment, method-assign]
    recording.read_record = lambda name: read(name) if may_read.wait() else None  # type: ignore[method-assign]
    set_elsewhere(recording, "7/minute")
    asyncio.run(view(0.8, 2.0))
    asyncio.run(view(0.9))  # while the thread reads
    assert len(begun) == 1
    may_read.set()
    wait_for(lambda: limits(limiter) == ["7/minute"], "the override")


def test_after_an_error_of_a_middleware_the_next_read_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the rules of the limiter and of the middleware would differ until the next change."""

    class Broken:
        errors = 1

        def renew(self, rules: Any, settings: Any) -> Callable[[], None]:
            return self.put_into_effect

        def put_into_effect(self) -> None:
            self.errors -= 1
            if self.errors >= 0:
                raise RuntimeError("a defect")

    store, middleware = Recording(), Broken()
    limiter = limiter_of(store=store)
    limiter.start()
    limiter.reloads.middlewares.add(middleware)
    set_elsewhere(store, "7/minute")
    wait_for(lambda: limiter.match(ACME) and middleware.errors < 0, "a second try")
    assert "a defect" in caplog.text


def test_a_read_that_another_thread_overtakes_reads_again(way: Any, recording: Recording, later: Later) -> None:
    """Meanwhile, the thread has put a newer record into effect."""
    limiter = limiter_of(store=recording, reload_interval="1h")
    limiter.start()
    set_elsewhere(recording, "7/minute")
    read = recording.states.read_record

    def overtaken(name: str) -> bytes | None:
        recording.states.read_record = read  # type: ignore[method-assign]
        record = read(name)
        limiter.clients.override("api", ACME, "8/minute")
        return record

    recording.states.read_record = overtaken  # type: ignore[method-assign]
    later.passed = 3600
    assert limits_of(way(limiter).peek(ACME)) == ["8/minute"]
