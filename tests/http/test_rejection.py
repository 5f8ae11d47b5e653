"""The answer to a rejected request: in the form that was asked for, never cached, and replaceable by your own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from asgi_checker import App, Receive, Scope, Send
from calls import BODY, FIELDS, START, ask, http_scope, limited, limiter, names_of, send_bare, sending
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse
from werkzeug.wrappers import Response
from wsgi_calls import Environ, Served, listing
from wsgi_calls import limited as limited_wsgi

from ratelimit_mw import Limiter, Rule, StoreError, Verdict
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.http.rejection import Rejection, build_rejection
from ratelimit_mw.receipt import Correction
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import ManualClock

PROBLEM, HTML, TEXT = "application/problem+json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
FULL = {"limits": "1/minute; 20/hour", "algorithm": "fixed-window"}


def rejected(app: App, **request: Any) -> Any:
    """The answer to the second request of a client who may have one."""
    ask(app)
    return ask(app, **request)


def app(**options: Any) -> App:
    return limited(sending(START, BODY), limiter(**FULL), **options)


def verdict_of(*rules: Rule, cost: int = 1, hits: int = 2) -> Verdict:
    rate = Limiter(rules, clock=ManualClock(1_000_000.0))
    return [rate.hit({"ip": "192.0.2.7"}, cost) for _ in range(hits)][-1]


# -- the package's own answer ------------------------------------------------------------------------------


def test_the_problem_says_what_the_draft_asks_for() -> None:
    """problem+json with the registered type, the status of the response, and the violated policies alone."""
    answer = rejected(app())
    assert answer.status_code == 429
    assert answer.headers["content-type"] == PROBLEM
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "Retry after 20 seconds.",
        "violated-policies": ["api"],
    }
    assert answer.headers["ratelimit-policy"] == '"api";q=1;w=60, "api-2";q=20;w=3600'


def test_html_and_text_say_the_same() -> None:
    """A browser gets a page that is well-formed and names its language, a terminal gets two lines."""
    page = rejected(app(), headers={"accept": "text/html"})
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(page.text)
    assert page.headers["content-type"] == HTML
    assert tags == ["html", "head", "meta", "title", "body", "h1", "p"]
    assert "Retry after 20 seconds." in page.text
    text = rejected(app(), headers={"accept": "text/plain"})
    assert (text.headers["content-type"], text.text) == (TEXT, "Too Many Requests\nRetry after 20 seconds.\n")
    assert int(page.headers["content-length"]) == len(page.content)


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("", PROBLEM),
        ("*/*", PROBLEM),
        ("application/json", PROBLEM),
        ("application/*", PROBLEM),
        ("application/problem+json", PROBLEM),
        ("image/png", PROBLEM),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", HTML),
        ("application/xhtml+xml", HTML),
        ("TEXT/HTML", HTML),
        ("text/*", HTML),
        ("text/plain", TEXT),
        ("text/plain, text/html;q=0.9", TEXT),
        ("text/html;q=0.2, application/json;q=0.3", PROBLEM),
        ("text/html;level=1;q=0.9, application/json;q=0.3", HTML),
        ("application/json;q=0, */*", HTML),
        ("application/problem+json;q=0, application/json", PROBLEM),
        ("*/*;q=0", PROBLEM),
        ("text/html;q=nonsense, text/plain;q=0.1", TEXT),
        ("text/html;q=nan, text/plain;q=0.1", TEXT),
        ("text/html;q=-1, text/plain;q=0.1", TEXT),
        ("text/html;q=1e9, text/plain", HTML),
        (" , ;, text/plain ;  Q = 1 , ", TEXT),
        ("text/plain," + "x" * 512, PROBLEM),
    ],
)
def test_the_form_is_what_accept_likes_best(accept: str, media: str) -> None:
    """By quality, the most telling range first; all else equal, problem+json; nonsense counts for nothing."""
    headers = dict(build_rejection(verdict_of(Rule(limits="1/minute")), accept, "1").headers)
    assert headers["Content-Type"] == media


@given(st.text(st.sampled_from('text/html*,;q=0.9 "\\\u00e9'), max_size=60))
def test_no_accept_breaks_the_answer(accept: str) -> None:
    """Whatever is asked for, the answer is one of the three forms, with its right length."""
    answer = build_rejection(verdict_of(Rule(limits="1/minute")), accept, "1")
    headers = dict(answer.headers)
    assert headers["Content-Type"] in (PROBLEM, HTML, TEXT)
    assert int(headers["Content-Length"]) == len(answer.body)


def test_one_second_is_not_seconds() -> None:
    """The sentence is for people."""
    assert b"Retry after 1 second." in build_rejection(verdict_of(Rule(limits="1/minute")), "text/plain", "1").body


def test_what_can_never_be_allowed_says_so() -> None:
    """Without a time to wait the answer does not pretend that waiting helps."""
    verdict = verdict_of(Rule(name="big", limits="5/minute"), cost=6)
    problem = json.loads(build_rejection(verdict, "", None).body)
    assert problem["detail"] == "Waiting does not help: this request can never be allowed."
    assert problem["violated-policies"] == ["big"]


def test_shadow_rules_are_no_violation() -> None:
    """Only what rejected is named: not a rule that only watches, nor one that would have let the request pass."""
    rules = [Rule(name=name, limits=limits, mode=mode) for name, limits, mode in NAMED]
    problem = json.loads(build_rejection(verdict_of(*rules), "", "1").body)
    assert problem["violated-policies"] == ["rejecting"]


NAMED = [("watching", "1/minute", "shadow"), ("rejecting", "1/minute", "enforce"), ("generous", "9/minute", "enforce")]


class DeadStore(Store):
    """A store that never answers."""

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        raise StoreError("no answer")

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        raise StoreError("no answer")

    def forget(self, keys: Iterable[str]) -> None:
        raise StoreError("no answer")


def test_our_own_failure_is_503_and_not_the_clients_fault() -> None:
    """A rule that denies while its store is down answers 503: the client has done nothing wrong."""
    rate = Limiter([Rule(name="api", limits="9/minute", on_store_error="deny")], store=DeadStore())
    answer = ask(limited(sending(START, BODY), rate))
    assert answer.status_code == 503
    assert answer.json()["type"] == "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    assert answer.json()["status"] == 503
    assert int(answer.headers["retry-after"]) >= 1
    served = Served(limited_wsgi(listing, rate))
    assert served.status == "503 Service Unavailable"


@pytest.mark.parametrize(("status", "reason"), [(429, "Too Many Requests"), (403, "Forbidden"), (499, "Rejected")])
def test_every_status_has_a_reason(status: int, reason: str) -> None:
    """WSGI asks for a phrase beside the number, known or not."""
    assert Rejection(status, [], b"").reason == reason


# -- your own answer ---------------------------------------------------------------------------------------

OWN = Rejection(403, [("Content-Type", "text/plain"), ("X-RateLimit-Limit", "?"), ("Retry-After", "999")], b"no")


async def eventually(request: Any, verdict: Verdict) -> Rejection:
    await asyncio.sleep(0)
    return Rejection(403, [("content-type", "text/plain")], b"no, " + str(verdict.rules[0]).encode())


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (lambda request, verdict: OWN, 403, "no"),
        (eventually, 403, "no, api"),
        (lambda request, verdict: JSONResponse({"wait": verdict.retry_after}, 420), 420, '{"wait":20.0}'),
        (lambda request, verdict: sending({**START, "status": 200}, BODY), 200, "hello"),
    ],
    ids=["Rejection", "async", "Starlette response", "ASGI application"],
)
def test_a_function_replaces_the_answer_under_asgi(answer: Any, status: int, body: str) -> None:
    """It returns a Rejection or an application, sync or async; our fields are added once, and replace its own."""
    found = rejected(app(rejection=answer))
    assert (found.status_code, found.text) == (status, body)
    assert [name for name, _ in found.headers.multi_items() if name in FIELDS] == FIELDS
    assert found.headers.get_list("retry-after") == ["20"]


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (lambda request, verdict: OWN, "403 Forbidden", b"no"),
        (lambda request, verdict: Response("busy", 420), "420 UNKNOWN", b"busy"),
    ],
    ids=["Rejection", "WSGI application"],
)
def test_a_function_replaces_the_answer_under_wsgi(answer: Any, status: str, body: bytes) -> None:
    """It returns a Rejection or an application; our fields are added once, and replace its own."""
    guarded = limited_wsgi(listing, limiter(**FULL), rejection=answer)
    Served(guarded)
    served = Served(guarded)
    assert (served.status, served.body) == (status, body)
    names = [name.lower() for name in served.names()]
    assert [name for name in names if name in FIELDS] == FIELDS
    assert [value for name, value in served.headers if name.lower() == "retry-after"] == ["20"]


def test_your_own_answer_to_head_has_no_body() -> None:
    """A Rejection's body is left out for HEAD, under both protocols."""
    guarded = app(rejection=lambda request, verdict: OWN)
    ask(guarded)
    assert ask(guarded, method="HEAD").content == b""
    guarded = limited_wsgi(listing, limiter(**FULL), rejection=lambda request, verdict: OWN)
    Served(guarded)
    assert Served(guarded, REQUEST_METHOD="HEAD").body == b""


