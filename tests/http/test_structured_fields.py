"""For any rule and cost, an independent parser reads the rate limit fields as structured fields."""

from __future__ import annotations

import math

import pytest
from header_scene import FEATURES, Scene, parsed, rule
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from ratelimit_mw import ConfigError, Rule


@each("name", ["", "a b", "a\r\nb", "a\n", "\u00e9", "caf\u00e9", "a\x7f", "a\tb", "\x00", "x" * 201])
def test_a_name_that_no_header_can_hold_is_rejected_when_built(name: str) -> None:
    """The name of a rule becomes the name of a policy, so a name that breaks a header is an error at the start."""
    with pytest.raises(ConfigError, match="name"):
        Rule(name=name, limits="1/minute")


# -- properties --------------------------------------------------------------------------------------------

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
