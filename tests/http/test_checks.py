"""``check``, limited helpers and rejections that code raises, in every framework alike."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import flask
import flask_calls
import pytest
from calls import aask, ask
from check_sites import RULES, SITES, Site, limiter
from flask import Flask
from shared_store import SharedStore
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette_apps import application

from ratelimit_mw import ConfigError, Limiter, MissingMiddlewareError, Rejection, Rule, load_settings
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.http import later
from ratelimit_mw.http.rules import DECIDED
from ratelimit_mw.testing import ManualClock, limits_off

everywhere = pytest.mark.parametrize("kind", SITES.values(), ids=list(SITES))
SiteType = type[Site]


@pytest.fixture
def site(kind: SiteType) -> Site:
    return kind(limiter())


def left(response: Any) -> tuple[int, str, str]:
    return response.status_code, response.text, response.headers.get("X-RateLimit-Remaining")


@everywhere
def test_check_decides_a_rule_and_its_headers_show_it(site: Site) -> None:
    """The rule counts by what the view passes and by the client of the request. It rejects with a whole 429."""
    assert left(site.ask("/check?thread=7")) == (200, "1", "1")
    assert left(site.ask("/check?thread=7")) == (200, "0", "0")
    assert left(site.ask("/check?thread=8")) == (200, "1", "1")
    rejected = site.ask("/check?thread=7")
    assert rejected.status_code == 429
    assert rejected.headers["Retry-After"] == "60"
    assert rejected.headers["RateLimit"] == '"post";r=0;t=60'
    assert rejected.headers["Content-Type"] == "application/problem+json"
    assert '"violated-policies": ["post"]' in rejected.text


@everywhere
def test_rules_before_a_check_stay_counted(site: Site) -> None:
    """The rejection of a check refunds nothing, because the view has run."""
    for _ in range(3):
        site.ask("/check?thread=7")
    assert site.limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 97
    policy = site.ask("/check?thread=8").headers["RateLimit-Policy"]
    assert policy == '"site";q=100;w=60, "post";q=2;w=60'


@everywhere
def test_peek_consumes_nothing_and_reset_forgets(site: Site) -> None:
    """Peek raises no rejection. Reset concerns one key."""
    assert [site.ask("/peek?thread=7").text for _ in range(3)] == ["True"] * 3
    for thread in (7, 7, 8, 8):
        site.ask(f"/check?thread={thread}")
    assert [site.ask(f"/peek?thread={thread}").text for thread in (7, 8)] == ["False"] * 2
    assert site.ask("/reset?thread=7").text == "done"
    assert [site.ask(f"/peek?thread={thread}").text for thread in (7, 8)] == ["True", "False"]


@everywhere
@pytest.mark.parametrize("rule", ["post", "failed"])
def test_the_headers_after_a_reset_show_the_whole_limit(site: Site, rule: str) -> None:
    """A login that fails twice and then succeeds shows its client a limit that nothing has been consumed of."""
    for status in (401, 401):
        site.ask(f"/check?rule={rule}&thread=7&status={status}")
    site.limiter.reset(rule, {"thread": "7", "ip": "192.0.2.7"} if rule == "post" else {"ip": "192.0.2.7"})
    shown = site.ask(f"/reset?rule={rule}&thread=7&status=401")
    assert f'"{rule}";r=2;t=1' in shown.headers["RateLimit"]
    assert shown.headers["X-RateLimit-Remaining"] == "97"


@everywhere
def test_settle_changes_the_cost(site: Site) -> None:
    """A cost of zero returns everything at the end of the response."""
    assert [site.ask("/settle?thread=7").status_code for _ in range(3)] == [200] * 3


@everywhere
def test_a_view_catches_a_rejection(site: Site) -> None:
    """The view responds as it likes, for example with an error in a form. The headers still show the rejection."""
    caught = [site.ask("/check?thread=7&catch=1") for _ in range(3)][-1]
    assert left(caught) == (200, "caught post", "0")


@everywhere
def test_an_email_address_has_one_spelling(site: Site) -> None:
    """The feature email of a check is normalized, as that of a body is."""
    spellings = ("ann@b\u00fccher.example", "Ann@xn--bcher-kva.example", "ann@b\u00fccher.example.")
    assert [site.ask(f"/check?rule=mail&email={email}").status_code for email in spellings] == [200, 200, 429]


@everywhere
def test_the_outcome_of_the_response_counts(site: Site) -> None:
    """A rule with count_when is reserved by the check, and settled when the response is known."""
    sent = [site.ask(f"/check?rule=failed&status={status}").status_code for status in (200, 200, 200, 401, 401, 401)]
    assert sent == [200, 200, 200, 401, 401, 429]


@everywhere
def test_a_slot_is_held_until_the_response_ends(site: Site) -> None:
    """Each request returns the slot that its check has taken."""
    assert [site.ask("/check?rule=busy").status_code for _ in range(3)] == [200] * 3


@everywhere
def test_a_limited_helper_is_decided_when_a_view_calls_it(site: Site) -> None:
    """Its headers are those of the response, and it rejects with a 429."""
    assert [left(site.ask("/helper"))[::2] for _ in range(2)] == [(200, "1"), (200, "0")]
    assert site.ask("/done").status_code == 200
    rejected = site.ask("/helper")
    assert (rejected.status_code, rejected.headers["RateLimit"]) == (429, '"helper";r=0;t=60')


@everywhere
def test_a_rejection_of_another_limiter_is_a_429(site: Site) -> None:
    """Any ``RateLimitExceeded`` that leaves a view becomes the response to a rejection, with its own headers."""
    rejected = site.ask("/raise")
    assert (rejected.status_code, rejected.headers["RateLimit"][:9]) == (429, '"own";r=0')
    assert rejected.headers["Content-Type"] == "application/problem+json"
    assert int(rejected.headers["Retry-After"]) > 1000


@everywhere
def test_mistakes_are_errors(site: Site) -> None:
    """An unknown rule, and a feature that nothing provides, never allow a request in silence."""
    for path in ("/check?rule=pst", "/check", "/peek?rule=pst", "/settle?rule=pst"):
        with suppress(ConfigError):
            assert site.ask(path).status_code == 500


@everywhere
def test_without_limits_nothing_is_decided(site: Site) -> None:
    """In tests, limits_off turns off checks and helpers too."""
    with limits_off():
        assert [site.ask("/helper").status_code for _ in range(3)] == [200] * 3
        assert [site.ask("/reset?thread=7").status_code, site.ask("/peek?thread=7").text] == [200, "True"]


@everywhere
def test_without_limits_no_check_uses_functions_or_the_store(kind: SiteType) -> None:
    """A test of a view needs neither Redis nor the database that has the limits."""
    store, keys = SharedStore(), list[str]()

    def limits_of(key: str) -> str:
        keys.append(key)
        return "2/minute"

    rules = [Rule(name="post", key=["thread"], limits=limits_of, match={"view": ""})]
    site = kind(Limiter(rules, store))
    with limits_off():
        for path in ("/peek", "/reset", "/settle", "/usage"):
            assert site.ask(f"{path}?thread=7").status_code == 200
    assert (store.calls, keys) == (0, [])


@everywhere
def test_switched_off_settings_need_no_features_and_no_store(kind: SiteType) -> None:
    """With `enabled = false`, check, reset and usage of a rule whose key is missing do nothing."""
    store = SharedStore()
    site = kind(Limiter(RULES, store, settings=load_settings({"enabled": False})))
    for path in ("/reset", "/reset?thread=7", "/peek", "/settle?thread=7", "/usage?rules=post", "/helper"):
        assert site.ask(path).status_code == 200
    assert site.ask("/usage").text == "{}"
    assert store.calls == 0


@everywhere
def test_your_own_response_is_sent(kind: SiteType) -> None:
    """The function ``rejection`` responds to rejections of checks, helpers and other limiters as well."""
    site = kind(limiter(), rejection=lambda request, verdict: Rejection(verdict.status, [("X-Own", "1")], b"no"))
    for path in ("/check?thread=7", "/helper", "/raise"):
        response = [site.ask(path) for _ in range(3)][-1]
        assert (response.status_code, response.headers.get("X-Own"), response.text) == (429, "1", "no")


@everywhere
@pytest.mark.parametrize("path", ["/check?thread=7", "/helper"])
def test_the_status_of_a_rejection_is_the_outcome(kind: SiteType, path: str) -> None:
    """A rejection in a view counts for other rules by the status that the client receives."""
    for status, remaining in ((403, 8), (429, 9)):
        rules = [*RULES, Rule(name="forbidden", limits="9/minute", count_when={"status": [403]})]
        rate = Limiter(rules, clock=ManualClock(1_000_000.0))
        site = kind(rate, rejection=lambda request, verdict, status=status: Rejection(status, [], b"no"))
        assert [site.ask(path).status_code for _ in range(3)] == [200, 200, status]
        left_of = {each.rule: each.remaining for each in rate.peek({"ip": "192.0.2.7"}, cost=0).decisions}
        assert left_of == {"site": 97, "forbidden": remaining}


@everywhere
def test_a_rejection_keeps_all_cookies_and_headers(kind: SiteType) -> None:
    """Each ``Set-Cookie`` of a rejection is sent as it is written, and other equal names keep all values."""
    lines = ["a=1; Path=/; Partitioned", "b=2; HttpOnly; Priority=High", "a=1; Path=/x"]
    headers = [("Vary", "Cookie"), ("vary", "Origin"), *(("Set-Cookie", line) for line in lines)]
    site = kind(limiter(), rejection=lambda request, verdict: Rejection(429, headers, b"no"))
    rejected = [site.ask("/check?thread=7") for _ in range(3)][-1]
    assert cookies_of(rejected) == lines
    assert {"Cookie", "Origin"} <= {part.strip() for line in headers_of(rejected, "vary") for part in line.split(",")}


QUEUED: Any = {"limits": "10/s burst 3", "algorithm": {"name": "leaky-bucket", "mode": "queue"}}


@pytest.mark.parametrize("limits", ["in the rule", "of a function"])
@pytest.mark.parametrize(
    ("kind", "waits"), [("flask", True), ("django", True), ("async django", False), ("starlette", False)]
)
def test_a_call_that_cannot_await_never_waits_on_an_event_loop(
    kind: str, waits: bool, limits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper with a queue sleeps in a thread. Called on the loop of a server, it is an error, and nothing sleeps."""
    slept: list[float] = []
    monkeypatch.setattr(later, "time", SimpleNamespace(sleep=slept.append))
    queue = QUEUED if limits == "in the rule" else {**QUEUED, "limits": lambda _: "10/s burst 3"}
    helper = in_flask.limit(**queue, name="queue", unrouted=True)(lambda: None)

    async def ahelper() -> None:
        helper()

    site = SITES[kind](limiter())
    site.helper = helper if waits else ahelper
    with suppress(ConfigError):
        last = [site.ask("/helper").status_code for _ in range(2)][-1]
        assert last == (200 if waits else 500)
    assert len(slept) == waits


