"""The LMDB store under real processes: exact together, and usable whatever happens to one of them."""

import asyncio
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import register
from ratelimit_mw.algorithms.fixed_window import FixedWindow, State
from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.limit import Limit
from ratelimit_mw.stores.lmdb import LmdbStore

SIZE = 64 << 20
PATIENT = 20_000_000
SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


@register
class Signalling(FixedWindow):
    """A fixed window that sends its own process a signal when it decides on a cost of 7: inside the transaction."""

    name = "signalling"
    signal = signal.SIGKILL

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        if cost == 7:
            os.kill(os.getpid(), self.signal)
        return super().decide(state, now, cost)


def limit_of(quota: str, algorithm: str = "fixed-window") -> Limit:
    return Limit("api", 0, Quota.parse(quota), algorithm)


def open_at(path: Path, timeout_us: int = PATIENT) -> LmdbStore:
    return LmdbStore(str(path), SIZE, timeout_us=timeout_us)


def hit(store: LmdbStore, limit: Limit, cost: int = 1, client: str = "a") -> Decision:
    return store.apply([Hit(limit, limit.prefix + client, cost)])[0]


def passed(store: LmdbStore, limit: Limit, tries: int, client: str = "a") -> int:
    return sum(hit(store, limit, 1, client).allowed for _ in range(tries))


