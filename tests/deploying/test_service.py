"""``ratelimit-mw serve`` as a service: restarts, reloads, several workers, and its unit."""

import os
import shlex
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from decision_service import GATEWAY_FILES, PROGRAM
from deployed import assert_valid, new_address, replace
from gateway_site import site_of
from servers import PATIENCE, free_port, redis_running, wait_for

from ratelimit_mw.cli.serve.command import serve

pytestmark = pytest.mark.slow
AMOUNT = 150
RULES = f'[[rules]]\nname = "api"\nlimits = "{AMOUNT}/day"\n'
FLOOD = [("rate=50r/s", "rate=10000r/s"), ("burst=100", "burst=10000")]


@pytest.fixture(params=["lmdb", pytest.param("redis", marks=pytest.mark.thorough)])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A store that outlives the service, and a number of workers."""
    if request.param == "lmdb":
        yield f"lmdb://{tmp_path}/state", 1
        return
    with redis_running(tmp_path) as server:
        yield f"redis://127.0.0.1:{server.port}/0", 2


def test_restarts_under_load_allow_no_request_too_many(shared: tuple[str, int], tmp_path: Path) -> None:
    """Six clients ask without a pause while the service stops, or is killed, and starts again. Each gets its limit."""
    store, workers = shared
    with site_of(tmp_path, RULES, store, ["--workers", str(workers)], FLOOD) as site, six_clients(site.port) as counts:
        for end in (signal.SIGTERM, signal.SIGKILL if workers == 1 else signal.SIGTERM):
            wait_for_more(counts, 200, 429)
            site.stop_service(end)
            site.start_service()
        wait_for(lambda: all(count[429] for count in counts.values()), "a rejection of each client")
    for client, count in counts.items():
        assert set(count) <= {200, 429, 500}, (client, count)
        assert AMOUNT - 15 <= count[200] <= AMOUNT, (client, count)  # a decision of a killed service reaches nobody


@pytest.mark.thorough
def test_restarts_in_turn_fail_no_request(shared: tuple[str, int], tmp_path: Path) -> None:
    """nginx has two services, as the page recommends. Each stops and starts again, without a pause."""
    store, workers = shared
    second = free_port()
    lines = [("# server 127.0.0.1:8430", f"server 127.0.0.1:{second}"), *FLOOD]
    with site_of(tmp_path, RULES, store, ["--workers", str(workers)], lines) as site:
        ports = {"service": site.service_port, "second": second}
        site.start_service(second, "second")
        with six_clients(site.port) as counts:
            for name in ("service", "second"):
                wait_for_more(counts, 200, 429)
                site.stop_service(name=name)
                wait_for_more(counts, 200, 429)
                site.start_service(ports[name], name)
                wait_for(lambda name=name: is_ready(ports[name]), "a service that is ready")  # type: ignore[misc]
            wait_for(lambda: all(count[429] for count in counts.values()), "a rejection of each client")
    for client, count in counts.items():
        assert set(count) == {200, 429}, (client, count)
        assert AMOUNT - 15 <= count[200] <= AMOUNT, (client, count)  # nginx may ask both services about a request


@contextmanager
def six_clients(port: int) -> Iterator[dict[str, Counter[int]]]:
    """Let six clients ask without a pause. Yield the statuses that each of them gets."""
    ends, counts = threading.Event(), {new_address(): Counter[int]() for _ in range(6)}

    def ask(client: str) -> None:
        transport = httpx.HTTPTransport(local_address=client)
        with httpx.Client(transport=transport, timeout=PATIENCE, base_url=f"http://127.0.0.1:{port}") as session:
            while not ends.wait(0.01):
                counts[client][session.get("/").status_code] += 1

    with ThreadPoolExecutor(len(counts)) as pool:
        asking = [pool.submit(ask, client) for client in counts]
        try:
            yield counts
        finally:
            ends.set()
        for each in asking:
            each.result()


def wait_for_more(counts: dict[str, Counter[int]], *statuses: int) -> None:
    """Wait for more responses with these statuses."""

    def seen() -> int:
        return sum(count[status] for count in counts.values() for status in statuses)

    enough = seen() + 60
    wait_for(lambda: seen() > enough, "requests")


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE).status_code == 200
    except httpx.HTTPError:
        return False


def test_the_unit_is_valid(tmp_path: Path) -> None:
    """systemd accepts the unit, and its command has the options of `ratelimit-mw serve`."""
    unit = tmp_path / "ratelimit.service"
    shutil.copy(GATEWAY_FILES / unit.name, unit)
    replace(unit, "/opt/ratelimit/bin/ratelimit-mw", str(PROGRAM))
    assert_valid(unit)
    (command,) = (line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    words = shlex.split(command)[1:]
    for path, word in ((GATEWAY_FILES / "ratelimit.toml", words[1]), (tmp_path / "token", words[-1])):
        path.touch()
        words = [str(path) if each == word else each for each in words]
    with serve.make_context("serve", words[1:]) as context:
        assert context.params["gateway"] == "nginx"


@pytest.mark.thorough
def test_a_request_that_has_begun_is_finished(tmp_path: Path) -> None:
    """The service stops after the response of a request that waits in a queue."""
    algorithm = '{ name = "leaky-bucket", mode = "queue" }'
    rules = f'[[rules]]\nname = "queue"\nlimits = "1/5s burst 5"\nalgorithm = {algorithm}\n'
    with site_of(tmp_path, rules) as site, ThreadPoolExecutor(1) as pool:
        assert site.get().status_code == 200
        waiting = pool.submit(site.get)
        wait_for(lambda: any(key["remaining"] <= 3 for key in site.clients()), "a request in the queue")
        os.kill(site.processes["service"].pid, signal.SIGTERM)
        assert waiting.result().status_code == 200
        assert site.processes["service"].wait(PATIENCE) in (0, -signal.SIGTERM)  # uvicorn ends by the signal
