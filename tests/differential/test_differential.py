"""The limiter reads of each request what the application reads, or INVALID: hostile requests to each pair.

A pair is a framework behind a server. The requests follow from the seed, so you can repeat a failure:

    DIFFERENTIAL_SEED=7 DIFFERENTIAL_REQUESTS=1000 pytest tests/differential -k uvicorn-starlette

`make test-all` sends as many as security.md states.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest
from differential.connection import responses
from differential.hostile import HostileRequest, as_text, hostile_request
from differential.words import MANY_FIELDS, TOTALS
from folders import ROOT, page_of
from http_servers import free_port, running
from servers import program
from servers import running as proxy_running

QUICK = 250
SEED = os.environ.get("DIFFERENTIAL_SEED", "1")
REQUESTS = int(os.environ.get("DIFFERENTIAL_REQUESTS", QUICK))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + REQUESTS // 25)]

SHOWN = 5  # differences in the message of a failure


class Pair(NamedTuple):
    """A server, the application, and the header that the proxy in front of the server writes."""

    command: Callable[[str, int], list[str]]
    app: str
    header: str = "x-forwarded-for"
    server_knows_proxies: bool = False
    behind_nginx: bool = False


def uvicorn(parser: str, proxies: str = "--no-proxy-headers") -> Callable[[str, int], list[str]]:
    return lambda app, port: ["uvicorn", app, "--port", str(port), "--http", parser, "--log-level", "critical", proxies]


def gunicorn(app: str, port: int) -> list[str]:
    quiet = ("--log-level", "critical", "--worker-class", "gthread", "--threads", "2")
    return ["gunicorn", app, "--bind", f"127.0.0.1:{port}", *quiet]


def hypercorn(app: str, port: int) -> list[str]:
    return ["hypercorn", app, "--bind", f"127.0.0.1:{port}", "--log-level", "critical"]


def waitress(app: str, port: int) -> list[str]:
    # Without this option, waitress takes the headers of proxies away.
    return ["waitress", "--listen", f"127.0.0.1:{port}", "--threads", "2", "--no-clear-untrusted-proxy-headers", app]


def werkzeug(app: str, port: int) -> list[str]:
    return ["differential.wsgi_side", app, str(port)]


PAIRS = {
    "uvicorn-starlette": Pair(uvicorn("h11"), "differential.starlette_side:starlette"),
    "uvicorn-fastapi": Pair(uvicorn("httptools"), "differential.starlette_side:fastapi", "forwarded"),
    "uvicorn-asgi": Pair(uvicorn("httptools"), "differential.starlette_side:plain"),
    "uvicorn-django": Pair(uvicorn("h11"), "differential.django_side:asgi", "forwarded"),
    "uvicorn-proxies": Pair(
        uvicorn("httptools", "--proxy-headers"), "differential.starlette_side:starlette", server_knows_proxies=True
    ),
    "nginx-uvicorn": Pair(uvicorn("h11"), "differential.starlette_side:fastapi", behind_nginx=True),
    "hypercorn-starlette": Pair(hypercorn, "differential.starlette_side:starlette", "forwarded"),
    "gunicorn-flask": Pair(gunicorn, "differential.wsgi_side:in_flask"),
    "gunicorn-django": Pair(gunicorn, "differential.django_side:wsgi"),
    "gunicorn-wsgi": Pair(gunicorn, "differential.wsgi_side:plain", "forwarded"),
    "waitress-flask": Pair(waitress, "differential.wsgi_side:in_flask", "forwarded"),
    "waitress-wsgi": Pair(waitress, "differential.wsgi_side:plain"),
    "werkzeug-flask": Pair(werkzeug, "in_flask"),
}
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error crit;
events {{ worker_connections 64; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    upstream application {{ server 127.0.0.1:{behind}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://application; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Truth $remote_addr;
        }}
    }}
}}
"""
# The least share of the requests in which both read the same value. Without them the suite would show nothing.
LEAST = {"ip": 0.3, "method": 0.3, "host": 0.2, "header:x-key": 0.2, "cookie:sid": 0.1, "query:q": 0.1, "form:q": 0.02}


@contextmanager
def serving(pair: Pair, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    port = free_port()
    monkeypatch.setenv("DIFFERENTIAL_HEADER", pair.header)
    monkeypatch.setenv("DIFFERENTIAL_PROXIES", "server" if pair.server_knows_proxies else "limiter")
    with running(folder / "log", port, *pair.command(pair.app, port)):
        if not pair.behind_nginx:
            yield port
            return
        with proxy_running(lambda own: nginx_command(folder, own, port), folder) as proxy:
            yield proxy.port


def nginx_command(folder: Path, port: int, behind: int) -> list[str]:
    """Run nginx as a proxy that adds the address of its client, and states it in the header of the truth."""
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, behind=behind))
    return [program("nginx", "nginx"), "-c", str(folder / "nginx.conf")]


def differences(port: int, requests: list[HostileRequest]) -> Iterator[tuple[HostileRequest, str]]:
    """Yield each difference that the application reports, and each error of the server."""
    for request, response in responses(port, requests):
        if response is None:
            continue
        if response.status >= 500 and response.status != 501 and not fails_in_django(request):
            yield request, f"status {response.status}"
        for difference in filter(None, unquote(response.header(b"x-differs")).split(" | ")):
            yield request, difference


def fails_in_django(request: HostileRequest) -> bool:
    """Return whether Django itself fails before any middleware: a charset makes it read a query that is too long."""
    return MANY_FIELDS in request.raw and b"charset" in request.raw


def totals(port: int) -> Counter[str]:
    raw = f"GET {TOTALS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    ((_, response),) = responses(port, [HostileRequest(0, raw, "127.0.0.1")])
    assert response is not None
    return Counter(json.loads(response.body))


@pytest.mark.parametrize("name", PAIRS)
def test_the_limiter_reads_what_the_application_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path, host, client IP, fields and route are equal or INVALID, and the rule of each view has applied."""
    pair = PAIRS[name]
    print(f"{name}: seed {SEED}, {REQUESTS:,} requests")
    requests = [hostile_request(SEED, number, pair.header.encode()) for number in range(REQUESTS)]
    if pair.behind_nginx:  # no client may have the address of nginx itself
        requests = [request._replace(source=request.source.replace("127.0.0.1", "127.0.0.8")) for request in requests]
    with serving(pair, tmp_path, monkeypatch) as port:
        found = list(differences(port, requests))
        compared = totals(port)
    lines = "\n".join(f"{text}\n    {as_text(request)}" for request, text in found[:SHOWN])
    assert not found, f"{len(found)} differences, seed {SEED}:\n{lines}"
    for feature, share in LEAST.items():
        assert compared[f"{feature} equal"] >= share * REQUESTS, f"too few requests have {feature}: {compared}"
    print(f"{name}: {sum(compared.values()):,} comparisons, {dict(sorted(compared.items()))}")


def test_the_documentation_has_the_number_of_requests() -> None:
    """security.md has the size of a run, and the servers."""
    page = page_of("security").read_text()
    (number,) = re.findall(r"DIFFERENTIAL_REQUESTS := (\d+)", (ROOT / "Makefile").read_text())
    assert f"{len(PAIRS) * int(number):,} requests to {len(PAIRS)} pairs" in " ".join(page.split())
    assert all(f"| {name.partition('-')[0]}" in page.lower() for name in PAIRS)
