"""The rate limit headers parse with an independent parser and carry the right values."""

import math
from typing import Any

import pytest
from header_scene import FEATURES, Scene, parsed, rule
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from ratelimit_mw import ConfigError, Rule
from ratelimit_mw.http import headers as headers_module


def test_an_allowed_response_has_the_rate_limit_fields() -> None:
    """Computed by hand: "5/minute; 20/hour" at 40 s into a minute and 2800 s into an hour, first hit."""
    scene = Scene(rule("5/minute; 20/hour", algorithm="fixed-window"))
    assert scene.hit() == {
        "x-ratelimit-limit": "5",
        "x-ratelimit-remaining": "4",
        "x-ratelimit-reset": "20",
        "ratelimit-policy": '"login";q=5;w=60, "login-2";q=20;w=3600',
        "ratelimit": '"login";r=4;t=20, "login-2";r=19;t=800',
    }


def test_a_rejected_response_has_the_rate_limit_fields() -> None:
    """Computed by hand: the minute is full, so ``RateLimit`` omits the hour, and ``t`` is Retry-After."""
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


def test_the_longest_wait_of_several_rejections_counts() -> None:
    """``RateLimit`` lists every rejecting limit with its wait. The other fields show the longest wait."""
    scene = Scene(rule("1/minute; 1/hour; 9/day", algorithm="fixed-window"))
    scene.hit()
    rejected = scene.hit()
    assert rejected["ratelimit"] == '"login";r=0;t=20, "login-2";r=0;t=800'
    assert rejected["retry-after"] == rejected["x-ratelimit-reset"] == "800"
    assert len(parsed(rejected["ratelimit-policy"])) == 3


def test_an_allowed_response_shows_all_limits_and_the_smallest_share() -> None:
    """``RateLimit`` lists all limits. ``X-RateLimit-*`` shows the one with the smallest share, not amount, left."""
    scene = Scene(rule("5/minute", "small"), rule("100/day", "large", cost=30, algorithm="fixed-window"))
    headers = scene.hit()
    assert [headers[f"x-ratelimit-{name}"] for name in ("limit", "remaining", "reset")] == ["100", "70", "36800"]
    assert headers["ratelimit"] == '"small";r=4;t=60, "large";r=70;t=36800'
    assert [name for name, _ in parsed(headers["ratelimit-policy"])] == ["small", "large"]


def test_of_equal_shares_the_first_limit_is_shown() -> None:
    """Two limits with the same amount have equal shares as long as no cost expires."""
    scene = Scene(rule("5/minute; 5/hour", algorithm="fixed-window"))
    assert [scene.hit()["x-ratelimit-reset"] for _ in range(3)] == ["20"] * 3


def test_a_rejection_that_waiting_does_not_end_has_no_retry_after() -> None:
    """``t`` is left out, too: of a cost that never fits, and of a client that is not signed in."""
    scene = Scene(rule("5/minute", "small"), rule("50/minute", "large", algorithm="fixed-window"))
    scene.hit(cost=5)
    rejected = scene.hit(cost=46)
    assert "retry-after" not in rejected
    assert (rejected["x-ratelimit-limit"], rejected["ratelimit"]) == ("5", '"small";r=0, "large";r=45;t=20')
    rejected = Scene(rule("5/minute", key=["user"], when_missing="reject")).hit({})
    assert (rejected["ratelimit"], "retry-after" in rejected) == ('"login";r=0', False)


def test_shadow_rules_are_in_no_header() -> None:
    """A shadow rule adds no header, whether it would allow or reject. Without a decision there is none either."""
    scene = Scene(rule("1/minute", "shadow", mode="shadow"), rule("2/minute", "real"))
    for _ in range(3):
        headers = scene.hit()
        assert headers["ratelimit-policy"] == '"real";q=2;w=60'
        assert "shadow" not in headers["ratelimit"]
    assert "retry-after" in headers
    for rules in ([rule("1/minute", mode="shadow")], [rule("1/minute", key=["user"])], []):
        assert Scene(*rules).hit() == {}