async def passed_on_a_loop(store: LmdbStore, limit: Limit, tries: int) -> int:
    async def one() -> int:
        return sum([(await store.aapply([Hit(limit, limit.prefix + "a", 1)]))[0].allowed for _ in range(tries // 10)])

    return sum(await asyncio.gather(*(one() for _ in range(10))))


def start(context: Any, target: Callable[..., None], *arguments: object) -> Any:
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def end(process: Any) -> None:
    process.kill()
    process.join()


# -- together -------------------------------------------------------------------------------------------------


def count(path: Path, spec: str, way: str, tries: int, results: Any) -> None:
    store, limit = open_at(path), limit_of("1000/day", spec)
    if way == "async":
        results.put(asyncio.run(passed_on_a_loop(store, limit, tries)))
    elif way == "threads":
        with ThreadPoolExecutor(4) as pool:
            results.put(sum(pool.map(lambda _: passed(store, limit, tries // 4), range(4))))
    else:
        results.put(passed(store, limit, tries))


@pytest.mark.parametrize("spec", ["fixed-window", "sliding-window-log"])
def test_four_processes_pass_exactly_the_limit(tmp_path: Path, spec: str) -> None:
    """Of 20,000 tries on one key at the same time 1,000 pass: blocking, in threads and on event loops alike."""
    results = SPAWN.Queue()
    ways = ("sync", "sync", "threads", "async")
    workers = [SPAWN.Process(target=count, args=(tmp_path, spec, way, 5_000, results)) for way in ways]
    for worker in workers:
        worker.start()
    assert sum(results.get(timeout=60) for _ in workers) == 1_000
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4


# -- killed ---------------------------------------------------------------------------------------------------

AMOUNT = 150
KEYS = 60
KILLS = 50


def admit(path: Path, kinds: list[str], seed: int, notes: Any) -> None:
    """Hit random keys for ever; a row of notes, nobody else's, counts whom it let in, right after the store did."""
    store, chance = open_at(path), random.Random(seed)
    limits = [limit_of(f"{AMOUNT}/day", kind) for kind in kinds]
    while True:
        kind, key = chance.randrange(len(kinds)), chance.randrange(KEYS)
        if hit(store, limits[kind], client=str(key)).allowed:
            notes[(seed * len(kinds) + kind) * KEYS + key] += 1


def test_a_storm_of_kills_leaves_it_usable_and_exact(tmp_path: Path) -> None:
    """Fifty workers killed at any moment: nobody has to wait, nothing counted is lost, nothing more is let in."""
    chance = random.Random(1)
    kinds = ["fixed-window", "sliding-window-log"]
    notes = multiprocessing.RawArray("l", (KILLS + 3) * len(kinds) * KEYS)
    with closing(open_at(tmp_path, timeout_us=5_000_000)) as store:
        workers = [start(FORK, admit, tmp_path, kinds, seed, notes) for seed in range(3)]
        for seed in range(3, KILLS + 3):
            time.sleep(chance.random() * 0.02)
            end(workers.pop(chance.randrange(3)))
            assert hit(store, limit_of("1000/day"), client="somebody else").allowed
            workers.append(start(FORK, admit, tmp_path, kinds, seed, notes))
        for worker in workers:
            end(worker)
        unnoted = 0
        for kind, name in enumerate(kinds):
            for key in range(KEYS):
                admitted = sum(notes[kind * KEYS + key :: len(kinds) * KEYS])
                left = passed(store, limit_of(f"{AMOUNT}/day", name), AMOUNT + 1, str(key))
                assert admitted + left <= AMOUNT
                unnoted += AMOUNT - admitted - left
        assert sum(notes) > 1_000, "the storm was under load"
        # A worker that dies between the store's answer and its note has counted what it could not tell.
        assert unnoted <= KILLS + 3


def decide_on(path: Path, cost: int, how: signal.Signals) -> None:
    Signalling.signal = how
    hit(open_at(path), limit_of("20/day", "signalling"), cost)


def test_a_worker_killed_inside_its_transaction_leaves_no_lock_and_no_count(tmp_path: Path) -> None:
    """Five die holding both locks: each time the next one goes on at once, with what was there before."""
    with closing(open_at(tmp_path, timeout_us=1_000_000)) as store:
        for number in range(5):
            assert hit(store, limit_of("20/day", "signalling")).remaining == 19 - number
            worker = start(FORK, decide_on, tmp_path, 7, signal.SIGKILL)
            worker.join()
            assert worker.exitcode == -signal.SIGKILL
        assert hit(store, limit_of("20/day", "signalling")).remaining == 14


# -- stopped --------------------------------------------------------------------------------------------------


@contextmanager
def stopped_inside(path: Path) -> Iterator[Any]:
    """A process that is stopped within its transaction."""
    worker = start(FORK, decide_on, path, 7, signal.SIGSTOP)
    try:
        assert os.WIFSTOPPED(os.waitpid(worker.pid, os.WUNTRACED)[1])
        yield worker
    finally:
        end(worker)


def test_a_stopped_worker_holds_nobody_longer_than_the_budget(tmp_path: Path) -> None:
    """Whoever waits gets a StoreError in time, time after time; when the worker goes on, so do all."""
    limit = limit_of("20/day", "signalling")
    with closing(open_at(tmp_path, timeout_us=50_000)) as store:
        assert hit(store, limit).remaining == 19
        with stopped_inside(tmp_path) as worker:
            for call in (lambda: hit(store, limit), lambda: store.forget(["x"]), store.ping):
                began = time.monotonic()
                with pytest.raises(StoreError, match="locked by others for longer than the time budget"):
                    call()
                assert 0.05 <= time.monotonic() - began < 0.5
            os.kill(worker.pid, signal.SIGCONT)
            worker.join()
            assert worker.exitcode == 0
        assert hit(store, limit).remaining == 11


def test_a_stopped_worker_blocks_no_event_loop(tmp_path: Path) -> None:
    """While requests wait for their budget, the loop goes round; killed, the worker leaves nothing behind."""
    limit = limit_of("20/day", "signalling")

    async def wait(store: LmdbStore) -> tuple[list[object], float]:
        longest, before = 0.0, time.monotonic()
        calls = asyncio.gather(
            *(store.aapply([Hit(limit, limit.prefix + "a", 1)]) for _ in range(5)),
            store.aforget(["x"]),
            return_exceptions=True,
        )
        while not calls.done():
            await asyncio.sleep(0)
            longest, before = max(longest, time.monotonic() - before), time.monotonic()
        return calls.result(), longest

    with closing(open_at(tmp_path, timeout_us=100_000)) as store:
        hit(store, limit)
        with stopped_inside(tmp_path):
            answers, longest = asyncio.run(wait(store))
        assert [type(answer) for answer in answers] == [StoreError] * 6
        assert longest < 0.09, "the loop never waited for as long as a budget"
        assert hit(store, limit).remaining == 18, "the hit of the killed worker was not counted"


def test_threads_wait_for_a_stopped_worker_no_longer_than_one_does(tmp_path: Path) -> None:
    """Their budgets run side by side, not one after the other."""
    with closing(open_at(tmp_path, timeout_us=100_000)) as store, ThreadPoolExecutor(8) as pool:
        hit(store, limit_of("20/day"))
        with stopped_inside(tmp_path):
            began = time.monotonic()
            calls = [pool.submit(hit, store, limit_of("20/day")) for _ in range(8)]
            assert [type(call.exception()) for call in calls] == [StoreError] * 8
            assert time.monotonic() - began < 0.6


# -- forked ---------------------------------------------------------------------------------------------------


def count_more(store: LmdbStore, tries: int, results: Any) -> None:
    results.put(passed(store, limit_of("1000/day"), tries))


def test_a_store_goes_through_a_fork(tmp_path: Path) -> None:
    """Opened before, it is opened again in each child; parent, children and grandchildren count exactly together."""
    results = FORK.SimpleQueue()
    with closing(open_at(tmp_path)) as store:
        assert passed(store, limit_of("1000/day"), 10) == 10
        workers = [start(FORK, count_more, store, 600, results) for _ in range(3)]
        mine = passed(store, limit_of("1000/day"), 600)
        for worker in workers:
            worker.join()
        assert mine + sum(results.get() for _ in workers) == 990
        assert hit(store, limit_of("1000/day"), 0).remaining == 0, "the parent's own is as it was"


def test_a_fork_while_a_thread_is_at_work_stops_nobody(tmp_path: Path) -> None:
    """Whatever another thread does in the store at that moment, the child is not left with its locks."""
    with closing(open_at(tmp_path, timeout_us=2_000_000)) as store:
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                hit(store, limit_of("10000000/day"))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of what is tested here
                codes = [one_forked_hit(store) for _ in range(40)]
        finally:
            over.set()
            thread.join()
        assert codes == [0] * 40


def one_forked_hit(store: LmdbStore) -> int:
    """The exit code of a child that makes one hit; it is killed after 20 seconds."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 1
        try:
            code = 0 if hit(store, limit_of("10000000/day")).allowed else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- ended ----------------------------------------------------------------------------------------------------


def hit_and_wait(path: Path, pipe: Any) -> None:
    store = open_at(path)
    pipe.send(hit(store, limit_of("20/day")).remaining)
    pipe.recv()
    store.close()


def test_the_last_process_to_close_marks_it_as_closed(tmp_path: Path) -> None:
    """As long as one worker has it open, another one's end says nothing."""
    pipes = [SPAWN.Pipe() for _ in range(2)]
    workers = [start(SPAWN, hit_and_wait, tmp_path, theirs) for _, theirs in pipes]
    assert sorted(mine.recv() for mine, _ in pipes) == [18, 19]
    marks = []
    for (mine, _), worker in zip(pipes, workers, strict=True):
        mine.send(None)
        worker.join()
        marks.append((tmp_path / "ratelimit_mw.lock").read_text().split()[-1])
    assert marks == ["open", "closed"]


GUNICORN_APP = """
import os
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings

settings = Settings(on_store_error="deny", store_timeout=5_000_000)
limiter = Limiter([Rule(name="api", limits="30/day", key=["ip"])], "lmdb://{path}", settings=settings)
assert limiter.hit({{"ip": "opened before the fork"}})

def app(environ, start_response):
    verdict = limiter.hit({{"ip": environ["PATH_INFO"]}})
    start_response("200 OK" if verdict else "503 Down" if verdict.unavailable else "429 Too Many", [])
    return [str(os.getpid()).encode()]
"""


@contextmanager
def gunicorn(folder: Path) -> Iterator[httpx.Client]:
    """Three workers, forked from a master that has the store open."""
    (folder / "application.py").write_text(GUNICORN_APP.format(path=folder / "state"))
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "3", "-b", "unix:socket", "application:app"]
    server = subprocess.Popen([*command, "--log-level", "warning"], cwd=folder)
    transport = httpx.HTTPTransport(uds=str(folder / "socket"))
    try:
        while not listens(folder / "socket"):
            assert server.poll() is None
            time.sleep(0.02)
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=20) as client:
            yield client
    finally:
        server.terminate()
        server.wait()


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_preloaded_gunicorn_workers_count_together_over_http(tmp_path: Path) -> None:
    """Three workers let in 30 of 90 requests, one of them killed on the way; after a restart it is all still there."""
    with gunicorn(tmp_path) as client:
        seen = [client.get("/a", headers={"connection": "close"}) for _ in range(20)]
        os.kill(int(seen[0].text), signal.SIGKILL)
        for _ in range(70):
            try:
                seen.append(client.get("/a", headers={"connection": "close"}))
            except httpx.TransportError:
                continue  # it was on its way to the worker that was killed
        assert [answer.status_code for answer in seen[:30]] == [200] * 30
        assert {answer.status_code for answer in seen[30:]} == {429}
    assert (tmp_path / "state" / "ratelimit_mw.lock").read_text().endswith("closed\n")
    with gunicorn(tmp_path) as client:
        assert client.get("/a").status_code == 429
