"""The rate limit headers: right by the grammar of an independent parser, and right in what they say."""

from __future__ import annotations

import pytest
from header_scene import FEATURES, Scene, parsed, rule

from ratelimit_mw.http import headers as headers_module


def test_the_fields_of_an_allowed_request() -> None:
    """Worked by hand: "5/minute; 20/hour" at 40 s into a minute and 2800 s into an hour, first hit."""
    scene = Scene(rule("5/minute; 20/hour", algorithm="fixed-window"))
    assert scene.hit() == {
        "x-ratelimit-limit": "5",
        "x-ratelimit-remaining": "4",
        "x-ratelimit-reset": "20",
        "ratelimit-policy": '"login";q=5;w=60, "login-2";q=20;w=3600',
        "ratelimit": '"login";r=4;t=20',
    }


def test_the_fields_of_a_rejected_request() -> None:
    """Worked by hand: the minute is full, so the hour does not show in ``RateLimit``, and ``t`` is Retry-After."""
    scene = Scene(rule("1/minute; 20/hour", algorithm="fixed-window"))
    scene.hit()
    scene.clock.advance(0.5)
    assert scene.hit() == {
        "x-ratelimit-limit": "1",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "20",
        "ratelimit-policy": '"login";q=1;w=60, "login-2";q=20;w=3600',
        "ratelimit": '"login";r=0;t=20',
        "retry-after": "20",
    }


def test_when_several_reject_the_longest_wait_counts() -> None:
    """Every rejecting limit is listed with its own wait; the limit with the longest is the one in the other fields."""
    scene = Scene(rule("1/minute; 1/hour; 9/day", algorithm="fixed-window"))
    scene.hit()
    rejected = scene.hit()
    assert rejected["ratelimit"] == '"login";r=0;t=20, "login-2";r=0;t=800'
    assert rejected["retry-after"] == rejected["x-ratelimit-reset"] == "800"
    assert len(parsed(rejected["ratelimit-policy"])) == 3


def test_when_all_allow_the_smallest_rest_is_shown() -> None:
    """An allowed response shows the limit that is nearest to its end."""
    scene = Scene(rule("9/minute", "wide"), rule("5/minute", "narrow"), rule("7/minute", "middle"))
    shown = scene.hit()
    assert shown["x-ratelimit-limit"] == "5"
    assert [name for name, _ in parsed(shown["ratelimit"])] == ["narrow"]
    assert [name for name, _ in parsed(shown["ratelimit-policy"])] == ["wide", "narrow", "middle"]


def test_a_cost_that_never_fits_has_no_time_to_wait() -> None:
    """Neither Retry-After nor ``t`` promises what cannot come, also when another limit has a time."""
    scene = Scene(rule("5/minute", "small"), rule("50/minute", "large", algorithm="fixed-window"))
    scene.hit(cost=5)
    rejected = scene.hit(cost=46)
    assert "retry-after" not in rejected
    assert rejected["x-ratelimit-limit"] == "5"
    assert rejected["ratelimit"] == '"small";r=0, "large";r=45;t=20'


def test_an_unknown_key_that_is_rejected_has_no_time_to_wait() -> None:
    """Waiting does not help who is not signed in."""
    scene = Scene(rule("5/minute", key=["user"], when_missing="reject"))
    rejected = scene.hit({})
    assert rejected["ratelimit"] == '"login";r=0'
    assert "retry-after" not in rejected


def test_shadow_rules_never_show() -> None:
    """A rule that only watches is in no header, whether it would have rejected or not."""
    scene = Scene(rule("1/minute", "shadow", mode="shadow"), rule("2/minute", "real"))
    for _ in range(3):
        shown = scene.hit()
        assert shown["ratelimit-policy"] == '"real";q=2;w=60'
        assert "shadow" not in shown["ratelimit"]
    assert "retry-after" in shown
    assert Scene(rule("1/minute", mode="shadow")).hit() == {}


def test_a_request_that_no_rule_looked_at_gets_nothing() -> None:
    """No decision, no header."""
    assert Scene(rule("1/minute", key=["user"])).hit() == {}
    assert Scene().hit() == {}


@pytest.mark.parametrize(
    ("families", "names"),
    [
        (["x-ratelimit"], ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]),
        (["ratelimit"], ["ratelimit-policy", "ratelimit"]),
        ([], []),
    ],
)
def test_the_families_are_a_choice(families: list[str], names: list[str]) -> None:
    """Only the families asked for are written; Retry-After always is; ``names`` says which fields are ours."""
    scene = Scene(rule("1/minute"), families=families)
    assert list(scene.hit()) == names
    assert list(scene.hit()) == [*names, "retry-after"]
    assert scene.writer.names == {name.encode() for name in names}


