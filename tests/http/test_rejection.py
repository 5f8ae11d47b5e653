"""The rejection has the requested format, is never cached, and can be replaced."""

import json
import re
from typing import Any

import pytest
from asgi_checker import App
from calls import BODY, FIELDS, START, ask, limited, limiter, sending
from hypothesis import example, given
from hypothesis import strategies as st
from sites import ASGISite, WSGISite
from starlette.responses import JSONResponse
from tables import each
from werkzeug.wrappers import Response

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.http import rejection as rejection_module
from ratelimit_mw.http.headers import HeaderWriter
from ratelimit_mw.http.rejection import PreparedRejections, Rejection
from ratelimit_mw.testing import ManualClock

PROBLEM, HTML, TEXT = "application/problem+json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
FULL = {"limits": "1/minute; 20/hour", "algorithm": "fixed-window"}


def rejected_response(app: App, **request: Any) -> Any:
    """Return the response to the second request of a client that is allowed one."""
    ask(app)
    return ask(app, **request)


def app(**options: Any) -> App:
    return limited(sending(START, BODY), limiter(**FULL), **options)


def verdict_of(*rules: Rule, cost: int = 1, hits: int = 2) -> Verdict:
    rate = Limiter(rules, clock=ManualClock(1_000_000.0))
    return [rate.hit({"ip": "192.0.2.7"}, cost) for _ in range(hits)][-1]


def rejection_of(verdict: Verdict, accept: str = "") -> Rejection:
    return PreparedRejections(HeaderWriter()).find(verdict, accept).response


# -- default rejection -------------------------------------------------------------------------------------


def test_the_problem_document_follows_the_draft() -> None:
    """problem+json has the registered type, the status of the response and only the violated policies."""
    response = rejected_response(app())
    assert response.status_code == 429
    assert response.headers["content-type"] == PROBLEM
    assert response.headers["cache-control"] == "no-store"
    assert response.json() == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "Retry after 20 seconds.",
        "retry-after": 20,
        "violated-policies": ["api"],
    }
    assert response.headers["ratelimit-policy"] == '"api";q=1;w=60, "api-2";q=20;w=3600'


def test_html_and_text_have_the_same_content() -> None:
    """A browser gets a page with a language. A terminal gets two lines."""
    page = rejected_response(app(), headers={"accept": "text/html"})
    assert page.headers["content-type"] == HTML
    assert re.findall(r"<(\w+)", page.text) == ["html", "head", "meta", "title", "body", "h1", "p"]
    assert '<html lang="en">' in page.text
    assert "Retry after 20 seconds." in page.text
    text = rejected_response(app(), headers={"accept": "text/plain"})
    assert (text.headers["content-type"], text.text) == (TEXT, "Too Many Requests\nRetry after 20 seconds.\n")
    assert int(page.headers["content-length"]) == len(page.content)


@each(
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
def test_the_format_follows_accept(accept: str, media: str) -> None:
    """The highest quality counts, then the most specific range, then problem+json. Invalid ranges count for nothing."""
    headers = dict(rejection_of(verdict_of(Rule(limits="1/minute")), accept).headers)
    assert headers["Content-Type"] == media


@given(st.text(st.sampled_from('text/html*,;q=0.9 "\\\u00e9'), max_size=60))
def test_no_accept_header_breaks_the_rejection(accept: str) -> None:
    """For any Accept header, the body has one of the three formats and the right length."""
    response = rejection_of(verdict_of(Rule(limits="1/minute")), accept)
    headers = dict(response.headers)
    assert headers["Content-Type"] in (PROBLEM, HTML, TEXT)
    assert int(headers["Content-Length"]) == len(response.body)


NAMES = st.sampled_from(["api", "a_b", 'quoted"name"', "back\\slash", "100%{wait}", "<b>", "{0}"])
ACCEPTED = ("", "text/html", "text/plain")


@given(
    st.lists(NAMES, min_size=1, max_size=3, unique=True),
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(1, 3), st.floats(0, 90)), min_size=4, max_size=12),
)
@example(["api"], 60, [(1, 0.0), (1, 0.5), (1, 0.3), (1, 0.2), (1, 0.4), (1, 0.1)])
def test_a_kept_response_has_the_bytes_of_a_new_one(
    names: list[str], period: int, hits: list[tuple[int, float]]
) -> None:
    """A response that was kept for other rejections changes no byte of the body, and no header."""
    clock = ManualClock(1_000_000.0)
    rules = [Rule(name=name, limits=f"{number + 2}/{period + number}s") for number, name in enumerate(names)]
    seen = [Rule(name="seen", limits="1/hour", mode="shadow")] * (len(rules) > 1)
    rate = Limiter([*rules, *seen], clock=clock)
    writer = HeaderWriter()
    kept = PreparedRejections(writer)
    for cost, pause in hits:
        clock.advance(pause)
        verdict = rate.hit({"ip": "192.0.2.7"}, cost)
        if verdict:
            continue
        responses = [kept.find(verdict, accept) for accept in ACCEPTED]
        assert responses == [PreparedRejections(HeaderWriter()).find(verdict, accept) for accept in ACCEPTED]
        problem, page, text = (response.response.body.decode() for response in responses)
        assert responses[0].limit_headers == writer.headers(verdict)
        wait = dict(responses[0].limit_headers).get("Retry-After")
        detail = "Waiting does not help: this request can never be allowed."
        if wait is not None:
            detail = f"Retry after {int(wait)} second{'s' if int(wait) > 1 else ''}."
        assert problem == json.dumps(
            {
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Too Many Requests",
                "status": 429,
                "detail": detail,
                **({} if wait is None else {"retry-after": int(wait)}),
                "violated-policies": [decision.source.policy for decision in verdict.rejected_by],
            }
        )
        assert text == f"Too Many Requests\n{detail}\n"
        assert f"<h1>Too Many Requests</h1><p>{detail}</p>" in page