def test_a_rejecting_application_may_read_and_stream() -> None:
    """An application that rejects gets the request as it is and may answer in parts."""

    async def reject(scope: Scope, receive: Receive, send: Send) -> None:
        given = await receive()
        await send({"type": "http.response.start", "status": 429})
        await send({"type": "http.response.body", "body": given["body"], "more_body": True})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    guarded = RateLimitMiddleware(
        sending(START, BODY), limiter=limiter(**FULL), rejection=lambda request, verdict: reject
    )
    send_bare(guarded, http_scope())
    sent = send_bare(guarded, http_scope(path="/x"), [{"type": "http.request", "body": b"mine"}])
    assert [message.get("body") for message in sent] == [None, b"mine", b"/x"]
    assert names_of(sent[0]) == [*FIELDS, "retry-after"]


def test_the_function_sees_request_and_verdict() -> None:
    """It is given the request as a mapping with its headers, and the verdict with its reasons."""
    seen: list[Any] = []

    def answer(request: Any, verdict: Verdict) -> Rejection:
        seen.append((request["path"], request.headers["accept"], verdict.retry_after, verdict.rejected_by[0].rule))
        return OWN

    rejected(app(rejection=answer), path="/a", headers={"accept": "text/x"})
    assert seen == [("/a", "text/x", 20.0, "api")]


def test_an_error_of_the_function_goes_up() -> None:
    """A function that fails is a bug of the application's, and seen as one."""

    def broken(request: Any, verdict: Verdict) -> Rejection:
        raise LookupError("template")

    with pytest.raises(LookupError, match="template"):
        rejected(app(rejection=broken))


def test_a_rejection_under_wsgi_is_whole_without_a_validator() -> None:
    """The plain answer under WSGI carries its length, its type, and no body more than that."""
    environ: Environ = {"HTTP_ACCEPT": "text/html"}
    guarded = limited_wsgi(listing, limiter(**FULL))
    Served(guarded)
    served = Served(guarded, **environ)
    assert dict(served.headers)["Content-Type"] == HTML
    assert int(dict(served.headers)["Content-Length"]) == len(served.body)