def test_an_async_view_of_flask_has_a_loop_of_its_own() -> None:
    """Under WSGI a wait stops no other request, so a helper with a queue may be called in an async view, too."""
    helper = in_flask.limit(**QUEUED, unrouted=True)(lambda: None)

    async def view() -> str:
        helper()
        return "fine"

    app = flask_calls.app_of(limiter(), {"/": view})
    assert [flask_calls.ask(app).text for _ in range(2)] == ["fine", "fine"]


def headers_of(response: Any, name: str) -> list[str]:
    """Return the lines of a header in the response of any framework."""
    get_all = getattr(response.headers, "get_list", None) or getattr(response.headers, "getlist", None)
    return get_all(name) if get_all else [response.headers[name]]


def cookies_of(response: Any) -> list[str]:
    """Return the lines of cookies as Django or another framework sends them."""
    morsels = getattr(response, "cookies", {}).values() if hasattr(response, "resolver_match") else ()
    return [morsel.output(header="").strip() for morsel in morsels] or headers_of(response, "set-cookie")


def test_without_a_middleware_a_check_is_an_error() -> None:
    """A limit is never silently absent. With limits_off there is none to decide."""
    app = Flask("app")
    with app.test_request_context("/"):
        with pytest.raises(MissingMiddlewareError, match=r"check\('post'\) .* no RateLimitMiddleware handled"):
            in_flask.check("post")
        with limits_off():
            assert in_flask.check("post").rules == ()
            assert in_flask.check.peek("post")
            in_flask.check.reset("post")
            in_flask.check.settle("post", 1)