@each(
    ("families", "names"),
    [
        (["x-ratelimit"], ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]),
        (["ratelimit"], ["ratelimit-policy", "ratelimit"]),
        ([], []),
    ],
)
def test_header_families_are_configurable(families: list[str], names: list[str]) -> None:
    """The response has only the configured families and always Retry-After. ``names`` lists these fields."""
    scene = Scene(rule("1/minute"), families=families)
    assert list(scene.hit()) == names
    assert list(scene.hit()) == [*names, "retry-after"]
    assert scene.writer.names == {name.encode() for name in names}


def test_the_reset_may_be_an_epoch() -> None:
    """With ``reset="epoch"``, X-RateLimit-Reset is a timestamp, rounded up. ``t`` of the draft stays a delta."""
    scene = Scene(rule("1/minute", algorithm="fixed-window"), reset="epoch")
    scene.clock.advance(0.25)
    allowed, rejected = scene.hit(), scene.hit()
    assert allowed["x-ratelimit-reset"] == rejected["x-ratelimit-reset"] == "1000020"
    assert allowed["ratelimit"] == rejected["ratelimit"] == '"login";r=0;t=20'
    assert rejected["retry-after"] == "20"
    later = Scene(rule("1/minute", algorithm="gcra"), reset="epoch")
    later.clock.advance(0.25)
    assert later.hit()["x-ratelimit-reset"] == "1000061"


def test_times_are_rounded_up_and_at_least_one() -> None:
    """No time is 0, because a client that waits 0 seconds would come back too early."""
    scene = Scene(rule("1/s", algorithm="fixed-window"))
    scene.hit()
    for moment in (0.0, 0.001, 0.5, 0.999999):
        scene.clock.set(1_000_000.0 + moment)
        rejected = scene.hit()
        assert rejected["retry-after"] == rejected["x-ratelimit-reset"] == "1"
        assert rejected["ratelimit"] == '"login";r=0;t=1'
    assert Scene(rule("1/s")).hit(cost=0)["x-ratelimit-reset"] == "1"
    scene.clock.set(1_000_000.0)
    verdict = scene.limiter.hit(FEATURES)
    verdict.decisions[0].retry_us = 0  # as that of an algorithm of your own
    assert scene.of(verdict)["retry-after"] == "1"
    several = Scene(rule("5/minute; 20/hour", algorithm="fixed-window"))
    several.clock.advance(0.5)
    assert several.hit()["ratelimit"] == '"login";r=4;t=20, "login-2";r=19;t=800'


def test_x_ratelimit_limit_is_the_burst() -> None:
    headers = Scene(rule("100/minute burst 20", algorithm="token-bucket")).hit()
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("20", "19")


@each(
    ("limits", "options", "policy"),
    [
        ("5/500ms", {}, '"login";q=5'),  # the draft has whole seconds only
        ("5/1500ms", {}, '"login";q=5'),
        ("5 per calendar month", {"timezone": "Europe/Berlin"}, '"login";q=5'),  # and no calendar
        ("100/minute burst 20", {"algorithm": "token-bucket"}, '"login";q=100;w=60'),
        ("2/minute", {"per_key": {"192.0.2.7": "7/minute; 9/hour"}}, '"login";q=7;w=60, "login-2";q=9;w=3600'),
        ("2/minute", {"per_key": {"192.0.2.8": "7/minute"}}, '"login";q=2;w=60'),
        ("5000/minute", {"unit": "tokens"}, '"login";q=5000;qu="tokens";w=60'),
        ("90000/s", {"unit": "content-bytes"}, '"login";q=90000;qu="content-bytes";w=1'),
        ("60/minute", {"unit": "requests"}, '"login";q=60;w=60'),
    ],
)
def test_a_policy_is_the_amount_per_window(limits: str, options: dict[str, Any], policy: str) -> None:
    """It has the unit of its rule, unless that is the default of the draft, and the limits of the client."""
    shown = Scene(rule(limits, **options)).hit()["ratelimit-policy"]
    assert (shown, bool(parsed(shown))) == (policy, True)


