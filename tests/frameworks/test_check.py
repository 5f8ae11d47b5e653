"""``check``, ``usage`` and rejections that code raises."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import flask
import pytest
from shared_store import SharedStore
from sites import BY_ASGI, CLIENT, SITES, Build, Call, Reply, Site, only
from starlette.requests import Request
from tables import each

from ratelimit_mw import ConfigError, Limiter, MissingMiddlewareError, RateLimitExceeded, Rejection, Rule, load_settings
from ratelimit_mw import flask as of_flask
from ratelimit_mw import starlette as of_starlette
from ratelimit_mw.testing import limits_off

IN_VIEWS: Any = {"view": ""}
RULES = [
    Rule(name="site", limits="100/minute"),
    Rule(name="post", limits="2/minute", key=["thread", "ip"], match=IN_VIEWS),
    Rule(name="mail", limits="2/minute", key=["email"], match=IN_VIEWS),
    Rule(name="failed", limits="2/minute", match=IN_VIEWS, count_when={"status": 401}),
    Rule(name="busy", limits="1 concurrent", match=IN_VIEWS),
]
TEXT = ("Content-Type", "text/plain")
QUEUE: Any = {"limits": "10/s burst 3", "algorithm": {"name": "leaky-bucket", "mode": "queue"}}
own = Limiter([Rule(name="own", limits="1/hour")])
own.hit({"ip": CLIENT})
with_usage = only(SITES.keys() - {"wsgi"})


async def act(call: Call) -> Reply:
    """Do what the path says, with the rule and the features of the query."""
    query, check = call.query, call.check
    rule, status = query.get("rule", "post"), int(query.get("status", "200"))
    features = {name: query[name] for name in ("thread", "email") if name in query}
    text = "done"
    try:
        match call.parameters["do"]:
            case "check":
                text = str((await check(rule, **features)).decisions[0].remaining)
            case "reset":
                _ = "status" in query and await check(rule, **features)
                await check.reset(rule, **features)
            case "usage":
                text = json.dumps(await call.usage(*filter(None, query.get("rules", "").split(",")), **features))
            case "settle":
                (await check(rule, **features))[rule].settle(0)
            case "raise":
                own.hit({"ip": CLIENT}).raise_for_limit()
    except RateLimitExceeded as error:
        if "catch" not in query:
            raise
        text = f"caught {error.verdict.rejected_by[0].rule}"
    return Reply(status, text)


def open_site(site: Build, rules: Any = RULES, **options: Any) -> Site:
    return site(rules, {"/{do}": act}, **options)


@pytest.fixture
def ask(site: Build) -> Callable[[str], Any]:
    served = open_site(site)
    return lambda path: served.call(path=path)


Ask = Callable[[str], Any]


def left(response: Any) -> tuple[int, str, str]:
    return response.status_code, response.text, response.headers.get("x-ratelimit-remaining")


def test_check_decides_a_rule_and_its_headers_show_it(ask: Ask) -> None:
    """The rule counts by what the view passes and by the client of the request. It rejects with a whole 429."""
    sent = [left(ask(f"/check?thread={thread}")) for thread in (7, 7, 8)]
    assert sent == [(200, "1", "1"), (200, "0", "0"), (200, "1", "1")]
    rejected = ask("/check?thread=7")
    assert rejected.status_code == 429
    assert rejected.headers["Retry-After"] == "60"
    assert rejected.headers["RateLimit"] == '"post";r=0;t=60'
    assert rejected.headers["Content-Type"] == "application/problem+json"
    assert rejected.json()["violated-policies"] == ["post"]


def test_rules_before_a_check_stay_counted(site: Build) -> None:
    """The rejection of a check refunds nothing, because the view has run."""
    served = open_site(site)
    assert served.statuses(3, path="/check?thread=7") == [200, 200, 429]
    assert served.limiter.peek({"ip": CLIENT}, cost=0).decisions[0].remaining == 97
    policy = served.call(path="/check?thread=8").headers["RateLimit-Policy"]
    assert policy == '"site";q=100;w=60, "post";q=2;w=60'


def test_reset_forgets_one_key(ask: Ask) -> None:
    for thread in (7, 7, 8, 8):
        ask(f"/check?thread={thread}")
    assert ask("/reset?thread=7").text == "done"
    assert [ask(f"/check?thread={thread}").status_code for thread in (7, 8)] == [200, 429]


@each("rule", ["post", "failed"])
def test_the_headers_after_a_reset_show_the_whole_limit(site: Build, rule: str) -> None:
    """A login that fails twice and then succeeds shows its client a limit that nothing has been consumed of."""
    served = open_site(site)
    served.statuses(2, path=f"/check?rule={rule}&thread=7&status=401")
    served.limiter.reset(rule, {"thread": "7", "ip": CLIENT} if rule == "post" else {"ip": CLIENT})
    shown = served.call(path=f"/reset?rule={rule}&thread=7&status=401")
    assert f'"{rule}";r=2;t=1' in shown.headers["RateLimit"]
    assert shown.headers["X-RateLimit-Remaining"] == "97"


@each(
    ("paths", "statuses"),
    [
        (["/settle?thread=7"] * 3, [200] * 3),  # a cost of zero returns everything at the end
        (["/check?rule=busy"] * 3, [200] * 3),  # each request returns the slot of its check
        (["/check?rule=failed&status=200"] * 3 + ["/check?rule=failed&status=401"] * 3, [200] * 3 + [401, 401, 429]),
        (
            [f"/check?rule=mail&email={name}" for name in ("ann@b\u00fccher.example", "Ann@xn--bcher-kva.example")] * 2,
            [200, 200, 429, 429],
        ),
        (["/check?rule=pst", "/check", "/reset?rule=pst"], [500] * 3),  # mistakes
    ],
)
def test_a_check_costs_what_it_says(ask: Ask, paths: list[str], statuses: list[int]) -> None:
    assert [ask(path).status_code for path in paths] == statuses


def test_a_view_catches_a_rejection(ask: Ask) -> None:
    """The view responds as it likes, for example with an error in a form. The headers still show the rejection."""
    assert left([ask("/check?thread=7&catch=1") for _ in range(3)][-1]) == (200, "caught post", "0")


def test_a_rejection_of_another_limiter_is_a_429(ask: Ask) -> None:
    """Any ``RateLimitExceeded`` that leaves a view becomes the response to a rejection, with its own headers."""
    rejected = ask("/raise")
    assert (rejected.status_code, rejected.headers["RateLimit"][:9]) == (429, '"own";r=0')
    assert rejected.json()["violated-policies"] == ["own"]
    assert int(rejected.headers["Retry-After"]) > 1000


@each("is_test", [True, False])
def test_without_limits_nothing_is_decided(site: Build, is_test: bool) -> None:
    """With ``limits_off`` in tests, or ``enabled = false``, nothing uses features, functions or the store."""
    store, keys = SharedStore(), list[str]()

    def limits_of(key: str) -> str:
        keys.append(key)
        return "2/minute"

    rules = [*RULES, Rule(name="found", key=["thread"], limits=limits_of, match=IN_VIEWS)]
    served = open_site(site, Limiter(rules, store, settings=load_settings({"enabled": is_test})))
    usages = [] if site.name == "wsgi" else ["/usage", "/usage?rules=post", "/usage?rules=found&thread=7"]
    with limits_off() if is_test else nullcontext():
        for path in ("/reset", "/reset?thread=7", "/reset?rule=found&thread=7", *["/raise"] * is_test, *usages):
            assert served.call(path=path).status_code == 200, path
        assert [served.call(path=path).json() for path in usages] == [{}] * len(usages)
    assert (store.calls, keys) == (0, [])


@each(
    ("path", "status", "statuses", "remaining"),
    [
        ("/check?thread=7", 403, [200, 200, 403], 8),
        ("/check?thread=7", 429, [200, 200, 429], 9),
        ("/raise", 429, [429] * 3, 9),
    ],
)
def test_your_own_response_is_sent(site: Build, path: str, status: int, statuses: list[int], remaining: int) -> None:
    """``rejection`` responds to checks and other limiters, too. Its status is the outcome that other rules count."""
    rules = [*RULES, Rule(name="forbidden", limits="9/minute", count_when={"status": [403]})]
    served = open_site(site, rules, rejection=lambda *_: Rejection(status, [("X-Own", "1"), TEXT], b"no"))
    responses = [served.call(path=path) for _ in range(3)]
    assert [response.status_code for response in responses] == statuses
    assert (responses[-1].headers.get("X-Own"), responses[-1].text) == ("1", "no")
    left_of = {each.rule: each.remaining for each in served.limiter.peek({"ip": CLIENT}, cost=0).decisions}
    assert left_of == {"site": 97, "forbidden": remaining}


def test_a_function_may_leave_the_response_to_the_package(site: Build) -> None:
    """Such as for some paths. A rejection of the middleware and one of a check are alike."""
    served = open_site(site, [Rule(name="all", limits="3/minute"), RULES[1]], rejection=lambda *_: None)
    responses = [served.call(path="/check?thread=7") for _ in range(4)]
    assert [response.status_code for response in responses] == [200, 200, 429, 429]
    assert [response.json()["violated-policies"] for response in responses[2:]] == [["post"], ["all"]]


@only(SITES.keys() - {"django", "async django"})  # which have one line of each name
def test_a_rejection_keeps_all_cookies_and_headers(site: Build) -> None:
    """Each ``Set-Cookie`` of a rejection is sent as it is written, and other equal names keep all values."""
    lines = ["a=1; Path=/; Partitioned", "b=2; HttpOnly; Priority=High", "a=1; Path=/x"]
    headers = [TEXT, ("Vary", "Cookie"), ("vary", "Origin"), *(("Set-Cookie", line) for line in lines)]
    served = open_site(site, rejection=lambda *_: Rejection(429, headers, b"no"))
    rejected = [served.call(path="/check?thread=7") for _ in range(3)][-1].headers
    assert [line.strip() for line in rejected.get_list("set-cookie")] == lines
    assert {"Cookie", "Origin"} <= {part.strip() for part in rejected["vary"].split(",")}


def test_a_queue_delays_a_check(site: Build, delays: list[float]) -> None:
    """The view waits for its turn."""
    served = open_site(site, Rule(name="post", match=IN_VIEWS, **QUEUE))
    assert served.statuses(2, path="/check") == [200, 200]
    assert delays == [0.1]


def test_a_stream_runs_in_its_request(site: Build) -> None:
    """Its slots are held until it ends, and its true cost is settled."""

    async def view(call: Call) -> Reply:
        async def parts() -> AsyncIterator[bytes]:
            verdict = call.verdict
            for _ in range(2):
                try:
                    await call.check("busy")
                    yield b"yes "
                except RateLimitExceeded:
                    yield b"no "
            verdict["tokens"].settle(150)

        return Reply(body=parts())

    failed = Rule(name="failures", limits="9/minute", count_when={"status": 401})  # settled before the slots
    served = site([Rule(name="tokens", limits="1000/minute", cost=100), failed, RULES[-1]], view)
    assert served.call().text == "yes no "
    assert served.left() == [850, 9, 1]


@only(SITES.keys() - {"flask", "wsgi"})  # their requests have ended then
def test_a_check_after_the_response_decides_at_once(site: Build) -> None:
    """A background task finds its request. The slots of such a check are returned at once."""
    calls: list[Call] = []

    async def view(call: Call) -> int:
        calls.append(call)
        return 200

    served = site(RULES, view)
    assert served.statuses(1) == [200]
    assert [served.run(calls[0].check("busy")).allowed for _ in range(3)] == [True] * 3


# -- many checks in one request --------------------------------------------------------------------------------


def mail(limits: str, **options: Any) -> Rule:
    return Rule(name="mail", limits=limits, match=IN_VIEWS, **options)


def test_headers_show_a_limit_once(site: Build) -> None:
    """A proxy rejects long headers. Of several keys, the headers show the one with the least left."""

    async def view(call: Call) -> int:
        for to in ("ann", "ben", "ann"):
            await call.check("mail", to=to)
        return 200

    response = site(mail("9/minute;20/hour", key=["to"]), view).call()
    assert response.headers["RateLimit"] == '"mail";r=7;t=60, "mail-2";r=18;t=3600'
    assert response.headers["RateLimit-Policy"] == '"mail";q=9;w=60, "mail-2";q=20;w=3600'
    assert response.headers["X-RateLimit-Remaining"] == "7"


@each(("outcome", "left"), [({}, 8), ({"count_when": {"status": 401}}, 9)])
def test_a_stream_counts_by_the_status_it_has_started_with(site: Build, outcome: dict[str, Any], left: int) -> None:
    """A rule that counts failures counts no check of a stream with the status 200."""

    async def view(call: Call) -> Reply:
        async def parts() -> AsyncIterator[bytes]:
            yield b"part"
            await call.check("mail")

        return Reply(body=parts())

    served = site(mail("9/minute", **outcome), view)
    assert (served.call().text, served.left()) == ("part", [left])


def test_the_true_cost_is_that_of_the_checks_since_the_last_one(site: Build) -> None:
    """The view checks an estimate twice and settles once, and then checks and settles each part of its work."""

    async def view(call: Call) -> int:
        for used in ([140, 150], [20], [30]):
            for _ in used:
                await call.check("mail")
            for cost in used:
                call.verdict["mail"].settle(cost)
        return 200

    served = site(mail("1000/day", cost=10), view)
    assert (served.statuses(1), served.left()) == ([200], [1000 - 150 - 20 - 30])


def test_each_key_has_the_true_cost(site: Build) -> None:
    """The view checks two senders, and settles what it has sent for both."""

    async def view(call: Call) -> int:
        for sender in ("ann", "ben"):
            await call.check("mail", sender=sender)
        call.verdict["mail"].settle(150)
        return 200

    served = site(mail("1000/day", key=["sender"]), view)
    assert served.statuses(1) == [200]
    assert [served.left(sender=sender) for sender in ("ann", "ben")] == [[850], [850]]


@only(BY_ASGI)
def test_a_rejection_in_a_group_of_tasks_is_a_429(site: Build) -> None:
    """Python wraps the error of a task in a group. A group with another error is an error of the view."""

    async def view(call: Call) -> int:
        async def fail() -> None:
            raise LookupError

        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as group:
            group.create_task(call.check("mail"))
            if "fails" in call.query:
                outer.create_task(fail())
        return 200

    served = site(mail("1/minute"), view)
    responses = [served.call(), served.call(), served.call(path="/?fails")]
    assert [response.status_code for response in responses] == [200, 429, 500]
    assert responses[1].headers["RateLimit"] == '"mail";r=0;t=60'


# -- usage -----------------------------------------------------------------------------------------------------


@with_usage
def test_usage_is_what_is_left_of_a_rule(ask: Ask) -> None:
    """The request itself counts for the rules of the site, and usage consumes nothing more."""
    assert ask("/usage?rules=site").json() == {"site": {"limit": 100, "remaining": 99, "reset_after": 20.0}}
    ask("/check?thread=7")
    assert [ask(f"/usage?rules=post&thread={thread}").json()["post"]["remaining"] for thread in (7, 7, 8)] == [1, 1, 2]
    assert ask("/usage?rules=site").json()["site"]["remaining"] == 94


@with_usage
def test_without_names_all_rules_with_a_key_are_shown(ask: Ask) -> None:
    """Rules whose features nobody knows in this request are left out."""
    assert list(ask("/usage").json()) == ["site", "failed", "busy"]
    assert list(ask("/usage?thread=7").json()) == ["site", "post", "failed", "busy"]


@with_usage
def test_the_order_of_usage_is_that_of_the_names(ask: Ask) -> None:
    """Rules of slots have a rest, too. An unknown rule, and a rule whose feature nothing provides, are errors."""
    assert [ask(f"/usage?rules={rules}").status_code for rules in ("sit", "post")] == [500, 500]
    usage = ask("/usage?rules=busy,site").json()
    assert list(usage) == ["busy", "site"]
    assert usage["busy"] == {"limit": 1, "remaining": 1, "reset_after": 0.0}


@with_usage
def test_usage_shows_the_limit_with_the_least_left(site: Build) -> None:
    """Of several limits it shows the one with the smallest share left, and no rule in shadow mode."""
    rules = [Rule(name="inner", limits=["15/hour", "10/minute"]), Rule(name="seen", limits="1/hour", mode="shadow")]
    served = open_site(site, rules)
    usage = served.call(path="/usage").json()
    assert {name: (left["limit"], left["remaining"]) for name, left in usage.items()} == {"inner": (10, 9)}


@with_usage
@each("error", [OSError, ConfigError])
def test_an_error_of_your_function_is_one_of_usage(site: Build, error: type[Exception]) -> None:
    """The function of a feature may need its own route. Then name the rules that the view shows."""

    def fail(_: Any) -> str:
        raise error("no team")

    team = Rule(name="team", limits="1/s", key=["team"], match={"path": "/team"}, unrouted=True)
    served = open_site(site, [RULES[0], team], features={"team": fail})
    paths = ("/usage", "/usage?rules=team", "/usage?rules=site")
    assert [served.call(path=path).status_code for path in paths] == [500, 500, 200]


@with_usage
def test_a_rule_whose_limits_fail_has_nothing_left(site: Build) -> None:
    """It rejects the client, so no other rule is shown."""

    def fail(_: Any) -> str:
        raise OSError

    served = open_site(site, [RULES[0], Rule(name="down", limits=fail, match=IN_VIEWS)])
    usage = served.call(path="/usage").json()
    assert {name: left["remaining"] for name, left in usage.items()} == {"down": 0}


FLASK_CALLS = [of_flask.usage, of_flask.verdict, lambda: of_flask.check("a"), lambda: of_flask.check.reset("a")]


@each("call", FLASK_CALLS)
def test_without_a_middleware_a_call_is_an_error(call: Any) -> None:
    """A limit is never silently absent. While limits are off, there is none to decide."""
    with flask.Flask("app").test_request_context("/"):
        with pytest.raises(MissingMiddlewareError, match="no RateLimitMiddleware handled"):
            call()
        with limits_off():
            assert not getattr(call(), "rules", ())


@each("call", [of_starlette.usage, of_starlette.check, of_starlette.check.reset])
def test_without_limits_an_async_call_decides_nothing(call: Any) -> None:
    connection = Request({"type": "http", "headers": []})

    async def scenario() -> None:
        assert not getattr(await call(connection, "post"), "rules", ())

    with limits_off():
        asyncio.run(scenario())


@only(SITES.keys() - {"asgi"})
def test_verdict_returns_what_the_framework_shows(site: Build) -> None:
    """It has the decisions of the middleware and those of the view, with a type. Without limits it has none."""

    async def see(call: Call) -> str:
        read = partial(call.site.of.verdict, *(() if site.name == "flask" else (call.native,)))
        before = read().rules
        if site.name == "flask":  # for WSGI applications around it
            assert call.native.environ["ratelimit_mw.verdict"].rules == before
        await call.check("post", thread="7")
        assert read().rules == call.verdict.rules
        return f"{before} {read().rules}"

    served = site(RULES, see)
    assert served.call().text == "('site',) ('site', 'post')"


@with_usage
def test_usage_and_reset_need_no_estimate(site: Build) -> None:
    """They consume nothing, so the body of their own request is not read. A rule by its fields is left out."""
    match: Any = {"path": "/write"}
    by_mail = Rule(name="mail", limits="9/minute", key=["json:email"], match=match)
    served = open_site(site, [Rule(name="post", limits="1000/minute", cost="json:max_tokens", match=match), by_mail])
    served.call("POST", "/write", json={"max_tokens": 300})
    assert {name: left["remaining"] for name, left in served.call(path="/usage").json().items()} == {"post": 700}
    assert served.call(path="/reset").text == "done"
    assert served.call(path="/usage").json()["post"]["remaining"] == 1000


def test_a_view_passes_the_estimate_to_check(site: Build) -> None:
    """The cost is a feature that only the view knows. Without it, the check is an error."""
    served = open_site(site, Rule(name="post", limits="100/hour", cost="thread", match=IN_VIEWS))
    assert [served.call(path=f"/check?thread={pages}").text for pages in (30, 30)] == ["70", "40"]
    assert [served.call(path=path).status_code for path in ("/check?thread=41", "/check")] == [429, 500]
