"""What the WSGI middleware owes to the protocol, with the standard library's validator on both of its sides."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from calls import limiter
from wsgi_calls import FIELDS, HEADERS, Environ, Served, environ_of, limited, listing

from ratelimit_mw import ConfigError
from ratelimit_mw.wsgi import RateLimitMiddleware

COUNTING = {"count_when": {"status": [401, 500]}}


class Body:
    """An iterable that counts how often it is closed."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._chunks)

    def close(self) -> None:
        self.closed += 1


def late(environ: Environ, start_response: Any) -> Iterator[bytes]:
    """A generator: it starts the response only when it is asked for the first chunk."""
    start_response("200 OK", HEADERS)
    yield b"hel"
    yield b"lo"


def writing(environ: Environ, start_response: Any) -> list[bytes]:
    write = start_response("200 OK", HEADERS)
    write(b"hel")
    return [b"lo"]


def recovering(environ: Environ, start_response: Any) -> list[bytes]:
    """It starts, fails before it has sent anything, and starts again with the error."""
    start_response("200 OK", [*HEADERS, ("X-RateLimit-Limit", "9")])
    try:
        raise ValueError("broken")
    except ValueError:
        start_response("500 Internal Server Error", [*HEADERS, ("RateLimit", "mine")], sys.exc_info())
    return [b"hello"]


RULES = pytest.mark.parametrize("rule", [{}, COUNTING], ids=["plain", "by outcome"])


