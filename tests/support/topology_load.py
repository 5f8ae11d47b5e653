"""Requests from three processes, while a test does something to their store."""

import asyncio
import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from redis_handles import PATIENT
from servers import wait_for

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.redis import request
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.testing import ManualClock

PROCESSES = 3
NOW = 1_767_268_820.0
ACTIVE, FRESH = 24, 20  # clients at one time, and new ones in a second
BY_ADDRESS, BY_ACCOUNT = 40, 60  # an account has two addresses
PAUSE = 1  # seconds after a request that failed, so that failures do not grow with the speed of the machine
RULES = [
    Rule(name="address", limits=f"{BY_ADDRESS}/day; 100000/7d", key=["ip"], algorithm="sliding-window-counter"),
    Rule(name="login", limits="100000/day", key=["endpoint", "ip"], algorithm="sliding-window-counter"),
    Rule(name="account", limits=f"{BY_ACCOUNT}/day", key=["user"], algorithm="gcra"),
]


def features(number: int) -> dict[str, str]:
    return {"ip": f"10.0.{number // 250}.{number % 250}", "user": f"user-{number // 2}", "endpoint": "/login"}


def open_limiter(url: str) -> Limiter:
    settings = Settings(rejection_cache=0, on_store_error="deny", fleet_size=1)
    return Limiter(RULES, RedisStore(url, timeout_us=PATIENT), ManualClock(NOW), settings=settings)


class Refund(request.Operation):
    """Counts the refunds that a server has made."""

    made = 0

    def take(self, reply: Any, position: int) -> int:
        end = super().take(reply, position)
        Refund.made += len(self.items) * (self.kind == request.CORRECT and isinstance(self.result, list))
        return end


def work(url: str, ready: Any, stop: Any, done: Any, latest: Any) -> None:
    """Send requests by a thread and on an event loop, until ``stop``. Report the counts.

    ``latest`` has the times of the latest request that was allowed, and of the latest one that failed.
    """
    request.Operation = Refund  # type: ignore[misc]
    counts, lock, began = Counter[Any](), threading.Lock(), time.monotonic()
    limiters = [open_limiter(url) for _ in range(2)]

    def pick() -> int:
        return int((time.monotonic() - began) * FRESH) + random.randrange(ACTIVE)

    def add(number: int, verdict: Verdict) -> float:
        """Return how long to wait before the next request."""
        has_failed = any(decision.local for decision in verdict.decisions)
        with lock:
            counts["requests"] += 1
            counts["unavailable"] += has_failed
            counts["client", number] += bool(verdict)
        if verdict or has_failed:
            latest[has_failed] = time.monotonic()
        return PAUSE * has_failed

    def guarded(run: Callable[[], object]) -> None:
        try:
            run()
        except Exception as error:
            counts["exception", repr(error)] += 1

    def in_thread() -> None:
        while not stop.is_set():
            number = pick()
            time.sleep(add(number, limiters[0].hit(features(number))))

    async def on_loop() -> None:
        while not stop.is_set():
            numbers = [pick() for _ in range(ACTIVE)]
            verdicts = await asyncio.gather(*(limiters[1].ahit(features(number)) for number in numbers))
            pauses = [add(number, verdict) for number, verdict in zip(numbers, verdicts, strict=True)]
            await asyncio.sleep(max(0.001, *pauses))
        await limiters[1].aclose()

    thread = threading.Thread(target=guarded, args=(in_thread,))
    thread.start()
    ready.put(True)
    guarded(lambda: asyncio.run(on_loop()))
    thread.join()
    limiters[0].close()
    counts["refunds made"] = Refund.made
    counts["refunds lost"] = sum(limiter.store.lost_refunds for limiter in limiters)
    done.put(counts)


@contextmanager
def load(url: str) -> Iterator[tuple[Counter[Any], Sequence[float]]]:
    """Send requests from three processes during the block. Its counts are there afterwards; see ``work``."""
    context, counts = multiprocessing.get_context("spawn"), Counter[Any]()
    ready, stop, done, latest = context.Queue(), context.Event(), context.Queue(), context.Array("d", 2)
    workers = [context.Process(target=work, args=(url, ready, stop, done, latest)) for _ in range(PROCESSES)]
    for each in workers:
        each.start()
    try:
        for _ in workers:
            ready.get(timeout=180)
        yield counts, latest.get_obj()
    finally:
        stop.set()
        for _ in workers:
            counts.update(done.get(timeout=180))
        for each in workers:
            each.join()


def requests_succeed(latest: Sequence[float]) -> bool:
    """Wait until requests are allowed and none fails for longer than the pause. Return whether that happens."""
    changed = time.monotonic()

    def succeed() -> bool:
        allowed, failed = latest
        return allowed > max(changed, failed) + 2 * PAUSE

    with suppress(TimeoutError):
        wait_for(succeed, "the requests to succeed", 60)
        return True
    return False