def test_without_limits_the_async_check_decides_nothing() -> None:
    """The same holds for async views."""

    async def scenario() -> None:
        request: Any = SimpleNamespace(scope={})
        assert await in_starlette.check(request, "post")
        assert await in_starlette.check.peek(request, "post")
        await in_starlette.check.reset(request, "post")
        await in_starlette.check.settle(request, "post", 1)

    with limits_off():
        asyncio.run(scenario())


def test_a_check_after_the_response_decides_at_once() -> None:
    """A background task finds the admission of its request, whose slots are returned by then."""
    limiter = Limiter([Rule(name="job", limits="1 concurrent", match={"view": ""})], clock=ManualClock(1_000_000.0))
    app = flask_calls.app_of(limiter)
    with app.test_request_context("/", environ_base={"REMOTE_ADDR": "192.0.2.7"}):
        app.preprocess_request()
        admission: Any = next(iter(flask.request.environ[DECIDED].values()))
        admission.end(200)
        assert [in_flask.check("job").allowed for _ in range(3)] == [True] * 3


QUEUE = Rule(
    name="post",
    limits="1000/second burst 2",
    algorithm={"name": "leaky-bucket", "mode": "queue"},
    match={"view": ""},
)


@everywhere
def test_a_queue_delays_a_check(kind: SiteType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view waits for its turn."""
    delays: list[float] = []

    async def asleep(delay: float) -> None:
        delays.append(delay)

    monkeypatch.setattr("ratelimit_mw.http.later.asyncio.sleep", asleep)
    monkeypatch.setattr("ratelimit_mw.http.later.time.sleep", delays.append)
    site = kind(Limiter([QUEUE], clock=ManualClock(1_000_000.0)))
    assert [site.ask("/check").status_code for _ in range(2)] == [200, 200]
    assert delays == [0.001]


def test_a_background_task_checks_after_the_response() -> None:
    """The slots of such a check are returned at once."""
    limiter = Limiter([Rule(name="job", limits="1 concurrent", match={"view": ""})], clock=ManualClock(1_000_000.0))
    requests: list[Any] = []

    async def view(request: Any) -> PlainTextResponse:
        requests.append(request)
        return PlainTextResponse("ok")

    app = application([Route("/", view)], limiter=limiter)

    async def scenario() -> list[bool]:
        await aask(app)
        return [(await in_starlette.check(requests[0], "job")).allowed for _ in range(3)]

    assert asyncio.run(scenario()) == [True] * 3


def test_a_helper_that_is_not_async_cannot_await_a_feature() -> None:
    """The error says so, and the limit is not absent."""

    async def tenant(_: Any) -> str:
        return "a"

    helper = in_starlette.limit("1/minute", key=["tenant"], unrouted=True)(lambda: None)

    async def view(_: Any) -> PlainTextResponse:
        helper()
        return PlainTextResponse("ok")

    app = application([Route("/", view)], features={"tenant": tenant})
    with pytest.raises(ConfigError, match="cannot await a feature"):
        ask(app)
