"""A request is decided, counted or rejected, and what its client and its view see."""

from datetime import UTC, datetime
from typing import Any

import pytest
from shared_store import SharedStore
from sites import CLIENT, NOW, PLAIN, Build, Call, Reply, limited, only, routed
from tables import each

from ratelimit_mw import Limiter, Rejection, Rule, Verdict
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import limits_off

FIELDS = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-policy", "ratelimit"]
ONCE, TWICE = Rule(name="api", limits="1/minute"), Rule(name="api", limits="2/minute")
DOUBLE: Any = {"name": "api", "limits": "1/minute", "cost": lambda _: 2}
"""The options of a rule that rejects each request."""


def limit_fields(response: Any) -> list[str]:
    return [name for name, _ in response.headers.multi_items() if "limit" in name]


async def rules_of(call: Call) -> str:
    return ",".join(call.verdict.rules)


def test_a_request_over_the_limit_is_rejected(site: Build) -> None:
    """The third of two gets a whole 429, and the view is not called."""
    calls: list[Call] = []

    async def view(call: Call) -> str:
        calls.append(call)
        return "hello"

    served = site(TWICE, view)
    first, _, third = (served.call() for _ in range(3))
    assert (first.status_code, first.text, first.headers["ratelimit"]) == (200, "hello", '"api";r=1;t=60')
    assert sorted(limit_fields(first)) == sorted(limit_fields(third)) == sorted(FIELDS)
    assert "retry-after" not in first.headers
    assert (third.status_code, third.headers["retry-after"], third.headers["cache-control"]) == (429, "60", "no-store")
    assert third.headers["content-type"] == "application/problem+json"
    assert third.json()["violated-policies"] == ["api"]
    assert "<h1>Too Many Requests" in served.call(headers={"accept": "text/html"}).text
    assert len(calls) == 2


def test_head_consumes_like_get_and_has_no_body(site: Build) -> None:
    """A rejected HEAD has the headers of the rejection without the body."""
    served = site(Rule(limits="2/minute", match={"methods": ["GET"]}))
    assert [served.call(method).status_code for method in ("GET", "HEAD", "GET")] == [200, 200, 429]
    rejected = served.call("HEAD")
    assert (rejected.status_code, rejected.content) == (429, b"")
    assert int(rejected.headers["content-length"]) == len(served.call().content) > 0


def test_an_invalid_host_does_not_evade_a_rule(site: Build) -> None:
    """A rule for one host applies to it in every spelling, and where nobody knows the host."""
    served = site(Rule(limits="3/minute", match={"host": "shop.example"}, key=[]))
    hosts = ("shop.example", "other.example", "SHOP.example.:80", "shop example", "other.example", "a b")
    assert [served.call(headers={"host": host}).status_code for host in hosts] == [200] * 5 + [429]


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")
def test_a_lowercase_method_does_not_evade_a_rule(site: Build) -> None:
    """Servers pass methods on unchanged and some frameworks capitalise them, so rules ignore the case."""
    served = site(Rule(limits="1/minute", match={"methods": ["POST"]}, key=["method"]))
    assert [served.call(method).status_code for method in ("POST", "post")] == [200, 429]


@only(PLAIN)
def test_options_count_where_no_framework_is_known(site: Build) -> None:
    """The application itself responds to OPTIONS, so the request counts as any other."""
    assert site(ONCE).statuses(2, "OPTIONS") == [200, 429]


def test_a_request_without_a_route_gets_a_decision(site: Build) -> None:
    response = site(TWICE).call(path="/nowhere")
    assert (response.status_code, response.headers["x-ratelimit-remaining"]) == (404, "1")


