"""Errors of functions that return limits."""

from __future__ import annotations

import asyncio
from typing import Any

import lookup_plans
import pytest
from lookup_plans import ALICE, Plans, build, quotas
from tables import expect_error

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw.testing import ManualClock

ERRORS = [KeyError("alice@example.com"), "5/minit", None, 7, []]


@pytest.mark.parametrize("limits_ttl", ["1m", "100ms"])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_rejects_a_client_without_limits(
    error: Any, limits_ttl: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit never goes missing. The function is not called again within a second."""
    clock, plans = ManualClock(1_000_000.0), Plans(error)
    limiter = build(plans, clock, limits_ttl=limits_ttl)
    for _ in range(3):
        verdict = limiter.hit(ALICE)
        assert (verdict.allowed, verdict.unavailable, verdict.status, verdict.retry_after) == (False, True, 503, 1.0)
    assert len(plans.calls) == 1
    (record,) = caplog.records
    assert "rule 'api': limits: no limits from the function" in record.message
    assert "alice" not in record.message
    plans.result = "2/minute"
    clock.advance(1.0)
    assert limiter.hit(ALICE).allowed


def test_an_error_keeps_the_last_limits() -> None:
    """They stay in effect for as long as the function fails."""
    for error in ERRORS:
        clock, plans = ManualClock(1_000_000.0), Plans()
        limiter = build(plans, clock, limits_ttl="10s")
        limiter.hit(ALICE)
        plans.result = error
        for _ in range(3):
            clock.advance(10.0)
            assert quotas(limiter) == ["2/minute"], error
        assert len(plans.calls) == 4, error


def test_an_error_of_per_key_leaves_the_limits_of_the_rule() -> None:
    """They hold for a client without earlier limits of its own. A shadow rule rejects nothing."""
    assert quotas(build("1/minute", per_key=Plans(KeyError()))) == ["1/minute"]
    assert build(Plans(KeyError()), mode="shadow").hit(ALICE).allowed


def test_the_log_names_the_line_of_the_error_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A function that fails for all clients does not fill the log."""
    limiter = build(Plans(KeyError("secret")))
    limiter.hit(ALICE)
    limiter.hit({"user": "bob"})
    (record,) = caplog.records
    assert f"KeyError at {lookup_plans.__file__}:" in record.message


def test_a_limit_that_the_store_cannot_keep_is_an_error_of_the_function(caplog: pytest.LogCaptureFixture) -> None:
    """The store checks limits from a function too."""
    limiter = build(Plans("5/minute"))

    def refuse(limit: Any) -> None:
        raise ConfigError("too large")

    limiter.rules.rules[0].check = refuse
    assert limiter.hit(ALICE).unavailable
    assert "too large" in caplog.text


def test_a_limit_below_the_cost_is_an_error_of_the_function(caplog: pytest.LogCaptureFixture) -> None:
    """Such a limit would reject every request of the client in silence."""
    assert build(Plans("3/minute"), cost=5).hit(ALICE).unavailable
    assert "the cost 5 is above the limit 3/minute" in caplog.text


def test_a_blocking_call_on_an_event_loop_says_what_to_use(caplog: pytest.LogCaptureFixture) -> None:
    """`hit` cannot await there. The error is not kept: a thread without an event loop can make the call."""

    async def limits_of(user: str) -> str:
        return "5/minute"

    async def scenario(limiter: Limiter) -> bool:
        return limiter.hit(ALICE).unavailable

    class Later:
        def __await__(self) -> Any:
            yield

    limiter = build(limits_of)
    for _ in range(2):
        expect_error(
            r"rule 'api': limits: the function is async, .* await limiter.ahit", asyncio.run, scenario(limiter)
        )
    assert limiter.hit(ALICE).allowed
    assert asyncio.run(scenario(build(lambda user: Later())))
    assert asyncio.run(scenario(build(lambda user: limits_of(user))))
    assert "await limiter.ahit" in caplog.text