def test_the_reset_may_be_an_epoch() -> None:
    """With ``reset="epoch"`` X-RateLimit-Reset is a moment, rounded up; the draft's ``t`` stays a delta."""
    scene = Scene(rule("1/minute", algorithm="fixed-window"), reset="epoch")
    scene.clock.advance(0.25)
    allowed, rejected = scene.hit(), scene.hit()
    assert allowed["x-ratelimit-reset"] == rejected["x-ratelimit-reset"] == "1000020"
    assert allowed["ratelimit"] == rejected["ratelimit"] == '"login";r=0;t=20'
    assert rejected["retry-after"] == "20"


def test_times_are_rounded_up_and_at_least_one() -> None:
    """No time is 0: a client that takes it literally must not come back too early."""
    scene = Scene(rule("1/s", algorithm="fixed-window"))
    scene.hit()
    for moment in (0.0, 0.001, 0.5, 0.999999):
        scene.clock.set(1_000_000.0 + moment)
        rejected = scene.hit()
        assert rejected["retry-after"] == rejected["x-ratelimit-reset"] == "1"
        assert rejected["ratelimit"] == '"login";r=0;t=1'
    assert Scene(rule("1/s")).hit(cost=0)["x-ratelimit-reset"] == "1"


@pytest.mark.parametrize("limits", ["5/500ms", "5/1500ms"])
def test_a_window_that_is_no_whole_number_of_seconds_is_left_out(limits: str) -> None:
    """The draft has whole seconds only; a policy whose window has parts of one says its quota alone."""
    assert Scene(rule(limits)).hit()["ratelimit-policy"] == '"login";q=5'


def test_a_burst_is_the_limit_and_the_amount_is_the_quota() -> None:
    """``X-RateLimit-Limit`` is what can pass at once, the policy says what passes in its window."""
    shown = Scene(rule("100/minute burst 20", algorithm="token-bucket")).hit()
    assert shown["x-ratelimit-limit"] == "20"
    assert shown["ratelimit-policy"] == '"login";q=100;w=60'
    assert shown["x-ratelimit-remaining"] == "19"


@pytest.mark.parametrize("jitter_us", [0, 1, 999_999])
def test_a_jitter_below_a_second_changes_nothing(jitter_us: int) -> None:
    """Retry-After has whole seconds, and so has its jitter."""
    scene = Scene(rule("1/minute"), jitter_us=jitter_us)
    scene.hit()
    assert {scene.hit()["retry-after"] for _ in range(20)} == {"20"}


def test_jitter_only_adds() -> None:
    """With a jitter of 3 s clients are told 20 to 23 s, never less; ``t`` is the same number, the reset stays."""
    scene = Scene(rule("1/minute"), jitter_us=3_000_000)
    scene.hit()
    rejected = [scene.hit() for _ in range(200)]
    assert {answer["retry-after"] for answer in rejected} == {"20", "21", "22", "23"}
    assert all(answer["ratelimit"] == f'"login";r=0;t={answer["retry-after"]}' for answer in rejected)
    assert {answer["x-ratelimit-reset"] for answer in rejected} == {"20"}


def test_jitter_is_told_of_the_limit_that_is_waited_for() -> None:
    """Of several limits that reject, Retry-After is the ``t`` of the longest; the others keep their own."""
    scene = Scene(rule("1/minute; 1/hour", algorithm="fixed-window"), jitter_us=3_000_000)
    scene.hit()
    told = {(answer["retry-after"], answer["ratelimit"]) for answer in (scene.hit() for _ in range(200))}
    assert told == {(wait, f'"login";r=0;t=20, "login-2";r=0;t={wait}') for wait in ("800", "801", "802", "803")}


def test_jitter_stays_within_the_numbers_of_the_syntax() -> None:
    """A wait that is the largest number already gets no jitter on top, and none is made up where waiting is no use."""
    scene = Scene(rule("1/minute", algorithm="fixed-window"), jitter_us=3_000_000)
    scene.hit()
    verdict = scene.limiter.hit(FEATURES)
    verdict.decisions[0].retry_us = 10**24
    assert {scene.of(verdict)["retry-after"] for _ in range(50)} == {str(10**15 - 1)}
    verdict.decisions[0].retry_us = None
    assert "retry-after" not in scene.of(verdict)


def test_limits_by_client_show_their_own_numbers() -> None:
    """A client with limits of his own sees those, under the policy's name."""
    scene = Scene(rule("2/minute", per_key={"192.0.2.7": ["7/minute", "9/hour"]}))
    assert scene.hit()["ratelimit-policy"] == '"login";q=7;w=60, "login-2";q=9;w=3600'
    assert scene.hit({"ip": "192.0.2.8"})["ratelimit-policy"] == '"login";q=2;w=60'


def test_what_is_remembered_of_limits_is_bounded() -> None:
    """Limits come and go with their settings; what is encoded for them does not pile up."""
    clients = [str(i) for i in range(headers_module._MAX_CACHED + 10)]
    scene = Scene(rule("1/minute", key=["user"], per_key=dict.fromkeys(clients, "1/minute; 2/hour")))
    for client in clients:
        scene.hit({"user": client})
    assert 0 < len(scene.writer._parts) <= headers_module._MAX_CACHED
    assert 0 < scene.writer._policy.cache_info().currsize <= headers_module._MAX_CACHED