def test_the_rejection_of_a_list_follows_accept() -> None:
    """It has no decisions. So has that of a ban from all rules, which has a time."""
    limiter = Limiter.from_settings({"lists": {"deny": {"ip": ["192.0.2.7"]}}})
    limiter.clients.ban(None, {"ip": "192.0.2.8"}, "1h")
    kept = PreparedRejections(HeaderWriter())
    verdicts = [limiter.hit({"ip": f"192.0.2.{number}"}) for number in (7, 8)]
    bodies = {kept.find(verdict, accept).response.body for verdict in verdicts for accept in ACCEPTED}
    assert len(bodies) == 6


@each("options", [{"jitter_us": 5_000_000}, {"reset": "epoch"}])
def test_a_response_that_varies_is_not_kept(options: Any) -> None:
    """Clients with equal decisions wait for different times, or have another time of the reset."""
    kept = PreparedRejections(HeaderWriter(**options))
    clock = ManualClock(1_000_000.0)
    rate = Limiter([Rule(name="api", limits="1/minute")], clock=clock)
    seen = set()
    for number in range(30):
        rate.hit({"ip": f"192.0.2.{number}"})
        prepared = kept.find(rate.hit({"ip": f"192.0.2.{number}"}), "")
        assert str(int(dict(prepared.limit_headers)["Retry-After"])) in json.loads(prepared.response.body)["detail"]
        seen.add(tuple(prepared.limit_headers))
        clock.advance(1)
    assert len(seen) > 1


def test_few_responses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits may differ between clients, so memory has a bound."""
    monkeypatch.setattr(rejection_module, "_MAX_KEPT", 10)
    kept = PreparedRejections(HeaderWriter())
    verdicts = [verdict_of(Rule(name=f"r{number}", limits="1/minute")) for number in range(15)]
    found = [kept.find(verdict, "") for verdict in verdicts]
    again = [kept.find(verdict, "") for verdict in reversed(verdicts)]
    assert 0 < sum(each is first for each, first in zip(again, reversed(found), strict=True)) <= 10


@each(("status", "reason"), [(429, "Too Many Requests"), (403, "Forbidden"), (499, "Rejected")])
def test_every_status_has_a_reason_phrase(status: int, reason: str) -> None:
    """WSGI needs a reason phrase for registered and unregistered statuses."""
    assert Rejection(status, [], b"").reason == reason


# -- custom rejections -------------------------------------------------------------------------------------

OWN = Rejection(403, [("Content-Type", "text/plain"), ("X-RateLimit-Limit", "?"), ("Retry-After", "999")], b"no")


@each(
    ("kind", "rejection", "status", "body"),
    [
        (ASGISite, lambda request, verdict: OWN, 403, "no"),
        (WSGISite, lambda request, verdict: OWN, 403, "no"),
        (ASGISite, lambda request, verdict: JSONResponse({"wait": verdict.retry_after}, 420), 420, '{"wait":60.0}'),
        (WSGISite, lambda request, verdict: Response("busy", 420), 420, "busy"),
    ],
)
def test_a_function_replaces_the_rejection(kind: Any, rejection: Any, status: int, body: str) -> None:
    """It returns a Rejection or an application. The rate limit fields replace its own."""
    with kind(Rule(name="api", limits="1/minute"), rejection=rejection) as site:
        response = [site.call() for _ in range(2)][-1]
    assert (response.status_code, response.text) == (status, body)
    assert [name for name, _ in response.headers.multi_items() if name in FIELDS] == FIELDS
    assert response.headers.get_list("retry-after") == ["60"]