@each("path", ["/free", "/api/free"])
def test_a_request_that_matches_no_rule_has_an_empty_verdict(site: Build, path: str) -> None:
    """The verdict has no decisions. A cost that the view settles on it does not reach the next request."""
    verdicts: list[Verdict] = []

    async def view(call: Call) -> int:
        verdicts.append(call.verdict)
        call.verdict["api"].settle(7)
        return 200

    served = site(Rule(name="api", limits="2/minute", match={"path": "/api"}), {"/api": rules_of, path: view})
    assert served.call(path="/api").text == "api"
    assert [limit_fields(served.call(path=path)) for _ in range(2)] == [[], []]
    assert [(bool(verdict), verdict.decisions, verdict.retry_after) for verdict in verdicts] == [(True, (), 0.0)] * 2
    assert verdicts[0] is not verdicts[1]


def test_rate_limit_fields_of_the_view_are_replaced(site: Build) -> None:
    """In any spelling. Its Retry-After stays."""
    own = [("x-ratelimit-limit", "999"), ("RATELIMIT", "no"), ("RateLimit-Policy", "y"), ("retry-after", "3")]
    response = site(TWICE, Reply(503, headers=own)).call()
    assert sorted(limit_fields(response)) == sorted(FIELDS)
    assert (response.headers["x-ratelimit-limit"], response.headers["ratelimit"]) == ("2", '"api";r=1;t=60')
    assert response.headers["retry-after"] == "3"


def test_options_of_the_middleware_replace_those_of_the_file(site: Build) -> None:
    """The other options of the file stay."""
    settings = {"rules": [{"name": "api", "limits": "5/minute"}], "headers": ["ratelimit"], "reset": "epoch"}
    response = site(settings, headers=["x-ratelimit"]).call()
    assert sorted(limit_fields(response)) == sorted(FIELDS[:3])
    assert int(response.headers["x-ratelimit-reset"]) >= 1_000_000


@each("is_async", [False, True])
def test_your_own_rejection_is_sent(site: Build, is_async: bool) -> None:
    """The function may be async where something can await it. It receives the request of the framework."""

    def reject(request: Any, verdict: Verdict) -> Rejection:
        assert not verdict.allowed
        return Rejection(420, [("content-type", "text/plain")], request.headers["x-who"].encode())

    async def areject(request: Any, verdict: Verdict) -> Rejection:
        return reject(request, verdict)

    if is_async and site.name == "wsgi":
        return
    served = site(Rule(**DOUBLE), rejection=areject if is_async else reject)
    rejected = served.call(headers={"x-who": "ann"})
    assert (rejected.status_code, rejected.text, "ratelimit" in rejected.headers) == (420, "ann", True)
    assert served.call("HEAD", headers={"x-who": "ann"}).content == b""


@each(("own", "cached"), [([], "no-store"), ([("Cache-Control", "private, max-age=9")], "private, max-age=9")])
def test_no_cache_keeps_your_own_rejection(site: Build, own: Any, cached: str) -> None:
    """Some caches keep an error for seconds, for all clients. A header of your own stays."""
    served = site(TWICE, rejection=lambda *_: Rejection(503, [("Content-Type", "text/plain"), *own], b"busy"))
    lines = [served.call().headers.get_list("cache-control") for _ in range(3)]
    assert lines == [[], [], [cached]]


def test_a_failing_function_allows_no_request(site: Build) -> None:
    """The error of a feature function is an error of the application, with each request."""
    assert site(Rule(limits="9/minute", key=["plan"]), features={"plan": lambda _: 1 / 0}).statuses(2) == [500, 500]


@each(("rule", "statuses"), [({"on_store_error": "deny"}, [503] * 3), ({}, [200, 200, 429])])
def test_a_store_failure_is_no_error(site: Build, rule: Any, statuses: list[int]) -> None:
    """Each process limits on its own, or rejects where the rule says so."""
    store = SharedStore()
    store.down = True
    assert site(Rule(name="api", limits="2/minute", **rule), store=store).statuses(3) == statuses


