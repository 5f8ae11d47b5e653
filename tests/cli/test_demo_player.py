"""What the demo sends and how it counts: over real sockets, against servers that answer as the test says."""

import asyncio
import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from ratelimit_mw.cli.access_log import parse_line
from ratelimit_mw.cli.demo.log import KINDS, logged
from ratelimit_mw.cli.demo.player import Outcome, Played, play
from ratelimit_mw.cli.demo.tally import SLICES, by_client, by_kind, by_policy, served_again
from ratelimit_mw.cli.demo.traffic import Request

Seen = tuple[str, dict[str, str], bytes]

REJECTION = (
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nx-Odd-Case: yes\r\n"
    b'RateLimit-Policy: "a";q=1;w=1, "b";q=1;w=1\r\nRateLimit: "b";r=0;t=1\r\n'
)
PROBLEM = b'{"violated-policies": ["b"]}'


class Recorder(BaseHTTPRequestHandler):
    """Notes what it is asked; rejects the first request for /reject, and hangs up on /hang-up."""

    protocol_version = "HTTP/1.1"
    seen: list[Seen]

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline()
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.seen.append((self.requestline, {k.lower(): v for k, v in self.headers.items()}, body))
        if self.path == "/hang-up":
            self.close_connection = True
        elif self.path == "/reject" and self._asked() == 1:
            content = b"" if self.command == "HEAD" else PROBLEM
            self.wfile.write(REJECTION + b"content-length: %d\r\n\r\n%b" % (len(content), content))
        else:
            self.wfile.write(b'HTTP/1.1 200 OK\r\nRateLimit-Policy: "a";q=1;w=1\r\ncontent-length: 0\r\n\r\n')

    def _asked(self) -> int:
        return sum(line == self.requestline for line, _, _ in self.seen)


@contextmanager
def recorder() -> Iterator[tuple[str, list[Seen]]]:
    seen: list[Seen] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Recorder,), {"seen": seen})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


def played(*requests: Request, alive: bool = True) -> tuple[Played, list[Seen]]:
    told: list[Outcome] = []
    with recorder() as (address, seen):
        result = asyncio.run(play(address, list(requests), lambda: alive, told.append))
    assert told == result.outcomes
    return result, seen


def asking(target: str, method: str = "GET", client: str = "192.0.2.1", at: float = 0.0) -> Request:
    return Request(at, client, "somebody", method, target)


def of_log(*requests: str) -> list[Request]:
    lines = (f'192.0.2.1 - - [17/May/2015:10:05:03 +0000] "{request}" 200 1\n'.encode() for request in requests)
    found, _ = logged(io.BytesIO(b"".join(lines)), 100)
    return found


# -- what is sent --------------------------------------------------------------------------------------------


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
def test_a_logged_path_arrives_as_it_was_logged(request_line: str) -> None:
    """A server decodes the very path that the log holds, dots, double slashes and control characters included."""
    entry = parse_line(f'192.0.2.1 - - [17/May/2015:10:05:03 +0000] "{request_line}" 200 1')
    result, seen = played(*of_log(request_line))
    [(line, headers, _)] = seen
    method, target, version = line.split(" ")
    assert (method, version) == (entry.method, "HTTP/1.1")
    assert unquote(target.partition("?")[0]) == entry.target.path
    assert "x-injected" not in headers
    assert headers["host"].startswith("127.0.0.1:")
    assert result.unanswered == 0


def test_the_whole_address_of_a_proxy_request_stays_here() -> None:
    """A log of a forward proxy has other hosts in it; only the path is played."""
    _, seen = played(*of_log("GET http://elsewhere.example:8080/a?b=c HTTP/1.1"))
    [(line, headers, _)] = seen
    assert line == "GET /a?b=c HTTP/1.1"
    assert headers["host"].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("client", "sent"),
    [("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "2001:db8::7"), ("::ffff:192.0.2.7", "192.0.2.7")],
)
def test_a_client_is_played_from_its_address(client: str, sent: str) -> None:
    """In X-Forwarded-For, as the one hop."""
    _, [(_, headers, _)] = played(asking("/", client=client))
    assert headers["x-forwarded-for"] == sent


def test_clients_without_an_address_get_one_each() -> None:
    """Host names and junk in a log stay apart from each other and the same for each, and cannot forge a header."""
    clients = ["a.example", "b.example", "a.example", "-", "x\r\nX-Injected: yes", "0.0.0.0"]
    _, seen = played(*(asking(f"/{i}", client=client) for i, client in enumerate(clients)))
    sent = [headers["x-forwarded-for"] for _, headers, _ in sorted(seen, key=lambda one: one[0])]
    assert len(set(sent)) == len(set(clients))
    assert sent[0] == sent[2]
    assert all(address.startswith("fd") and address.endswith("::1") for address in sent)
    assert not any("x-injected" in headers for _, headers, _ in seen)


def test_only_a_post_has_a_body() -> None:
    """A small form; everything else is asked without."""
    _, seen = played(*(asking("/", method) for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "POST")))
    bodies = {line.split()[0]: body for line, _, body in seen}
    assert bodies.pop("POST") == b"demo=1"
    assert set(bodies.values()) == {b""}