def test_jitter_only_adds_time() -> None:
    """With 3 s jitter, Retry-After is 60 to 63 s. ``t`` is the same number, and the reset stays."""
    scene = Scene(rule("1/minute"), jitter_us=3_000_000)
    scene.hit()
    rejected = [scene.hit() for _ in range(200)]
    assert {response["retry-after"] for response in rejected} == {"60", "61", "62", "63"}
    assert all(response["ratelimit"] == f'"login";r=0;t={response["retry-after"]}' for response in rejected)
    assert {response["x-ratelimit-reset"] for response in rejected} == {"60"}


def test_jitter_applies_to_the_longest_wait() -> None:
    """Of several rejecting limits, Retry-After is the ``t`` of the longest wait. The others have no jitter."""
    scene = Scene(rule("1/minute; 1/hour", algorithm="fixed-window"), jitter_us=3_000_000)
    scene.hit()
    fields = {(response["retry-after"], response["ratelimit"]) for response in (scene.hit() for _ in range(200))}
    assert fields == {(wait, f'"login";r=0;t=20, "login-2";r=0;t={wait}') for wait in ("800", "801", "802", "803")}


def test_jitter_stays_within_the_largest_number() -> None:
    """The largest wait gets no jitter, and a rejection without a wait gets none."""
    scene = Scene(rule("1/minute", algorithm="fixed-window"), jitter_us=3_000_000)
    scene.hit()
    verdict = scene.limiter.hit(FEATURES)
    verdict.decisions[0].retry_us = 10**24
    assert {scene.of(verdict)["retry-after"] for _ in range(50)} == {str(10**15 - 1)}
    verdict.decisions[0].retry_us = None
    assert "retry-after" not in scene.of(verdict)


