"""``is_local``: which requests come from this machine itself."""

from __future__ import annotations

from typing import Any

import pytest

from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.http.local import is_local
from ratelimit_mw.http.request import Request
from ratelimit_mw.wsgi.request import WSGIRequest


def asgi(peer: str | None, headers: dict[str, str], version: str = "1.1") -> Request:
    lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    client = None if peer is None else (peer, 5)
    return ASGIRequest({"type": "http", "client": client, "headers": lines, "http_version": version})


def wsgi(peer: str | None, headers: dict[str, str], version: str = "1.1") -> Request:
    lines = {"HTTP_" + name.upper().replace("-", "_"): value for name, value in headers.items()}
    return WSGIRequest({"REMOTE_ADDR": peer or "", "SERVER_PROTOCOL": f"HTTP/{version}", **lines})


FORMS = pytest.mark.parametrize("build", [asgi, wsgi])


@FORMS
@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1", "127.8.0.1:80", "[::1]:8000", "LocalHost"]
)
def test_a_program_of_this_machine_is_local(build: Any, host: str) -> None:
    """It connects over loopback, and names a loopback host."""
    assert is_local(build("127.0.0.1", {"Host": host}))
    assert is_local(build("::1", {"Host": host}))


@FORMS
@pytest.mark.parametrize("peer", ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", "unix", "", None])
def test_another_peer_is_not_local(build: Any, peer: str | None) -> None:
    """The peer of a Unix socket is not known: it may be a proxy."""
    assert not is_local(build(peer, {"Host": "localhost"}))


@FORMS
@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "192.0.2.7", "127.0.0.1.evil.example", ""])
def test_another_host_is_not_local(build: Any, host: str) -> None:
    """A web page that points its own name at this machine sends that name."""
    assert not is_local(build("127.0.0.1", {"Host": host}))


@FORMS
def test_a_request_without_a_host_is_not_local(build: Any) -> None:
    """HTTP/1.0 needs no host, so it proves nothing."""
    assert not is_local(build("127.0.0.1", {}))


@FORMS
@pytest.mark.parametrize(
    "header",
    [
        "X-Forwarded-For",
        "Forwarded",
        "Via",
        "X-Real-IP",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "CF-Connecting-IP",
        "X-Azure-ClientIP",
    ],
)
def test_a_proxied_request_is_not_local(build: Any, header: str) -> None:
    """A proxy on this machine connects over loopback for every client."""
    assert not is_local(build("127.0.0.1", {"Host": "localhost", header: "192.0.2.7"}))


@FORMS
def test_a_request_of_http_1_0_is_not_local(build: Any) -> None:
    """A plain ``proxy_pass`` of nginx adds no header, and sends its upstream as the host."""
    assert not is_local(build("127.0.0.1", {"Host": "127.0.0.1:8000"}, "1.0"))
    assert is_local(build("127.0.0.1", {"Host": "127.0.0.1:8000"}, "2"))
