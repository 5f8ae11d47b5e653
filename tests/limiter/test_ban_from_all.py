"""Bans by hand from all rules: in every process that shares the store, and in the response to the client."""

import math
import pickle
from typing import Any

import pytest
from calls import ask
from override_stores import Recording, limiter_of
from servers import wait_for
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tables import each, expect_error

from ratelimit_mw import Limiter, RateLimitExceeded, Rule, load_settings
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock

START = 1_000_000.0
WHO = {"ip": "192.0.2.7"}
OTHER = {"ip": "192.0.2.8"}
API = Rule(name="api", limits="100/minute", match={"path": "/api"})
ANN = {"user": "Ann", "ip": "192.0.2.7"}


@pytest.mark.slow
def test_a_client_is_banned_in_every_process(workers: tuple[Limiter, Limiter]) -> None:
    """On every store that processes share, from the next look at the overrides on, and until the ban is lifted."""
    first, second = workers
    assert second.hit(WHO).allowed
    first.clients.ban(None, WHO, "1h")
    wait_for(lambda: not second.hit(WHO).allowed, "the ban")
    verdict = second.hit(WHO)
    assert (verdict.banned, verdict.denied, verdict.status) == (True, False, 403)
    assert 3500 < (verdict.retry_after or 0) <= 3600
    assert second.hit(OTHER).allowed
    assert [(ban.rule, ban.client) for ban in bans_of(second)] == [("", "ip=192.0.2.7")]
    assert second.clients.unban(None, WHO)
    wait_for(lambda: first.hit(WHO).allowed, "the end of the ban")


def bans_of(limiter: Limiter) -> list[Any]:
    return limiter.clients.bans().decisions


def test_a_ban_from_all_rules_ends() -> None:
    """Paths without a rule are rejected, too. A ban without a duration has no end."""
    clock = ManualClock(START)
    limiter = limiter_of(API, clock=clock)
    assert limiter.clients.ban(None, WHO, "10m") == START + 600
    assert limiter.clients.ban(None, OTHER) == math.inf
    assert [limiter.hit({**each, "path": "/other"}).banned for each in (WHO, OTHER, {"ip": "192.0.2.9"})] == [1, 1, 0]
    found = {each.client: (each.retry_after, each.reset_after) for each in bans_of(limiter)}
    assert found == {"ip=192.0.2.7": (600.0, 600.0), "ip=192.0.2.8": (None, 0.0)}
    assert [limiter.clients.bans(*page).decisions for page in (("api",), (None, "0:1"))] == [[], []]
    assert limiter.clients.overrides() == []
    clock.advance(600)
    assert [limiter.hit(each).allowed for each in (WHO, OTHER)] == [True, False]
    assert [each.client for each in bans_of(limiter)] == ["ip=192.0.2.8"]
    assert [limiter.clients.unban(None, each) for each in (WHO, OTHER)] == [False, True]
    assert limiter.hit(OTHER).allowed


def test_a_ban_that_has_ended_slows_no_request() -> None:
    """At the next look at the overrides, even if nobody changes them. Other bans stay. The clock may be set back."""
    clock, store = ManualClock(START), Recording()
    limiter = limiter_of(API, store=store, clock=clock)
    limiter.clients.ban(None, WHO, "10m")
    limiter.clients.ban(None, OTHER, "20m")
    steps = (600, True, [True, False]), (600, False, [True, True]), (-300, True, [True, False])
    for seconds, are_there, left in steps:
        clock.advance(seconds)
        reads = store.reads
        wait_for(lambda before=reads: limiter.hit(WHO).allowed and store.reads > before + 1, "two more looks")
        assert (limiter.rules.lists.bans is not None) is are_there
        assert [limiter.hit(each).allowed for each in (WHO, OTHER)] == left