def test_the_caches_of_encoded_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither clients with limits of their own nor those whose limits reset at other times grow them."""
    monkeypatch.setattr(headers_module.Memo, "most", 10)
    users = [str(number) for number in range(1, 30)]
    scene = Scene(rule("1/minute", key=["user"], per_key={user: f"{user}/minute; 999/hour" for user in users}))
    for user in users:
        verdict = scene.limiter.hit({"user": user})
        verdict.decisions[0].reset_us = int(user) * 1_000_000
        assert scene.of(verdict)["x-ratelimit-reset"] == user
    memo = headers_module.Memo(str)
    for number in range(1, 30):
        assert memo[number] == str(number)
        assert number in memo
        assert len(memo) <= 10


@each("reset", ["delta", "epoch"])
def test_a_limit_on_concurrent_requests_sends_no_time(reset: str) -> None:
    """The end of a request is not known, so there is no reset. ``Retry-After`` is a hint of one second."""
    scene = Scene(rule("1 concurrent"), reset=reset)
    policy = '"login";q=1;qu="concurrent-requests"'
    shown = {
        "x-ratelimit-limit": "1",
        "x-ratelimit-remaining": "0",
        "ratelimit-policy": policy,
        "ratelimit": '"login";r=0',
    }
    assert scene.hit() == shown
    assert scene.hit() == {**shown, "retry-after": "1"}


def test_slots_show_beside_other_limits_only_where_they_reject() -> None:
    """An allowed request shows the limits that have a rate, in both families."""
    scene = Scene(
        rule("9/minute", "rate"), rule("1 concurrent", "slots"), rule("2/hour", "hour", algorithm="fixed-window")
    )
    allowed = scene.hit()
    assert [allowed[f"x-ratelimit-{name}"] for name in ("limit", "remaining", "reset")] == ["2", "1", "800"]
    assert allowed["ratelimit"] == '"rate";r=8;t=60, "hour";r=1;t=800'
    assert [name for name, _ in parsed(allowed["ratelimit-policy"])] == ["rate", "hour"]
    full = scene.hit()
    assert (full["x-ratelimit-limit"], full["x-ratelimit-remaining"], full["retry-after"]) == ("1", "0", "1")
    assert "x-ratelimit-reset" not in full
    assert full["ratelimit"] == '"slots";r=0'
    assert [name for name, _ in parsed(full["ratelimit-policy"])] == ["rate", "slots", "hour"]


def test_slots_that_do_not_reject_are_in_no_rejection_of_another_limit() -> None:
    """A rejection lists the limits that apply, without slots that are free."""
    scene = Scene(rule("5 concurrent", "slots"), rule("1/minute", "rate"))
    assert [scene.hit()["ratelimit-policy"] for _ in range(2)] == ['"rate";q=1;w=60'] * 2


# -- any rule and cost -----------------------------------------------------------------------------------------


@each("name", ["", "a b", "a\r\nb", "a\n", "\u00e9", "caf\u00e9", "a\x7f", "a\tb", "\x00", "x" * 201])
def test_a_name_that_no_header_can_hold_is_rejected_when_built(name: str) -> None:
    """The name of a rule becomes the name of a policy, so a name that breaks a header is an error at the start."""
    with pytest.raises(ConfigError, match="name"):
        Rule(name=name, limits="1/minute")


names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=30)
amounts = st.one_of(st.integers(1, 20), st.integers(1, 10**12))
periods = st.sampled_from(["500ms", "1s", "7s", "minute", "90m", "day", "366 days"])
algorithms = st.sampled_from(["fixed-window", "sliding-window-counter", "tiered-window", "token-bucket", "gcra"])


@given(names, amounts, periods, algorithms, st.integers(0, 10**12), st.integers(0, 3))
def test_every_header_is_a_structured_field(
    name: str, amount: int, period: str, algorithm: str, cost: int, advance: int
) -> None:
    """For any rule and cost, both fields parse in canonical form, with integers of the right type."""
    scene = Scene(rule([f"{amount}/{period}", "10/hour"], name, algorithm=algorithm))
    for _ in range(2):
        fields = scene.hit(cost=cost)
        scene.clock.advance(advance)
        for policy, parameters in parsed(fields["ratelimit-policy"]):
            assert policy in (name, f"{name}-2")
            assert type(parameters["q"]) is int
            assert parameters.get("w", 1) >= 1
        for policy, parameters in parsed(fields["ratelimit"]):
            assert policy in (name, f"{name}-2")
            assert 0 <= parameters["r"] <= 10**12
            assert parameters.get("t", 1) >= 1
        if "retry-after" in fields:
            assert int(fields["retry-after"]) == max(p["t"] for _, p in parsed(fields["ratelimit"]))


@each("algorithm", ["token-bucket", "gcra", "leaky-bucket"])
def test_no_number_exceeds_the_structured_field(algorithm: str) -> None:
    """A bucket that takes a million years to drain has a 15-digit number, the maximum of a field."""
    scene = Scene(rule("1/366 days burst 1000000000000", algorithm=algorithm))
    for cost in (10**12, 10**12):
        fields = scene.hit(cost=cost)
        assert parsed(fields["ratelimit"])[0][1]["t"] == 999_999_999_999_999


@given(st.integers(1, 5), st.sampled_from(["1s", "7s", "minute"]), algorithms, st.lists(st.floats(0, 9), max_size=12))
def test_a_request_after_retry_after_succeeds(amount: int, period: str, algorithm: str, pauses: list[float]) -> None:
    """A request after Retry-After is allowed, and Retry-After is less than one second too long."""
    scene = Scene(rule(f"{amount}/{period}", algorithm=algorithm))
    for pause in pauses:
        scene.clock.advance(pause)
        verdict = scene.limiter.hit(FEATURES)
        if verdict.allowed:
            continue
        wait = int(scene.of(verdict)["retry-after"])
        assert verdict.retry_after is not None
        assert wait == max(1, math.ceil(verdict.retry_after))
        scene.clock.advance(wait)
        assert scene.limiter.hit(FEATURES).allowed
