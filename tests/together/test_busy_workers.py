"""A limit holds in workers whose processors, event loops and GILs are busy: the store is healthy, so it decides."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from http_servers import served_port
from servers import HOST, memcached_running, redis_running, wait_for

pytestmark = pytest.mark.thorough

LOGINS = 40
PATIENCE = 300.0  # seconds, on a machine that may be busy itself
ASGI = "uvicorn busy_apps:asgi --log-level warning"
WSGI = "gunicorn busy_apps:wsgi --log-level warning --timeout 0 --threads 20"


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    with redis_running(folder) as server:
        yield f"redis://{HOST}:{server.port}"


@contextmanager
def memcached(folder: Path) -> Iterator[str]:
    with memcached_running(folder) as server:
        yield f"memcached://{HOST}:{server.port}"


@contextmanager
def lmdb(folder: Path) -> Iterator[str]:
    yield f"lmdb://{folder / 'store'}"


STORES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "redis": redis,
    "memcached": memcached,
    "lmdb": lmdb,
}


@contextmanager
def served(folder: Path, store: str, limits: str, command: str) -> Iterator[httpx.Client]:
    limits_of_client = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    with (
        served_port(folder / "output", command, STORE=store, LIMITS=limits) as port,
        httpx.Client(
            base_url=f"http://{HOST}:{port}", trust_env=False, timeout=PATIENCE, limits=limits_of_client
        ) as client,
    ):
        wait_for(lambda: client.get("/work").status_code == 200, f"{command}: {folder}", PATIENCE)
        yield client


@contextmanager
def all_busy(client: httpx.Client, workers: int) -> Iterator[None]:
    """Keep the processors of all worker processes busy with requests to another view."""
    ends, seen = threading.Event(), set[str]()

    def send_work() -> None:
        while not ends.is_set():
            seen.add(client.get("/work").text)

    with ThreadPoolExecutor(2 * workers) as pool:
        senders = [pool.submit(send_work) for _ in range(2 * workers)]
        try:
            wait_for(lambda: len(seen) == workers, f"{workers} workers", PATIENCE)
            yield
        finally:
            ends.set()
    for sender in senders:
        sender.result()


def check_logins(client: httpx.Client, folder: Path) -> None:
    """Send all failing logins at the same time. Five pass, and the store decides all of them."""
    with ThreadPoolExecutor(LOGINS) as pool:
        responses = list(pool.map(lambda _: client.post("/login"), range(LOGINS)))
    counts = Counter((response.status_code, response.text) for response in responses)
    assert counts == {(401, "store"): 5, (429, "store"): 35}, (folder / "output").read_text()


@pytest.mark.parametrize("name", STORES)
def test_busy_event_loop_lets_no_login_pass(name: str, tmp_path: Path) -> None:
    """An async view checks passwords and holds the loop for three times the budget: 5 of 40 logins, not 14."""
    with STORES[name](tmp_path) as store, served(tmp_path, store, "5/day", ASGI) as client:
        check_logins(client, tmp_path)


def test_four_busy_workers_let_no_login_pass(tmp_path: Path) -> None:
    """CPU-bound views on all of them, and 40 logins against 5 an hour: 5, all decided by Redis."""
    with (
        redis(tmp_path) as store,
        served(tmp_path, store, "5/hour", f"{ASGI} --workers 4") as client,
        all_busy(client, 4),
    ):
        check_logins(client, tmp_path)


@pytest.mark.parametrize("name", STORES)
def test_threads_without_the_gil_let_no_login_pass(name: str, tmp_path: Path) -> None:
    """Twenty threads of each of two workers, which share one GIL and have views that keep it."""
    with (
        STORES[name](tmp_path) as store,
        served(tmp_path, store, "5/day", f"{WSGI} --workers 2") as client,
        all_busy(client, 2),
    ):
        check_logins(client, tmp_path)
