"""A limit holds in a worker whose event loop and GIL are busy: the store is healthy, so it decides.

``tests/stores/test_budget.py`` has threads that lack the GIL.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from http_servers import served_port
from servers import HOST, Server, wait_for

pytestmark = pytest.mark.thorough

LOGINS = 40
PATIENCE = 300.0  # seconds, on a machine that may be busy itself
ASGI = "uvicorn busy_apps:asgi --log-level warning"


@pytest.fixture(params=["redis", "memcached", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "lmdb":
        return f"lmdb://{tmp_path}/store"
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return f"{request.param}://{HOST}:{server.port}?prefix={tmp_path.name}:"


@contextmanager
def served(folder: Path, store: str) -> Iterator[httpx.Client]:
    limits_of_client = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    with (
        served_port(folder / "output", ASGI, STORE=store) as port,
        httpx.Client(
            base_url=f"http://{HOST}:{port}", trust_env=False, timeout=PATIENCE, limits=limits_of_client
        ) as client,
    ):
        wait_for(lambda: client.get("/work").status_code == 200, f"{ASGI}: {folder}", PATIENCE)
        yield client


def test_busy_event_loop_lets_no_login_pass(store: str, tmp_path: Path) -> None:
    """An async view checks passwords and holds the loop for three times the budget: 5 of 40 logins, not 14.

    All failing logins are sent at the same time. Five pass, and the store decides all of them.
    """
    with served(tmp_path, store) as client, ThreadPoolExecutor(LOGINS) as pool:
        responses = list(pool.map(lambda _: client.post("/login"), range(LOGINS)))
    counts = Counter((response.status_code, response.text) for response in responses)
    assert counts == {(401, "store"): 5, (429, "store"): 35}, (tmp_path / "output").read_text()
