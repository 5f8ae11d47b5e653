"""The files of examples/deploying on real servers: nginx, gunicorn and uvicorn with several workers, Redis and LMDB."""

import itertools
import socket
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from deployed import AMOUNT, COMMANDS, Site, copy_files, deployed, new_address, nginx_command, replace, statuses
from http_servers import free_port, reachable
from servers import PATIENCE, redis_running, wait_for
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

pytestmark = pytest.mark.slow


USUAL = [("redis", "uvicorn-workers"), ("lmdb", "gthread")]
PAIRS = [
    pytest.param(pair, marks=() if pair in USUAL else pytest.mark.thorough, id="-".join(pair))
    for pair in itertools.product(["redis", "lmdb"], COMMANDS)
]


@pytest.mark.parametrize("pair", PAIRS)
def test_an_application_behind_nginx_has_exact_limits(pair: tuple[str, str], tmp_path: Path) -> None:
    """The files of the example, as a user copies them."""
    kind, command = pair
    with ExitStack() as stack:
        store = f"lmdb://{tmp_path}/state"
        if kind == "redis":
            redis = stack.enter_context(redis_running(tmp_path, "--maxmemory-policy", "noeviction"))
            store = f"redis://127.0.0.1:{redis.port}/0"
        site = stack.enter_context(deployed(tmp_path, COMMANDS[command], store))
        check_limits(site)
        check_forged_headers(site)
        check_headers_of_a_rejection(site)
        check_workers(site)


def check_limits(site: Site) -> None:
    """Exactly 100 of 120 concurrent requests of a client pass, and another client is not affected."""
    address = new_address()
    assert Counter(statuses(site, AMOUNT + 20, address)) == {200: AMOUNT, 429: 20}
    assert statuses(site, 1, new_address()) == [200]


def check_forged_headers(site: Site) -> None:
    """A client with another address in each header has one count, and the named addresses keep theirs."""
    address, named = new_address(), new_address()
    forged = dict.fromkeys(("X-Forwarded-For", "X-Real-IP", "Forwarded", "CF-Connecting-IP"), named)
    assert Counter(statuses(site, AMOUNT + 5, address, headers=forged)) == {200: AMOUNT, 429: 5}
    with site.client(named) as client:
        assert client.get("/").headers["x-ratelimit-remaining"] == str(AMOUNT - 1)


def check_headers_of_a_rejection(site: Site) -> None:
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


def check_workers(site: Site) -> None:
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
        wait_for(lambda: reachable(port), "nginx")
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE).status_code == 504
        application.setblocking(False)
        application.accept()[0].close()
        with pytest.raises(BlockingIOError):
            application.accept()