@routed
def test_rules_of_settings_and_view_need_one_call_of_the_store(site: Build) -> None:
    """They are all or nothing."""
    store = SharedStore()
    served = site(Rule(name="all", limits="9/minute"), limited(200, "2/minute", name="view"), store=store)
    responses = [served.call() for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert store.calls == 3
    assert responses[1].headers["ratelimit"] == '"all";r=7;t=60, "view";r=0;t=60'
    assert served.left() == [7, 0]


FEATURES = {
    "method": "GET",
    "path": "/a b",
    "host": "testserver",
    "header:x-api-key": "k1",
    "cookie:session": "s1",
    "query:q": "\u00e9",
    "ip": CLIENT,
}


@each("name", FEATURES)
def test_all_frameworks_make_the_same_key(site: Build, name: str) -> None:
    """So applications in several frameworks share the counts of one store."""
    served = site(Rule(limits="9/minute", key=[name]))
    served.call(path="/a%20b?q=%C3%A9", headers={"x-api-key": "k1", "cookie": "session=s1"})
    assert served.left(**{name: FEATURES[name]}) == [8]


def test_every_spelling_of_an_ip_address_shares_a_limit(site: Build) -> None:
    """IPv4 in IPv6 form is the IPv4 address, and a forged X-Forwarded-For changes nothing."""
    served = site(ONCE)
    clients = ("::ffff:192.0.2.1", "::ffff:192.0.2.2", "192.0.2.1")
    assert [served.call(client=client).status_code for client in clients] == [200, 200, 429]
    assert served.call(client="192.0.2.1", headers={"X-Forwarded-For": "203.0.113.9"}).status_code == 429
    behind = site(ONCE, trusted_proxies=[CLIENT])
    clients = ("203.0.113.9", "1.2.3.4, 203.0.113.8", "5.6.7.8, 203.0.113.8")
    assert [behind.call(headers={"x-forwarded-for": client}).status_code for client in clients] == [200, 200, 429]


def test_requests_without_a_client_address_share_a_limit(site: Build) -> None:
    """A Unix socket has none."""
    served = site(ONCE)
    assert [served.call(client=client).status_code for client in (None, None, CLIENT)] == [200, 429, 200]


@routed
def test_limits_off_turns_limits_off(site: Build) -> None:
    """No request is rejected and no header is added."""
    served = site(Rule(**DOUBLE), limited(200, "1/minute", cost=lambda _: 2))
    with limits_off():
        response = served.call()
    assert (response.status_code, limit_fields(response)) == (200, [])
    assert served.call().status_code == 429


@routed
def test_concurrent_requests_share_one_limit(site: Build) -> None:
    """Of 40 concurrent requests, the first ones included, exactly as many pass as the limit allows."""
    served = site(Rule(limits="100/minute"), limited(200, "7/minute"))
    assert served.at_once(40) == [200] * 7 + [429] * 33


# -- several layers of limits ----------------------------------------------------------------------------------


def test_the_same_limiter_around_itself_decides_once(site: Build) -> None:
    """Both middlewares consume once and write the headers once."""
    limiter = Limiter([Rule(name="api", limits="3/minute")])
    served = site(limiter, outer=limiter)
    responses = [served.call() for _ in range(4)]
    assert [response.status_code for response in responses] == [200, 200, 200, 429]
    assert sorted(limit_fields(responses[0])) == sorted(FIELDS)


@routed
def test_the_inner_middleware_decides_only_the_decorators(site: Build) -> None:
    """The outer one has decided the rules of the settings."""
    limiter = Limiter([Rule(name="api", limits="3/minute")])
    served = site(limiter, {"/": limited(rules_of, "1/minute", name="view"), "/free": rules_of}, outer=limiter)
    assert served.call(path="/free").headers["x-ratelimit-remaining"] == "2"
    assert [served.call(path="/free").text, served.call().text] == ["api", "api,view"]
    served.limiter.reset("api", {"ip": CLIENT})
    assert served.statuses(1) == [429]


def test_the_inner_middleware_checks_the_lists_again(site: Build) -> None:
    """The outer one has no user, so the inner one applies the deny list. No rule consumes twice."""
    settings = {"rules": [{"name": "api", "limits": "5/minute"}], "lists": {"deny": {"user": ["eve"]}}}
    limiter = Limiter.from_settings(settings)
    outer = {"limiter": limiter, "features": {"user": lambda _: None}}
    served = site(limiter, rules_of, features={"user": lambda request: request.headers.get("x-user")}, outer=outer)
    assert served.call(headers={"x-user": "eve"}).status_code == 403
    responses = [served.call(headers={"x-user": "ann"}) for _ in range(2)]
    assert [(each.text, each.headers["x-ratelimit-remaining"]) for each in responses] == [("api", "3"), ("api", "2")]


def test_two_different_limiters_both_decide(site: Build) -> None:
    """The outer one writes the headers, except those of a rejection, which its numbers would contradict."""
    for headers, inner in (["x-ratelimit", "ratelimit"], ["1"]), (["ratelimit"], []):
        served = site(ONCE, headers=headers, outer=Limiter([Rule(name="outer", limits="9/minute")]))
        responses = [served.call() for _ in range(2)]
        assert [response.status_code for response in responses] == [200, 429]
        assert [response.headers.get_list("x-ratelimit-limit") for response in responses] == [["9"], inner]
        assert responses[1].headers["retry-after"] == "60"
        assert responses[1].headers["ratelimit"] == '"api";r=0;t=60'


def test_limiters_with_equal_rules_are_not_the_same(site: Build) -> None:
    """Each counts for itself."""
    outer = Limiter([TWICE])
    served = site(TWICE, outer=outer)
    assert served.statuses(1) == [200]
    assert [limiter.peek({"ip": CLIENT}, cost=0).decisions[0].remaining for limiter in (outer, served.limiter)] == [
        1,
        1,
    ]


def test_a_view_sees_the_verdict_of_the_innermost_limiter(site: Build) -> None:
    """Its ``check`` and ``usage`` know the rules of this limiter, and no others."""
    outer = Limiter([Rule(name="outer", limits="9/minute")])
    assert site(Rule(name="inner", limits="1/minute"), rules_of, outer=outer).call().text == "inner"


# -- bans, schedules and random waits --------------------------------------------------------------------------


END = datetime(2026, 1, 7, 18, tzinfo=UTC).timestamp()  # a Wednesday


def test_a_ban_has_its_end(place: Build) -> None:
    """The client is rejected once, which bans it. The wait of both rejections is the end of the ban."""
    ban: Any = {"after": 1, "within": "1m", "for": "1h"}
    served = place({"name": "login", "limits": "1/minute", "ban": ban}, 200, store=SharedStore())
    responses = [served.call() for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 429, 429]
    assert [response.headers.get("retry-after") for response in responses] == [None, "3600", "3600"]
    assert [response.headers["x-ratelimit-remaining"] for response in responses] == ["0", "0", "0"]


@each("store", [MemoryStore, SharedStore])
def test_headers_show_the_limits_in_force(place: Build, store: Any) -> None:
    """A schedule changes them."""
    schedule = {"mon-fri 08:00-18:00": "1/minute"}
    rule = {"limits": "3/minute", "name": "login", "schedule": schedule, "algorithm": "fixed-window"}
    served = place(rule, 200, store=store())
    served.clock.advance(END - 60 - NOW)
    responses = [served.call(), served.call()]
    served.clock.advance(60)
    responses.append(served.call())
    assert [response.status_code for response in responses] == [200, 429, 200]
    for header, expected in {
        "ratelimit-policy": ['"login";q=1;w=60', '"login";q=1;w=60', '"login";q=3;w=60'],
        "x-ratelimit-limit": ["1", "1", "3"],
        "x-ratelimit-remaining": ["0", "0", "2"],
        "retry-after": [None, "60", None],
    }.items():
        assert [response.headers.get(header) for response in responses] == expected


def test_a_random_wait_is_the_same_in_the_headers_and_the_body(site: Build) -> None:
    """The client may read either of them."""
    served = site({"limits": "1/minute"}, headers=["ratelimit"], retry_jitter="1h")
    served.call()
    for rejected in [served.call() for _ in range(3)]:
        wait = rejected.headers["retry-after"]
        assert str(rejected.json()["retry-after"]) == wait
        assert rejected.headers["ratelimit"] == f'"default";r=0;t={wait}'
