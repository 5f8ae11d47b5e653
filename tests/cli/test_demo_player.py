"""The requests that the demo sends, and the counts of their responses, over real sockets."""

import asyncio
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from ratelimit_mw.cli.access_log import LogReader, parse_line
from ratelimit_mw.cli.demo.player import Playback, play
from ratelimit_mw.cli.demo.traffic import LOG_KINDS, DemoRequest, read_requests

Received = tuple[str, dict[str, str], bytes]

REJECTION = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nx-Odd-Case: yes\r\n"
PROBLEM = b'{"violated-policies": ["b"]}'


class Recorder(BaseHTTPRequestHandler):
    """Records requests. It rejects the first request for /reject, and closes the connection on /close."""

    protocol_version = "HTTP/1.1"
    received: list[Received]

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline()
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.received.append((self.requestline, {k.lower(): v for k, v in self.headers.items()}, body))
        if self.path == "/close":
            self.close_connection = True
        elif self.path == "/reject" and sum(line == self.requestline for line, _, _ in self.received) == 1:
            content = b"" if self.command == "HEAD" else PROBLEM
            self.wfile.write(REJECTION + b"content-length: %d\r\n\r\n%b" % (len(content), content))
        else:
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


@contextmanager
def recorder() -> Iterator[tuple[str, list[Received]]]:
    received: list[Received] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Recorder,), {"received": received})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


def send(*requests: DemoRequest) -> tuple[Playback, list[Received]]:
    with recorder() as (url, received):
        playback = asyncio.run(play(url, list(requests), lambda _playback: None))
    return playback, received


def request(target: str, method: str = "GET", client: str = "192.0.2.1", at: float = 0.0) -> DemoRequest:
    return DemoRequest(at, client, "a kind", method, target)


def log_requests(*request_lines: str) -> list[DemoRequest]:
    lines = (f'192.0.2.1 - - [17/May/2015:10:05:03 +0000] "{text}" 200 1\n'.encode() for text in request_lines)
    return read_requests(LogReader(io.BytesIO(b"".join(lines))), 100)


@pytest.mark.parametrize(
    "request_line",
    [
        "GET / HTTP/1.1",
        "GET /a/../b/./c HTTP/1.1",
        "GET //elsewhere.example/x HTTP/1.1",
        "GET /caf\\xc3\\xa9/%C3%A9/%2e%2e/%00?q=%zz&a b='\\\"<> HTTP/1.1",
        "GET /%0d%0aX-Injected:%20yes?%0d%0aX-Injected:%20yes HTTP/1.1",
        "SEARCH /x#y HTTP/1.0",
        "GET /?? HTTP/1.1",
        "GET /\\xff\\xfe HTTP/1.1",
    ],
)
def test_path_of_a_log_arrives_unchanged(request_line: str) -> None:
    """The server decodes the path of the log, even with dots, double slashes and control characters."""
    entry = parse_line(f'192.0.2.1 - - [17/May/2015:10:05:03 +0000] "{request_line}" 200 1')
    playback, [(line, headers, _)] = send(*log_requests(request_line))
    method, target, version = line.split(" ")
    assert (method, version) == (entry.method, "HTTP/1.1")
    assert unquote(target.partition("?")[0]) == entry.target.path
    assert "x-injected" not in headers
    assert headers["host"].startswith("127.0.0.1:")
    assert playback.failures == 0