@RULES
@pytest.mark.parametrize("app", [listing, late, writing, recovering])
def test_every_way_to_answer_stays_valid(app: Any, rule: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """List, generator, ``write`` and a second start arrive whole, with the fields once and no complaint."""
    served = Served(limited(app, limiter(**rule)))
    assert served.body == b"hello"
    assert served.status == ("500 Internal Server Error" if app is recovering else "200 OK")
    assert served.names() == ["Content-Type", *FIELDS]
    assert dict(served.headers)["X-RateLimit-Remaining"] == "1"
    assert capfd.readouterr().err == ""  # the validator complains there about what is never closed


@RULES
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_rejection_is_valid_and_does_not_call_the_application(method: str, rule: dict[str, Any]) -> None:
    """A rejected request gets a whole 429, without its body for HEAD, and the application never hears of it."""
    calls = []

    def app(environ: Environ, start_response: Any) -> list[bytes]:
        calls.append(environ)
        start_response("401 Unauthorized", HEADERS)
        return [b"no"]

    guarded = limited(app, limiter(match={"methods": ["GET", "POST"]}, **rule))
    served = [Served(guarded, REQUEST_METHOD=method) for _ in range(3)]
    assert [answer.status for answer in served] == ["401 Unauthorized"] * 2 + ["429 Too Many Requests"]
    rejected = dict(served[2].headers)
    assert len(served[2].body) == (0 if method == "HEAD" else int(rejected["Content-Length"]))
    assert rejected["Retry-After"] == "20"
    assert rejected["Cache-Control"] == "no-store"
    assert len(calls) == 2


def test_without_a_rule_for_a_request_everything_is_handed_on_as_it_is() -> None:
    """Where no rule looks, environ, start_response and the iterable are the same objects; only the verdict is new."""
    body: list[bytes] = []
    given: list[Any] = []

    def app(*parts: Any) -> list[bytes]:
        given.extend(parts)
        return body

    environ, start = environ_of(PATH_INFO="/free"), object()
    before = dict(environ)
    returned = RateLimitMiddleware(app, limiter=limiter(match={"path": "/api"}))(environ, start)  # type: ignore[arg-type]
    assert returned is body
    assert given[0] is environ
    assert given[1] is start
    assert bool(environ.pop("ratelimit_mw.verdict"))
    assert environ == before


def test_the_applications_own_iterable_is_returned() -> None:
    """Unless the outcome counts, the server gets the very object, with its length or file wrapper."""
    body = Body([b"x"])

    def app(environ: Environ, start_response: Any) -> Body:
        start_response("200 OK", HEADERS)
        return body

    answered = RateLimitMiddleware(app, limiter=limiter())(environ_of(), lambda *_: None)  # type: ignore[arg-type, return-value]
    assert answered is body


@RULES
@pytest.mark.parametrize(("chunks", "closes"), [(None, 1), (1, 1), (0, 1), (None, 2)])
def test_close_is_passed_on_once(rule: dict[str, Any], chunks: int | None, closes: int) -> None:
    """The iterable is closed once: read to its end, given up by the client, or closed twice by a server."""
    body = Body([b"a", b"b", b"c"])

    def app(environ: Environ, start_response: Any) -> Body:
        start_response("200 OK", HEADERS)
        return body

    Served(RateLimitMiddleware(app, limiter=limiter(**rule)), chunks=chunks, closes=closes if rule else 1)
    assert body.closed == 1


@RULES
def test_an_iterable_without_close_has_nothing_to_be_closed(rule: dict[str, Any]) -> None:
    """A plain list is an iterable like any other."""
    assert Served(RateLimitMiddleware(listing, limiter=limiter(**rule))).body == b"hello"


def raising_at_once(environ: Environ, start_response: Any) -> list[bytes]:
    raise ValueError("broken")


def raising_late(environ: Environ, start_response: Any) -> Iterator[bytes]:
    raise ValueError("broken")
    yield b""


def raising_halfway(environ: Environ, start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", HEADERS)
    yield b"hel"
    raise ValueError("broken")


@RULES
@pytest.mark.parametrize("app", [raising_at_once, raising_late, raising_halfway])
def test_what_the_application_raises_goes_up(app: Any, rule: dict[str, Any]) -> None:
    """Errors reach the server as they are, whenever they happen."""
    with pytest.raises(ValueError, match="broken"):
        Served(limited(app, limiter(**rule)))


@RULES
def test_an_error_of_close_goes_up(rule: dict[str, Any]) -> None:
    """An iterable that cannot be closed says so to the server; what was reserved is settled all the same."""

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


def test_after_the_first_bytes_an_error_cannot_change_the_answer() -> None:
    """The server's rejection of a second start, when bytes have been sent, reaches the application."""

    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", HEADERS)
        yield b"hel"
        try:
            raise ValueError("broken")
        except ValueError:
            start_response("500 Internal Server Error", HEADERS, sys.exc_info())

    with pytest.raises(ValueError, match="broken"):
        Served(limited(app))


def test_header_fields_of_ours_that_the_application_set_are_replaced() -> None:
    """Fields are replaced, not doubled, whatever their spelling, and the application's list stays as it was."""
    given = [("X-RateLimit-Limit", "9"), ("ratelimit", "x"), ("X-RATELIMIT-RESET", "7"), ("Retry-After", "3"), *HEADERS]

    def app(environ: Environ, start_response: Any) -> list[bytes]:
        start_response("503 Service Unavailable", given)
        return [b"x"]

    served = Served(limited(app))
    assert served.names() == ["Retry-After", "Content-Type", *FIELDS]
    assert len(given) == 5


def test_fields_are_spelled_as_in_the_standards() -> None:
    """Who makes a plain dictionary of the header list finds ``Retry-After``, ``Content-Type`` and all others."""
    app = limited(listing, limiter("1/minute"))
    assert Served(app).names() == ["Content-Type", *FIELDS]
    own = ["Content-Type", "Content-Length", "Cache-Control"]
    assert Served(app).names() == [*own, *FIELDS, "Retry-After"]


def test_a_rule_that_only_watches_adds_nothing() -> None:
    """Shadow rules do not show."""
    assert Served(limited(listing, limiter("1/minute", mode="shadow"))).headers == HEADERS


async def async_function(request: Any) -> str:
    return "x"


class AsyncObject:
    async def __call__(self, request: Any) -> str:
        return "x"


def test_a_rule_that_replaces_one_of_nobody_is_rejected_when_built() -> None:
    """No decorator is known here: a rule that retunes one would never apply, and says so at start."""
    settings = {"rules": [{"overrides": "nobody", "limits": "1/minute"}]}
    with pytest.raises(ConfigError, match="no decorator has a rule named 'nobody'"):
        RateLimitMiddleware(listing, settings=settings)


@pytest.mark.parametrize("read", [async_function, AsyncObject()])
def test_an_async_feature_is_rejected_when_built(read: Callable[[Any], Any]) -> None:
    """What can only be awaited has no place in WSGI, and says so at start."""
    with pytest.raises(ConfigError, match="features: WSGI cannot await an async function"):
        RateLimitMiddleware(listing, limiter=limiter(key=["user"]), features={"user": read})
