"""No hostile target passes the limit of a path or of a host, behind each gateway and framework.

The service with the shipped configuration of a gateway decides, and the application behind the gateway states what it
took each request for. The targets follow from the seed, so you can repeat a failure:

    DIFFERENTIAL_SEED=7 DIFFERENTIAL_TARGETS=400 pytest tests/differential -k nginx-uvicorn-starlette
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from differential.connection import ServerResponse, responses
from differential.hostile import HostileRequest, as_text
from differential.targets import CLOSED, KEYED, RULES, SPENDING, hostile_target
from folders import ROOT, SUPPORT, page_of
from gateway_site import site_of

SEED: Final = os.environ.get("DIFFERENTIAL_SEED", "1")
QUICK: Final = 250
TARGETS: Final = int(os.environ.get("DIFFERENTIAL_TARGETS", QUICK))
SHOWN: Final = 5
MODULE: Final = "differential.behind_gateway"
_ASGI: Final = ("--log-level", "critical", "--no-proxy-headers", "--http")
_WSGI: Final = ("--log-level", "critical", "--worker-class", "gthread", "--threads", "4")
SERVERS: Final = {
    "uvicorn-fastapi": ("uvicorn", f"{MODULE}:fastapi", "--port", "{}", *_ASGI, "httptools"),
    "uvicorn-starlette": ("uvicorn", f"{MODULE}:starlette", "--port", "{}", *_ASGI, "h11"),
    "gunicorn-flask": ("gunicorn", f"{MODULE}:in_flask", "--bind", "127.0.0.1:{}", *_WSGI),
    "gunicorn-django": ("gunicorn", f"{MODULE}:in_django", "--bind", "127.0.0.1:{}", *_WSGI),
}
# `make test` sends the targets through Caddy to one of the servers.
THOROUGH: Final = [pytest.param("caddy", server, marks=pytest.mark.thorough) for server in list(SERVERS)[1:]]
PAIRS: Final = [*(("nginx", server) for server in SERVERS), ("caddy", next(iter(SERVERS))), *THOROUGH]
FLOOD: Final = [("rate=50r/s", "rate=1000000r/s"), ("burst=100", "burst=1000000")]
LEAST: Final = {"200": 0.02, "429": 0.15, "400": 0.1}
"""The least share of targets with each status. Without them the suite would show nothing."""


def reached(response: ServerResponse, keys: Counter[str]) -> str:
    """Return what a response has passed, "" for nothing."""
    kinds, hosts = (set(response.header(name).split(",")) for name in (b"x-kinds", b"x-hosts"))
    if "limited" in kinds:
        return f"passed the limit of {kinds}"
    if CLOSED in hosts and kinds != {"exempt"}:
        return f"passed the limit of the host to {kinds}"
    if KEYED in kinds and (key := response.header(b"x-keys")):
        keys[key] += 1
        if keys[key] > 2:  # once by its own value, and once by the one value of all invalid ones
            return f"passed the limit of the key {key}"
    return ""


def passed(port: int, requests: list[HostileRequest], statuses: Counter[str]) -> Iterator[tuple[HostileRequest, str]]:
    """Yield each request that has passed a limit."""
    keys = Counter[str]()
    for request, response in responses(port, requests):
        if response is None:
            continue
        statuses[str(response.status)] += 1
        if response.status >= 500 and response.status != 501:
            yield request, f"status {response.status}"
        if response.header(b"x-kinds") and (what := reached(response, keys)):
            yield request, what


@pytest.mark.slow
@pytest.mark.timeout(300 + TARGETS // 10)
@pytest.mark.parametrize(("gateway", "server"), PAIRS)
def test_no_target_passes_a_limit_behind_a_gateway(
    gateway: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application sees no path, host or key whose limit is used up, and the service causes no error."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    name, *words = SERVERS[server]

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", name, *(word.format(port) for word in words)]

    requests = [hostile_target(SEED, number) for number in range(TARGETS)]
    statuses = Counter[str]()
    lines = FLOOD if gateway == "nginx" else []
    with site_of(tmp_path, RULES, lines=lines, gateway=gateway, application=command) as site:
        for path in SPENDING:
            host = CLOSED if path == "/other" else "shop.test"
            assert [site.get(path, headers={"Host": host}).status_code for _ in range(2)] == [200, 429]
        assert site.get("/health", headers={"Host": CLOSED}).status_code == 200
        found = list(passed(site.port, requests, statuses))
    print(f"{gateway}-{server}: seed {SEED}, {TARGETS:,} targets, {dict(sorted(statuses.items()))}")
    shown = "\n".join(f"{text}\n    {as_text(request)}" for request, text in found[:SHOWN])
    assert not found, f"{len(found)} targets passed, seed {SEED}:\n{shown}"
    for status, share in LEAST.items():
        assert statuses[status] >= share * TARGETS, statuses


def test_the_documentation_has_the_number_of_targets() -> None:
    """security.md has the size of a run."""
    page = " ".join(page_of("security").read_text().split())
    (number,) = re.findall(r"DIFFERENTIAL_TARGETS := (\d+)", (ROOT / "Makefile").read_text())
    assert f"{int(number):,} hostile targets to each of {len(PAIRS)} pairs" in page