def test_only_the_path_of_a_proxy_request_is_sent() -> None:
    """A log of a forward proxy contains the URLs of other hosts."""
    _, [(line, headers, _)] = send(*log_requests("GET http://elsewhere.example:8080/a?b=c HTTP/1.1"))
    assert line == "GET /a?b=c HTTP/1.1"
    assert headers["host"].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("client", "sent"),
    [("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "2001:db8::7"), ("::ffff:192.0.2.7", "192.0.2.7")],
)
def test_ip_address_of_a_client_is_forwarded(client: str, sent: str) -> None:
    """It is the only hop of X-Forwarded-For."""
    _, [(_, headers, _)] = send(request("/", client=client))
    assert headers["x-forwarded-for"] == sent


def test_clients_without_an_ip_address_get_one_each() -> None:
    """A host name or any other text in a log gets an IP address of its own, and cannot forge a header."""
    clients = ["a.example", "b.example", "a.example", "-", "x\r\nX-Injected: yes", "0.0.0.0"]
    _, received = send(*(request(f"/{i}", client=client) for i, client in enumerate(clients)))
    sent = [headers["x-forwarded-for"] for _, headers, _ in sorted(received, key=lambda one: one[0])]
    assert len(set(sent)) == len(set(clients))
    assert sent[0] == sent[2]
    assert all(address.startswith("fd") and address.endswith("::1") for address in sent)
    assert not any("x-injected" in headers for _, headers, _ in received)


def test_bodies_are_json() -> None:
    """A POST of a log is sent with an empty object, every other method without a body."""
    methods = ("GET", "HEAD", "PUT", "DELETE", "PATCH", "POST")
    _, received = send(*log_requests(*(f"{method} / HTTP/1.1" for method in methods)))
    bodies = {line.split()[0]: body for line, _, body in received}
    assert bodies == dict.fromkeys(methods, b"") | {"POST": b"{}"}
    _, [(_, headers, body)] = send(request("/login", "POST")._replace(body='{"account": "ada"}'))
    assert (headers["content-type"], body) == ("application/json", b'{"account": "ada"}')


def test_requests_are_sent_at_their_time() -> None:
    """The playback is not over before the last of them."""
    playback, received = send(request("/first", at=0.0), request("/last", at=0.3))
    assert playback.seconds >= 0.3
    assert {line.split()[1] for line, _, _ in received} == {"/first", "/last"}  # each over a connection of its own


def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The traffic stays on this machine."""
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    playback, received = send(request("/"))
    assert (len(received), playback.failures) == (1, 0)


@pytest.mark.parametrize(("method", "policies"), [("GET", {"b"}), ("HEAD", set())])
def test_responses_are_counted_by_kind(method: str, policies: set[str]) -> None:
    """The rules that rejected are read from the body, which a response to HEAD does not have."""
    other = request("/", client="192.0.2.2")._replace(kind="another kind")
    playback, _ = send(request("/reject", method), request("/", method), other)
    counts = {kind: (c.requests, c.rejections, c.clients, c.policies) for kind, c in playback.kinds.items()}
    assert counts == {"a kind": (2, 1, {"192.0.2.1"}, policies), "another kind": (1, 0, {"192.0.2.2"}, set())}
    assert playback.rejections == 1


def test_sample_is_unchanged_and_sent_again() -> None:
    """The second request is sent after Retry-After and is not counted."""
    playback, received = send(request("/reject"))
    assert playback.sample is not None
    assert playback.retry_response is not None
    rejected, response = playback.sample
    assert (rejected, response.status_code, response.content) == (request("/reject"), 429, PROBLEM)
    assert playback.retry_response.status_code == 200
    assert (len(received), playback.kinds["a kind"].requests) == (2, 1)


def test_a_closed_connection_is_counted_as_failed() -> None:
    """The other requests are sent."""
    playback, _ = send(request("/close"), request("/", at=0.05))
    assert (playback.kinds["a kind"].requests, playback.failures) == (1, 1)


def test_clients_of_a_log_are_grouped_by_their_requests() -> None:
    """The groups begin at 1, 2, 10 and 100 requests."""
    sizes = (1, 2, 9, 10, 99, 100)
    text = "".join(f'192.0.2.{n} - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1\n' * n for n in sizes)
    requests = read_requests(LogReader(io.BytesIO(text.encode())), 1000)
    kinds = {request.client: request.kind for request in requests}
    assert list(kinds.values()) == [LOG_KINDS[i] for i in (0, 1, 1, 2, 2, 3)]