@each(
    ("named", "request_", "is_banned"),
    [
        ({"user": "ann"}, {"user": " ANN "}, True),
        ({"user": "ann"}, {"user": "bob"}, False),
        ({"user": "ann"}, {}, False),
        (ANN, ANN, True),
        (ANN, {**ANN, "ip": "192.0.2.8"}, False),
        ({"ip": "2001:db8::1"}, {"ip": "2001:db8::2"}, True),
        ({"account": {"id": 7}}, {"account": {"id": 7}}, True),
    ],
)
def test_a_client_is_named_as_in_a_key(named: Any, request_: Any, is_banned: bool) -> None:
    """By one feature or by several together, in any spelling, with and without a secret."""
    rules: list[dict[str, Any]] = [{"name": "api", "limits": "9/minute", "key": ["user|ip"]}]
    rules.append({"name": "account", "limits": "9/minute", "key": ["account.id"]})
    for secret in ({}, {"secret": "s" * 20, "keyed": ["user", "ip"]}):
        limiter = Limiter.from_settings({"rules": rules, **secret}, clock=ManualClock(START))
        limiter.clients.ban(None, named, "1h")
        assert limiter.hit(request_).banned is is_banned
        assert b"ann" not in (limiter.store.read_record("overrides") or b"") or not secret


def test_the_allow_list_comes_first_and_exempt_paths_last() -> None:
    settings = {"rules": [{"limits": "9/minute"}], "lists": {"allow": {"ip": ["192.0.2.7"]}}, "exempt": ["/health"]}
    limiter = Limiter.from_settings(settings, clock=ManualClock(START))
    expect_error("allow list", limiter.clients.ban, None, WHO)
    limiter.clients.ban(None, OTHER)
    assert limiter.hit({**OTHER, "path": "/health"}).banned


def test_a_ban_by_a_feature_of_other_rules_is_not_active(caplog: pytest.LogCaptureFixture) -> None:
    """Another application with the same store may set it. Other bans and overrides stay active."""
    first = limiter_of(Rule(name="api", key=["plan"], limits="9/minute"))
    first.clients.ban(None, {"plan": "free"})
    first.clients.ban(None, WHO)
    limiter = limiter_of(API, store=first.store)
    assert limiter.hit(WHO).banned
    assert limiter.hit({"plan": "free", **OTHER}).allowed
    assert "(all rules)" in caplog.text
    assert "no rule uses plan" in caplog.text


def test_the_response_says_so_and_until_when() -> None:
    """403 with ``Retry-After``, and no header of a limit. An application without a rule of ``ip`` reads it, too."""
    settings = load_settings({"rules": [{"name": "api", "limits": "9/minute", "key": []}]})
    limiter = Limiter(clock=ManualClock(START), settings=settings)
    app = RateLimitMiddleware(Starlette(routes=[Route("/", lambda _: PlainTextResponse("home"))]), limiter=limiter)
    for duration, wait, detail in (
        ("90s", "90", "You are banned. Retry after 90 seconds."),
        (None, None, "You are banned. Waiting does not help"),
    ):
        assert ask(app, "/", client="127.0.0.1").status_code == 200
        limiter.clients.ban(None, {"ip": "127.0.0.1"}, duration)
        banned = ask(app, "/", client="127.0.0.1")
        assert (banned.status_code, banned.headers.get("retry-after")) == (403, wait)
        assert "ratelimit" not in str(banned.headers)
        assert banned.json()["detail"].startswith(detail)
        assert banned.json()["type"].endswith("#abnormal-usage-detected")
        limiter.clients.clear_overrides()


def test_the_event_and_the_error_name_the_ban() -> None:
    events: list[Any] = []
    limiter = Limiter([API], clock=ManualClock(START), observers=[events.append])
    limiter.clients.ban(None, WHO, "1h")
    verdict = limiter.hit(WHO)
    assert [(event.outcome, event.wait, event.rules) for event in events] == [("banned", 3600.0, ())]
    with pytest.raises(RateLimitExceeded, match="rejected by a ban: retry after 3600 s") as error:
        verdict.raise_for_limit()
    copy = pickle.loads(pickle.dumps(error.value)).verdict
    assert (copy.banned, copy.retry_after, copy.status) == (True, 3600.0, 403)
