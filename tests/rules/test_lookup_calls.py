"""Calls of functions that return limits: what requests wait for, and the bounds."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
from calls import on_loop
from lookup_plans import ALICE, Plans, build, quotas

from ratelimit_mw.rules import lookup
from ratelimit_mw.testing import ManualClock


def test_an_expired_result_is_used_while_it_is_looked_up_again() -> None:
    """Only one request waits for the function."""
    clock, arrived, gate = ManualClock(1_000_000.0), threading.Event(), threading.Event()
    limiter = build(Plans("1/minute"), clock)
    limiter.hit(ALICE)

    def slow(user: str) -> str:
        arrived.set()
        gate.wait()
        return "5/minute"

    clock.advance(60.0)
    limiter.rules.rules[0].lookup.function = slow  # type: ignore[union-attr]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(quotas, limiter)
        arrived.wait()
        assert quotas(limiter) == ["1/minute"]
        gate.set()
        assert waiting.result() == ["5/minute"]


def test_a_request_does_not_wait_for_a_function_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An async function is cancelled. The next requests do not call it, for a second."""
    monkeypatch.setattr(lookup, "_MAX_CALL", 0.01)
    clock, calls = ManualClock(1_000_000.0), []

    async def forever(user: str) -> str:
        calls.append(user)
        await asyncio.Event().wait()
        return "5/minute"

    limiter = build(forever, clock)
    assert asyncio.run(limiter.ahit(ALICE)).unavailable
    assert limiter.hit(ALICE).unavailable
    assert calls == ["alice"]
    clock.advance(1)
    assert limiter.hit(ALICE).unavailable
    assert calls == ["alice", "alice"]


@on_loop
async def test_a_blocking_function_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in a thread, with the context of the request. A request waits for it for a limited time."""
    request, gate = ContextVar("request", default="none"), threading.Event()

    def limits_of(user: str) -> str:
        if user == "bob":
            gate.wait()
        return "7/minute" if request.get() == user else "9/minute"

    request.set("alice")
    limiter = build(limits_of)
    waiting = asyncio.ensure_future(limiter.ahit({"user": "bob"}))
    assert [str(decision.quota) for decision in (await limiter.ahit(ALICE)).decisions] == ["7/minute"]
    gate.set()
    assert [str(decision.quota) for decision in (await waiting).decisions] == ["9/minute"]
    gate.clear()
    monkeypatch.setattr(lookup, "_MAX_CALL", 0.01)
    assert (await build(limits_of).ahit({"user": "bob"})).unavailable
    gate.set()


def test_new_clients_share_a_limited_number_of_threads() -> None:
    """A function that blocks starts no thread for each new client of an event loop; the others wait for their turn."""
    running: set[int] = set()
    most, gate = 0, threading.Event()

    def limits_of(user: int) -> str:
        nonlocal most
        running.add(user)
        most = max(most, len(running))
        gate.wait()
        running.discard(user)
        return "5/minute"

    async def scenario() -> None:
        limiter = build(limits_of)
        clients = [asyncio.ensure_future(limiter.ahit({"user": i})) for i in range(lookup._THREADS + 20)]
        while len(running) < lookup._THREADS:
            await asyncio.sleep(0)
        gate.set()
        assert all(await asyncio.gather(*clients))

    asyncio.run(scenario())
    assert most == lookup._THREADS


@pytest.mark.parametrize("is_async", [False, True])
def test_an_event_loop_never_waits_for_its_own_tasks(is_async: bool) -> None:
    """A blocking call on the loop calls the function itself. Only where it cannot await the result, it is rejected."""
    calls, blocking_called = [], threading.Event()

    def limits_of(user: str) -> Any:
        calls.append(user)
        if is_async:
            return asyncio.sleep(0, "5/minute")
        if len(calls) == 2:
            blocking_called.set()
        blocking_called.wait(10)
        return "5/minute"

    async def scenario() -> None:
        limiter = build(limits_of)

        async def view() -> Any:
            while not calls:
                await asyncio.sleep(0)
            return limiter.hit(ALICE)

        awaited, blocking = await asyncio.gather(limiter.ahit(ALICE), view())
        assert awaited.allowed
        assert blocking.allowed is not is_async

    asyncio.run(scenario())
    assert calls == ["alice"] * 2


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps two generations of values, and as many different limits."""
    monkeypatch.setattr(lookup, "_MAX_VALUES", 4)
    monkeypatch.setattr("ratelimit_mw.rules.compiled.MAX_FOUND", 3)
    calls: list[int] = []
    limiter = build(lambda user: calls.append(user) or f"{user}/minute")
    for users in (range(1, 20), range(19, 0, -1)):
        calls.clear()
        for user in users:
            assert quotas(limiter, {"user": user}) == [f"{user}/minute"]
    assert 0 < 19 - len(calls) <= 4
    assert len(limiter.rules.rules[0].all_limits()) <= 3
