"""New workers of gunicorn and nginx under load: no request over the limit, no error of a proxy."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deployed import AMOUNT, COMMANDS, Site, deployed, new_address, reload
from servers import redis_running, wait_for

pytestmark = pytest.mark.thorough
MOST_REQUESTS = 20_000
PAIRS = [("uvicorn-workers", "redis"), ("gthread", "lmdb")]


def load(site: Site, address: str, seen: list[int], ends: threading.Event) -> None:
    """Send requests until the event is set, and keep the statuses."""
    with site.client(address) as client:
        while not ends.is_set() and len(seen) < MOST_REQUESTS:
            seen.append(client.get("/").status_code)


@pytest.mark.parametrize(("command", "store"), PAIRS)
def test_a_reload_under_load_allows_no_more(command: str, store: str, tmp_path: Path) -> None:
    """Four threads send requests while gunicorn, nginx and gunicorn again replace their workers."""
    ends, address = threading.Event(), new_address()
    seen: list[int] = []

    def served(more: int) -> None:
        enough = len(seen) + more
        wait_for(lambda: len(seen) >= enough or all(load.done() for load in loads), "the load to continue")

    with redis_running(tmp_path) as redis, ThreadPoolExecutor(4) as pool:
        url = f"redis://127.0.0.1:{redis.port}/0" if store == "redis" else f"lmdb://{tmp_path}/state"
        with deployed(tmp_path, COMMANDS[command], url) as site:
            loads = [pool.submit(load, site, address, seen, ends) for _ in range(4)]
            try:
                served(AMOUNT // 4)
                for process in (site.server, site.nginx, site.server):
                    reload(process)
                    served(AMOUNT)
            finally:
                ends.set()
            for each in loads:
                each.result()
    counts = Counter(seen)
    assert set(counts) == {200, 429}
    assert counts[200] == AMOUNT