def test_whoever_signs_in_says_who_and_with_what() -> None:
    """Account and password go as HTTP Basic authentication."""
    request = Request(0.0, "192.0.2.1", "somebody", "POST", "/login", "ada:secret")
    _, [(_, headers, body)] = played(request)
    assert headers["authorization"] == "Basic YWRhOnNlY3JldA=="
    assert body == b""


def test_requests_wait_for_their_time() -> None:
    """Nothing is asked before its moment."""
    began = time.monotonic()
    result, _ = played(asking("/", at=0.0), asking("/", at=0.3))
    assert time.monotonic() - began >= 0.3
    assert result.outcomes[1].at >= 0.3
    assert result.seconds >= 0.3


def test_proxies_of_the_machine_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The traffic stays on this machine whatever the environment says."""
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    result, seen = played(asking("/"))
    assert len(seen) == 1
    assert result.unanswered == 0


# -- what is noted -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_rejecting_rule_is_read_from_the_answer(method: str) -> None:
    """From the problem in the body; of HEAD, which has none, from the header."""
    result, _ = played(asking("/reject", method), asking("/", method))
    rejected, served = sorted(result.outcomes, key=lambda outcome: -outcome.status)
    assert (rejected.status, rejected.looked, rejected.rejected) == (429, ("a", "b"), ("b",))
    assert (served.status, served.looked, served.rejected) == (200, ("a",), ())


def test_the_sample_is_byte_for_byte_and_asked_again() -> None:
    """Names keep their case and order; after the wait the same request is asked once more, and not counted."""
    result, seen = played(asking("/reject"))
    assert result.sample is not None
    assert (
        result.sample.response.encode()
        == (REJECTION + b"content-length: %d\r\n\r\n" % len(PROBLEM)).replace(b"\r\n", b"\n") + PROBLEM
    )
    assert (result.sample.wait, result.sample.then) == (1, "200 OK")
    assert len(seen) == 2
    assert len(result.outcomes) == 1


def test_a_request_without_answer_is_counted_as_such() -> None:
    """A connection that is dropped ends neither the run nor the sums."""
    result, _ = played(asking("/hang-up"), asking("/", at=0.05))
    assert (len(result.outcomes), result.unanswered, result.left_out) == (1, 1, 0)


def test_playing_ends_with_the_server() -> None:
    """Once it is gone nobody asks on: what is left is left out."""
    result, _ = played(*(asking("/hang-up") for _ in range(500)), alive=False)
    assert result.outcomes == []
    assert 1 <= result.unanswered <= 32
    assert result.left_out == 500 - result.unanswered


# -- how it is counted ---------------------------------------------------------------------------------------


def outcome(client: str, at: float, *rejected: str, kind: str = "k") -> Outcome:
    return Outcome(Request(at, client, kind, "GET", "/"), at, 429 if rejected else 200, ("p", "q"), rejected)


OUTCOMES = Played(
    6,
    [
        outcome("a", 0.0),
        outcome("a", 10.0, "p"),
        outcome("b", 1.0, "p", "q"),
        outcome("b", 2.0, "q"),
        outcome("b", 3.0),
        outcome("c", 4.0, kind="other"),
    ],
    seconds=10.0,
)


def test_counts_by_kind_client_and_policy() -> None:
    """Every rejection is counted once for its kind and client, and for each policy that took part."""
    kinds, clients, policies = by_kind(OUTCOMES), by_client(OUTCOMES), by_policy(OUTCOMES)
    assert {k: (t.requests, t.served, t.rejected, len(t.clients)) for k, t in kinds.items()} == {
        "k": (5, 2, 3, 2),
        "other": (1, 1, 0, 1),
    }
    assert {c: (t.requests, t.rejected, t.policies) for c, t in clients.items()} == {
        "b": (3, 2, {"p": 1, "q": 2}),
        "a": (2, 1, {"p": 1}),
    }
    assert list(clients) == ["b", "a"]
    assert {p: (t.requests, t.rejected, t.rejected_clients) for p, t in policies.items()} == {
        "p": (6, 2, {"a", "b"}),
        "q": (6, 2, {"b"}),
    }


def test_the_curve_has_every_rejection_in_its_slice() -> None:
    """The time played in equal parts; what comes at its very end is in the last."""
    curve = by_kind(OUTCOMES)["k"].curve
    assert [(i, n) for i, n in enumerate(curve) if n] == [(2, 1), (4, 1), (SLICES - 1, 1)]


def test_who_was_served_again() -> None:
    """Only what comes after a rejection counts, whatever the order in which the answers arrived."""
    assert served_again(OUTCOMES) == {"k": (1, 2)}
    backwards = Played(6, OUTCOMES.outcomes[::-1], seconds=10.0)
    assert served_again(backwards) == {"k": (1, 2)}


def test_clients_of_a_log_are_sorted_by_how_often_they_ask() -> None:
    """At 2, 10 and 100 requests begins the next kind."""
    lines = [(f"192.0.2.{n}", n) for n in (1, 2, 9, 10, 99, 100)]
    log = "".join(f'{ip} - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1\n' * n for ip, n in lines)
    requests, _ = logged(io.BytesIO(log.encode()), 1000)
    found = {request.client: request.kind for request in requests}
    assert list(found.values()) == [KINDS[0], KINDS[1], KINDS[1], KINDS[2], KINDS[2], KINDS[3]]
