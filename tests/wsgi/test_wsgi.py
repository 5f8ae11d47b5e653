"""The WSGI middleware follows the protocol, with the standard library's validator on both sides."""

import asyncio
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from calls import limiter
from flask import Flask
from tables import each
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from wsgi_calls import FIELDS, HEADERS, Environ, Served, environ_of, limited, listing, statuses

from ratelimit_mw import ConfigError, FeatureTypeError, Limiter, RateLimitExceeded, Rule, Verdict
from ratelimit_mw.http.admission import ADMISSION
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware, check

COUNTING = {"count_when": {"status": [401, 500]}}


class Body:
    """An iterable that counts the calls of its ``close``."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._chunks)

    def close(self) -> None:
        self.closed += 1


def start_late(environ: Environ, start_response: Any) -> Iterator[bytes]:
    """Start the response only when the server requests the first chunk."""
    start_response("200 OK", HEADERS)
    yield b"hel"
    yield b"lo"


def call_write(environ: Environ, start_response: Any) -> list[bytes]:
    write = start_response("200 OK", HEADERS)
    write(b"hel")
    return [b"lo"]


def start_twice(environ: Environ, start_response: Any) -> list[bytes]:
    """Start the response, fail before the first byte, and start again with exc_info."""
    start_response("200 OK", [*HEADERS, ("X-RateLimit-Limit", "9")])
    try:
        raise ValueError("broken")
    except ValueError:
        start_response("500 Internal Server Error", [*HEADERS, ("RateLimit", "mine")], sys.exc_info())
    return [b"hello"]


RULES = each("rule", [{}, COUNTING])


@RULES
@each("app", [listing, start_late, call_write, start_twice])
def test_every_form_of_response_stays_valid(app: Any, rule: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """List, generator, ``write`` and a second start arrive whole with the fields once, and pass the validator."""
    served = Served(limited(app, limiter(**rule)))
    assert served.body == b"hello"
    assert served.status == ("500 Internal Server Error" if app is start_twice else "200 OK")
    assert served.names() == ["Content-Type", *FIELDS]
    counts = not rule or app is start_twice
    assert dict(served.headers)["X-RateLimit-Remaining"] == ("1" if counts else "2")
    assert capfd.readouterr().err == ""  # The validator complains about an unclosed iterable.


def test_the_iterable_of_the_application_is_returned() -> None:
    """Unless the outcome counts, the server gets the same list or file, which it may send in its own way."""
    for body in ([b"x"], Body([b"x"]), io.BytesIO(b"x")):

        def app(environ: Environ, start_response: Any, body: Any = body) -> Any:
            start_response("200 OK", HEADERS)
            return body

        environ = environ_of(**{"wsgi.file_wrapper": Body})
        assert RateLimitMiddleware(app, limiter=limiter())(environ, lambda *_: None) is body  # type: ignore[arg-type, return-value]


EVERY_KIND: list[dict[str, Any]] = [
    {"limits": "5/minute"},
    {"settings": {"rules": [{"limits": "5/minute"}]}},
    {"settings": {"rules": [{"match": {"path": "/nothing"}, "limits": "5 concurrent"}]}},
    {"settings": {"rules": [{"limits": "5/minute", "match": {"path": "/nothing"}, "count_when": {"status": 401}}]}},
    {"settings": {"lists": {"deny": {"ip": ["203.0.113.7"]}}}},
    {"settings": {"rules": [{"name": "api", "limits": "5/minute"}]}},
    {"settings": {"rules": [{"match": {"view": ""}, "limits": "5/minute"}]}},
    {"settings": {"rules": [{"limits": "5 concurrent"}]}},
    {"settings": {"rules": [{"limits": "5/minute", "count_when": {"status": 401}}]}},
]


@each("options", EVERY_KIND)
@each("app", [start_late, lambda environ, start: start("200 OK", HEADERS) or Body([b"x"])])
def test_a_request_lasts_until_its_stream_ends(app: Any, options: dict[str, Any]) -> None:
    """Code of the stream may check a rule, or settle its cost."""
    environ = environ_of()
    returned: Any = RateLimitMiddleware(app, **options)(environ, lambda *_: None)  # type: ignore[arg-type, return-value]
    assert ADMISSION in environ
    assert b"".join(returned) in (b"x", b"hello")
    assert ADMISSION not in environ


def test_a_stream_runs_in_the_request_of_an_inner_middleware() -> None:
    """It checks a rule of the inner middleware, which the outer one does not have."""

    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEADERS)
        check(environ, "api")
        yield b"x"

    inner = limiter("2/minute", key=[])
    served = Served(RateLimitMiddleware(RateLimitMiddleware(app, limiter=inner), limits="5/minute"))
    assert served.body == b"x"
    assert inner.peek({}, cost=0).decisions[0].remaining == 0
    assert ADMISSION not in served.environ


def checks_late(environ: Environ, start_response: Any) -> Iterator[bytes]:
    """Check a rule in a generator, before the response starts."""
    check(environ, "late")
    start_response("200 OK", HEADERS)
    yield b"x"


class Rejecting(Body):
    """An iterable whose first part is a rejection."""

    def __next__(self) -> bytes:
        limiter("1/minute").hit({"ip": "192.0.2.7"}, cost=2).raise_for_limit()
        return b""


LATE: dict[str, Any] = {"name": "late", "match": {"view": ""}}


def test_a_cost_that_is_known_after_the_response_is_settled_at_once() -> None:
    """As by a task that the request has started."""
    verdicts: list[Verdict] = []

    def app(environ: Environ, start_response: Any) -> list[bytes]:
        verdicts.append(environ["ratelimit_mw.verdict"])
        return listing(environ, start_response)

    rate = limiter("9/minute")
    Served(limited(app, rate))
    verdicts[0][verdicts[0].decisions[0].rule].settle(3)
    assert rate.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 6


@each("method", ["GET", "HEAD"])
def test_a_rejection_in_a_generator_before_its_start_is_a_429(method: str) -> None:
    """Code of a generator runs when the server reads it. Its rejection is a whole response, in title case."""
    app = limited(checks_late, Limiter([Rule(limits="1/minute", **LATE)], clock=ManualClock(1_000_000.0)))
    assert Served(app).body == b"x"
    rejected = Served(app, REQUEST_METHOD=method)
    assert (rejected.status, dict(rejected.headers)["Retry-After"]) == ("429 Too Many Requests", "60")
    assert rejected.names() == ["Content-Type", "Content-Length", "Cache-Control", *FIELDS, "Retry-After"]
    assert (b"quota-exceeded" in rejected.body) == (method == "GET")


def test_a_late_rejection_closes_both_iterables() -> None:
    """Your function has its verdict. The iterable of the application is closed before that of the rejection."""
    verdicts: list[Verdict] = []
    rate = Limiter([Rule(limits="1/minute", **LATE)], clock=ManualClock(1_000_000.0))
    bodies = [Rejecting([]), Body([b"no"])]

    def reject(environ: Environ, start_response: Any) -> Body:
        start_response("420 Calm", HEADERS)
        return bodies[1]

    def choose(request: Any, verdict: Verdict) -> Any:
        verdicts.append(verdict)
        return reject

    served = Served(RateLimitMiddleware(lambda *_: bodies[0], limiter=rate, rejection=choose))
    assert [verdict.allowed for verdict in verdicts] == [False]
    assert (served.status, served.body) == ("420 Calm", b"no")
    assert [body.closed for body in bodies] == [1, 1]


@RULES
@each(("chunks", "closes"), [(None, 1), (1, 1), (0, 1), (None, 2)])
def test_close_is_called_once(rule: dict[str, Any], chunks: int | None, closes: int) -> None:
    """The iterable is closed once after its end, after a disconnect, or when a server closes it twice."""
    body = Body([b"a", b"b", b"c"])

    def app(environ: Environ, start_response: Any) -> Body:
        start_response("200 OK", HEADERS)
        return body

    Served(RateLimitMiddleware(app, limiter=limiter(**rule)), chunks=chunks, closes=closes if rule else 1)
    assert body.closed == 1


def raise_at_once(environ: Environ, start_response: Any) -> list[bytes]:
    raise ValueError("broken")


def raise_late(environ: Environ, start_response: Any) -> Iterator[bytes]:
    raise ValueError("broken")
    yield b""


def raise_halfway(environ: Environ, start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", HEADERS)
    yield b"hel"
    raise ValueError("broken")


@RULES
@each("app", [raise_at_once, raise_late, raise_halfway])
def test_errors_of_the_application_reach_the_server(app: Any, rule: dict[str, Any]) -> None:
    """An error reaches the server unchanged at every stage of the response."""
    with pytest.raises(ValueError, match="broken"):
        Served(limited(app, limiter(**rule)))


@RULES
def test_an_error_of_close_reaches_the_server(rule: dict[str, Any]) -> None:
    """The middleware settles the reservation even when ``close`` raises."""

    class Stuck(Body):
        def close(self) -> None:
            raise OSError("stuck")

    def app(environ: Environ, start_response: Any) -> Stuck:
        start_response("200 OK", HEADERS)
        return Stuck([b"x"])

    rate = limiter(key=[], **rule)
    with pytest.raises(OSError, match="stuck"):
        Served(RateLimitMiddleware(app, limiter=rate))
    assert rate.peek({}, cost=0).decisions[0].remaining == (2 if rule else 1)
    slots = limiter("1 concurrent", key=[])
    with pytest.raises(OSError, match="stuck"):
        Served(RateLimitMiddleware(app, limiter=slots), chunks=0)  # the client has left
    assert slots.peek({}, cost=0).decisions[0].remaining == 1


@each("step", [next, iter])
def test_a_rejection_after_the_start_is_an_error(step: Any) -> None:
    """It reaches the server, which responds with 500 as long as it has sent no byte."""
    rate = limiter("2/minute", key=[], count_when={"status": 500})
    with pytest.raises(RateLimitExceeded):
        Served(limited(lambda _, start: start("200 OK", HEADERS) and step(Rejecting([])), rate))
    assert rate.peek({}, cost=0).decisions[0].remaining == 1


def test_an_error_after_the_first_bytes_cannot_replace_the_response() -> None:
    """The server rejects a second start after the first bytes, and its error reaches the application."""

    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEADERS)
        yield b"hel"
        try:
            raise ValueError("broken")
        except ValueError:
            start_response("500 Internal Server Error", HEADERS, sys.exc_info())

    with pytest.raises(ValueError, match="broken"):
        Served(limited(app))


async def async_function(request: Any, *_: Any) -> str:
    return "x"


class AsyncObject:
    async def __call__(self, request: Any, *_: Any) -> str:
        return "x"


def test_an_override_without_its_rule_is_rejected_when_built() -> None:
    """No decorator is known here, so a rule with ``overrides`` would never apply and is an error at the start."""
    settings = {"rules": [{"overrides": "missing", "limits": "1/minute"}]}
    with pytest.raises(ConfigError, match="no decorator has a rule named 'missing'"):
        RateLimitMiddleware(listing, settings=settings)


@each("read", [async_function, AsyncObject()])
def test_an_async_function_is_rejected_when_built(read: Callable[[Any], Any]) -> None:
    """WSGI cannot await a feature or a response, so the middleware raises an error at the start."""
    options: dict[str, Any] = {"features": {"user": read}, "rejection": read}
    for name, value in options.items():
        with pytest.raises(ConfigError, match=f"{name}: WSGI cannot await an async function"):
            RateLimitMiddleware(listing, limiter=limiter(key=["user"]), **{name: value})


def test_a_function_that_returns_an_awaitable_is_an_error() -> None:
    """Only a request shows it. The error names the feature."""
    value = asyncio.Future[str](loop=Mock())

    def checking(environ: Environ, start_response: Any) -> Any:
        return check(environ, "api")

    for app, match in ((listing, {}), (checking, {"view": ""})):
        rate = limiter(key=["user"], match=match)
        with pytest.raises((FeatureTypeError, ConfigError), match="'user' is of type Future"):
            statuses(RateLimitMiddleware(app, limiter=rate, features={"user": lambda request: value}), 1)


def test_a_middleware_in_its_own_application_decides_all_rules() -> None:
    """``app.wsgi_app = RateLimitMiddleware(app.wsgi_app)`` is around and inside the application: it is one stage."""
    app = Flask("own")
    app.get("/")(lambda: "hello")
    rules = {"rules": [{"name": "user", "limits": "1/minute", "key": ["user"]}]}
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, settings=rules)  # type: ignore[method-assign]
    client = app.test_client()
    statuses = [client.get("/", environ_overrides={"REMOTE_USER": "ann"}).status_code for _ in range(2)]
    assert statuses == [200, 429]


# -- requests ----------------------------------------------------------------------------------------------


@each(
    ("info", "path"),
    [
        ("/items", "/items"),
        ("", "/"),
        (None, "/"),
        ("items", "/items"),
        ("//items/", "/items"),
        ("/caf\u00c3\u00a9", "/caf\u00e9"),
        ("/caf\u00e9", "/caf\ufffd"),
    ],
)
def test_rules_match_the_decoded_path(info: str | None, path: str) -> None:
    """The middleware decodes PATH_INFO as UTF-8 and accepts a path that is not UTF-8."""
    app = RateLimitMiddleware(listing, limiter=limiter("1/minute", match={"path": path}))
    assert statuses(app, 2, PATH_INFO=info) == [200, 429]


def test_the_user_is_remote_user() -> None:
    """REMOTE_USER is the user. A rule by user does not apply to a request without it."""
    app = limited(listing, limiter("1/minute", key=["user"]))
    assert statuses(app, 2, REMOTE_USER="ann") == [200, 429]
    assert statuses(app, 2, REMOTE_USER="bob") == [200, 429]
    assert statuses(app, 2) == [200, 200]


# -- several middlewares -----------------------------------------------------------------------------------


def test_a_mounted_middleware_matches_paths_below_the_mount() -> None:
    """Under a Werkzeug mount, the rules of the inner application match its own paths."""
    inner = RateLimitMiddleware(listing, limiter=limiter("1/minute", match={"path": "/items"}))
    app = DispatcherMiddleware(listing, {"/sub": inner})
    assert statuses(app, 2, PATH_INFO="/sub/items") == [200, 429]
    assert statuses(app, 2, PATH_INFO="/items") == [200, 200]
