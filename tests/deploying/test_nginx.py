"""The files of examples/deploying on real servers: nginx, gunicorn and uvicorn with several workers, Redis and LMDB."""

from __future__ import annotations

import itertools
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from deployed import (
    AMOUNT,
    COMMANDS,
    Site,
    accepts,
    copy_files,
    deployed,
    new_address,
    nginx_command,
    replace,
    statuses,
)
from http_servers import free_port
from servers import PATIENCE, Server, redis_running, wait_for
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_running(tmp_path_factory.mktemp("redis"), "--maxmemory-policy", "noeviction") as server:
        yield server


USUAL = [("redis", "uvicorn-workers"), ("redis", "gthread"), ("lmdb", "uvicorn")]
PAIRS = [
    pytest.param(pair, marks=() if pair in USUAL else pytest.mark.thorough, id="-".join(pair))
    for pair in itertools.product(["redis", "lmdb"], COMMANDS)
]


@pytest.fixture(scope="module", params=PAIRS)
def site(request: pytest.FixtureRequest, redis: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    kind, command = request.param
    folder = tmp_path_factory.mktemp(command)
    store = f"redis://127.0.0.1:{redis.port}/0" if kind == "redis" else f"lmdb://{folder}/state"
    with deployed(folder, COMMANDS[command], store) as served:
        yield served


def test_a_limit_holds_across_workers(site: Site) -> None:
    """Exactly 100 of 120 concurrent requests of a client pass, and another client is not affected."""
    address = new_address()
    assert Counter(statuses(site, AMOUNT + 20, address)) == {200: AMOUNT, 429: 20}
    assert statuses(site, 1, new_address()) == [200]


def test_a_forged_header_does_not_choose_the_key(site: Site) -> None:
    """A client with another address in each header has one count, and the named addresses keep theirs."""
    address, named = new_address(), new_address()
    forged = dict.fromkeys(("X-Forwarded-For", "X-Real-IP", "Forwarded", "CF-Connecting-IP"), named)
    assert Counter(statuses(site, AMOUNT + 5, address, headers=forged)) == {200: AMOUNT, 429: 5}
    with site.client(named) as client:
        assert client.get("/").headers["x-ratelimit-remaining"] == str(AMOUNT - 1)


def test_headers_of_a_rejection_arrive(site: Site) -> None:
    """nginx passes the status, Retry-After and the RateLimit fields on. Health checks are never rejected."""
    address = new_address()
    statuses(site, AMOUNT, address)
    with site.client(address) as client:
        rejected, healthy = client.get("/"), client.get("/health")
    assert rejected.status_code == 429
    assert int(rejected.headers["retry-after"]) >= 1
    assert rejected.headers["ratelimit"].startswith('"everyone";r=0;t=')
    assert rejected.headers["cache-control"] == "no-store"
    assert healthy.status_code == 200
    assert "ratelimit" not in healthy.headers


def test_several_workers_served(site: Site) -> None:
    """The counts above were shared: both workers take part."""
    seen: set[int] = set()

    def both_served() -> bool:
        with site.client(new_address()) as client, ThreadPoolExecutor(4) as pool:
            seen.update(pool.map(lambda _: int(client.get("/").json()["worker"]), range(8)))
        return len(seen) > 1

    wait_for(both_served, "a request to the second worker")


def test_many_headers_and_websockets_pass_nginx(tmp_path: Path) -> None:
    """The headers of 150 rules fit into the buffer, and the limit of a WebSocket's handshake holds."""
    rules = "".join(f'[[rules]]\nname = "rule-number-{i}"\nlimits = ["1000/day"]\n' for i in range(150))
    with deployed(tmp_path, COMMANDS["uvicorn-workers"], f"lmdb://{tmp_path}/state", rules) as site:
        with site.client(new_address()) as client:
            response = client.get("/")
        assert response.status_code == 200
        assert sum(len(name) + len(value) for name, value in response.headers.raw) > 8192
        echo = f"{site.url.replace('http', 'ws')}/echo"
        with connect(echo) as websocket:
            websocket.send("hello")
            assert websocket.recv() == "hello"
        assert set(statuses(site, AMOUNT, "127.0.0.1")) == {200, 429}
        with pytest.raises(InvalidStatus, match="429"):
            connect(echo)


def test_a_slow_request_is_sent_once(tmp_path: Path) -> None:
    """The application never responds. nginx ends the request and does not try the second line of the upstream."""
    port = free_port()
    copy_files(tmp_path, port)
    replace(tmp_path / "nginx.conf", "proxy_read_timeout 60s", "proxy_read_timeout 1s")
    with socket.socket(socket.AF_UNIX) as application, ExitStack() as stack:
        application.bind(str(tmp_path / "app.sock"))
        application.listen()
        nginx = stack.enter_context(subprocess.Popen(nginx_command(tmp_path), cwd=tmp_path))
        stack.callback(nginx.terminate)
        wait_for(lambda: accepts(port), "nginx")
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE).status_code == 504
        application.setblocking(False)
        application.accept()[0].close()
        with pytest.raises(BlockingIOError):
            application.accept()
