"""Limits from functions: the arguments, the cache, and the errors."""

import asyncio
import gc
from decimal import Decimal
from typing import Any
from weakref import ref

import lookup_plans
import pytest
from lookup_plans import ALICE, Plans, build, quotas
from starlette.responses import PlainTextResponse
from tables import expect_error

from ratelimit_mw import INVALID, ConfigError, Limiter, Quota, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.rules.decorators import make_mark
from ratelimit_mw.starlette import limit, messages
from ratelimit_mw.testing import ManualClock


def of_plan(plan: str | None) -> str:
    """Return the limits of a plan."""
    _plans.append(plan)
    return {"pro": "9/minute", None: "1/minute"}.get(plan, "2/minute")


def of_plan_and_user(plan: str, user: str) -> str:
    _plans.append((plan, user))
    return "9/minute" if (plan, user) == ("pro", "alice") else "2/minute"


def of_tenant(header_x_tenant: str) -> str:
    return of_plan(header_x_tenant)


_plans: list[Any] = []


def test_a_function_is_passed_the_parts_that_its_parameters_name() -> None:
    """Its result is kept by those: all clients of a plan share one call. Each client has counts of its own."""
    tables: list[tuple[Any, Any, dict[str, Any], list[Any]]] = [
        (of_plan, "ip", {"plan": "pro"}, ["pro"]),
        (of_plan, "ip", {}, [None]),
        (lambda plan="pro": of_plan(plan), "ip", {"plan": "free"}, ["free"]),  # a default does not hide the name
        (lambda plan, other=None: of_plan(plan if other is None else other), "ip", {"plan": "pro"}, ["pro"]),
        ({"plan": of_plan}, "ip", {"plan": "pro"}, ["pro"]),
        ({"tenant": of_plan}, "ip", {"tenant": "pro"}, ["pro"]),  # a feature of your own
        (lambda value: of_plan(value), "ip", {"plan": "pro"}, ["192.0.2.7", "192.0.2.8"]),  # the entries of the key
        (of_plan_and_user, ["user", "ip"], {"plan": "pro", "user": "alice"}, [("pro", "alice")]),
        (of_tenant, ["header:x-tenant", "ip"], {"header:x-tenant": "pro"}, ["pro"]),
    ]
    for limits, key, features, calls in tables:
        _plans.clear()
        limiter = Limiter([Rule(name="api", limits=limits, key=key)])
        left = [limiter.hit({**features, "ip": f"192.0.2.{i}"}).decisions[0].remaining for i in (7, 8, 8)]
        assert _plans == calls, limits
        most = 9 if "pro" in features.values() and "192.0.2.7" not in calls else 2 if features else 1
        assert left == [most - 1, most - 1, max(0, most - 2)], limits


def test_a_rule_needs_the_parts_that_its_function_is_passed() -> None:
    """So a middleware reads them, and an application that does not provide them does not start."""
    assert Rule(limits=of_plan, key="ip").needs == ("ip", "plan")
    assert Rule(limits={"tenant": of_plan}, key="ip").needs == ("ip", "tenant")
    with pytest.raises(ConfigError, match="'tenant'"):
        RateLimitMiddleware(PlainTextResponse("hello"), limits={"tenant": of_plan})
    with pytest.raises(ConfigError, match="limits: the function is passed the parts of the key, not"):
        RateLimitMiddleware(PlainTextResponse("hello"), limits=lambda tenant: of_plan(tenant), features={"tenant": str})


def test_a_function_returns_limits_in_every_form() -> None:
    """The forms are those of a rule. A slot is held and returned."""
    for result, expected in (
        ("5/minute; 20/hour", ["5/minute", "20/hour"]),
        (Quota("5/minute"), ["5/minute"]),
        (["5/minute", Quota(20, 3600.0)], ["5/minute", "20/hour"]),
        ((5, 60), ["5/minute"]),
        ("1 concurrent", ["1 concurrent"]),
    ):
        assert quotas(build(lambda user, result=result: result)) == expected
    limiter = build(lambda user: "1 concurrent")
    with limiter.slot(ALICE):
        assert not limiter.hit(ALICE)
    assert limiter.hit(ALICE)


def test_async_functions_work_with_both_methods() -> None:
    """`hit` runs an async function in an event loop of its own."""

    async def limits_of(user: str) -> str:
        await asyncio.sleep(0)
        return f"{len(user)}/minute"

    limiter = build(limits_of)
    assert quotas(limiter) == ["5/minute"]
    assert asyncio.run(limiter.ahit({"user": "bob"})).decisions[0].limit == 3


def test_a_result_is_kept_for_limits_ttl() -> None:
    """Until then the function is not called for that value. Without a time, each request calls it."""
    clock, plans = ManualClock(1_000_000.0), Plans()
    limiter = build(plans, clock, limits_ttl="10s")
    for user in ("alice", "alice", "bob"):
        limiter.hit({"user": user})
    clock.advance(9.999999)
    limiter.hit(ALICE)
    assert plans.calls == ["alice", "bob"]
    clock.advance(0.000001)
    limiter.hit(ALICE)
    assert plans.calls == ["alice", "bob", "alice"]
    always = Plans()
    limiter = build(always, limits_ttl=0)
    assert limiter.hit(ALICE)
    assert limiter.hit(ALICE)
    assert len(always.calls) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_result_is_kept_from_the_end_of_the_call(fails: bool) -> None:
    """A function that takes longer than its ttl is not called by every request."""
    clock, calls = ManualClock(1_000_000.0), []

    def limits_of(user: str) -> str:
        calls.append(user)
        clock.advance(5)
        if fails:
            raise OSError
        return "5/minute"

    limiter = build(limits_of, clock, limits_ttl="1s")
    for _ in range(3):
        limiter.peek(ALICE)
    assert len(calls) == 1
    clock.advance(1.01)
    limiter.peek(ALICE)
    assert len(calls) == 2


def test_new_rules_keep_the_limits_of_the_others() -> None:
    """A limit of a decorator is added while the database is down."""
    plans = Plans("5/minute")
    limiter = build(plans, limits_ttl="1h")
    limiter.hit(ALICE)
    plans.result = OSError()
    limiter.reloads.adopt([make_mark("20/minute", {}, "shop.view")])
    assert limiter.hit(ALICE).decisions[0].remaining == 3
    assert plans.calls == ["alice"]


def test_a_clock_that_goes_back_ends_the_cache() -> None:
    """A result is never kept for longer than its time."""
    clock, plans = ManualClock(1_000_000.0), Plans()
    limiter = build(plans, clock)
    limiter.hit(ALICE)
    clock.set(1000.0)
    limiter.hit(ALICE)
    assert len(plans.calls) == 2


def test_a_new_amount_continues_the_counts() -> None:
    """A client that gets a larger plan keeps what it has consumed."""
    clock, plans = ManualClock(1_000_000.0), Plans("2/minute")
    limiter = build(plans, clock, limits_ttl="1s")
    assert [limiter.hit(ALICE).allowed for _ in range(3)] == [True, True, False]
    plans.result = "3/minute"
    clock.advance(1.0)
    assert [limiter.hit(ALICE).allowed for _ in range(2)] == [True, False]


def test_one_argument_for_each_entry_of_the_key() -> None:
    """Alternatives are one entry, and a key without entries has no arguments. A function in C may have no signature."""
    seen: list[tuple[Any, ...]] = []

    def limits_of(*values: Any) -> str:
        seen.append(values)
        return "5/minute"

    build(limits_of, key=["endpoint", "user|ip"]).hit({"endpoint": "/a", "ip": "192.0.2.7"})
    build(limits_of, key=["user", "ip"]).hit(ALICE)
    build(limits_of, key=[]).hit({})
    assert seen == [("/a", "192.0.2.7"), ("alice", "unknown"), ()]
    assert quotas(build({"alice": "5/minute"}.__getitem__, key="user"), ALICE) == ["5/minute"]


def test_the_function_receives_the_value_of_the_feature() -> None:
    """A value that is no text is passed as it is. A text has the form that tables compare."""
    for key, features, value in (
        ("user.id", {"user": {"id": 7}}, 7),
        ("user", {"user": Decimal("7.0")}, Decimal("7.0")),
        ("user", {"user": " Alice "}, " Alice "),
        ("path:id as int", {"path:id": "007"}, "7"),
        ("ip/24", {"ip": "192.0.2.7"}, "192.0.2.0/24"),
        ("user", {"user": INVALID}, INVALID),
        ("user", {"user": "a" * 1000}, "a" * 1000),
        ("user", {"user": b"a" * 1000}, b"a" * 1000),
    ):
        plans = Plans()
        limiter = build(plans, key=[key])
        limiter.hit(features)
        limiter.hit(features)
        assert plans.calls == [value], (key, features)


def test_values_that_are_equal_have_limits_of_their_own() -> None:
    """In Python ``1 == True``; the user 1 and the user True are two clients."""
    limiter = build(lambda user: "1/minute" if user is True else "5/minute")
    assert quotas(limiter, {"user": True}) == ["1/minute"]
    assert quotas(limiter, {"user": 1}) == ["5/minute"]


def test_no_long_value_is_kept() -> None:
    """A client chooses the values, so the cache would grow."""

    class Text(str):
        """A text whose end can be seen."""

    limiter, user = build(lambda user: "5/minute"), Text("a" * 1000)
    is_kept = ref(user)
    limiter.hit({"user": user})
    del user
    gc.collect()
    assert not is_kept()


def test_the_function_is_called_only_for_requests_that_the_rule_counts() -> None:
    """Not for a missing key, for another feature, or for a client on the allow list."""
    plans = Plans()
    limiter = build(plans, match={"region": ["DE"]})
    assert not limiter.hit({"region": "DE"}).decisions
    assert not limiter.hit({"region": "AT", "user": "alice"}).decisions
    listed = Limiter.from_settings({"rules": [{"limits": plans, "key": "user"}], "lists": {"allow": {"user": "alice"}}})  # type: ignore[typeddict-item]
    assert listed.hit(ALICE).allowed
    assert plans.calls == []


def test_a_missing_key_can_be_rejected() -> None:
    """``when_missing`` needs no limits."""
    verdict = build(Plans(), when_missing="reject").hit({})
    assert (verdict.allowed, verdict.status, verdict.retry_after) == (False, 429, None)


def test_a_rule_without_functions_keeps_its_tables_beside_one_with() -> None:
    """The plan of a request has rules of both kinds."""
    table = Rule(name="table", key=["user"], limits="3/minute", per_key={"alice": "4/minute"})
    limiter = Limiter([table, Rule(name="api", key=["user"], limits=lambda user: "5/minute")])
    assert quotas(limiter) == ["4/minute", "5/minute"]


def test_a_client_may_have_no_limits() -> None:
    """The text "unlimited" says so."""
    plans = {"alice": "unlimited", "bob": "1/minute"}
    limiter = build(plans.get)
    verdicts = [limiter.hit(ALICE) for _ in range(3)]
    assert [(verdict.allowed, len(verdict.decisions)) for verdict in verdicts] == [(True, 0)] * 3
    assert [limiter.hit({"user": "bob"}).allowed for _ in range(2)] == [True, False]
    by_plan = build(plans.get, per={"plan": {"free": "3/minute"}})
    assert quotas(by_plan, {**ALICE, "plan": "free"}) == ["3/minute"]
    assert quotas(by_plan, {**ALICE, "plan": INVALID}) == ["3/minute"]
    alone = build(lambda user: "unlimited")
    alone.reset("api", ALICE)
    assert not asyncio.run(alone.ahit(ALICE)).decisions


def test_reset_forgets_the_counts_of_the_limits_that_the_function_returns() -> None:
    """The keys of a client depend on the periods of its limits."""
    limiter = build(Plans("1/minute; 5/hour"))
    limiter.hit(ALICE)
    limiter.reset("api", ALICE)
    assert limiter.hit(ALICE).decisions[1].remaining == 4
    asyncio.run(limiter.areset("api", ALICE))
    assert asyncio.run(limiter.ahit(ALICE)).allowed
    expect_error(
        "the limits of rule 'api' are not known, because their function failed",
        build(Plans(KeyError())).reset,
        "api",
        ALICE,
    )


def test_a_decorator_takes_a_function_with_a_key() -> None:
    """Without options it is the view of a decorator without parentheses."""
    limit(Plans(), key=["user"])
    message = r'^@limit on .*: expected @limit\("5/minute"\), with its limits, or @limit\(function, key='
    expect_error(message, limit, Plans.__call__)


def test_messages_take_no_slots_from_a_function(caplog: pytest.LogCaptureFixture) -> None:
    """The end of a message is not known."""

    @messages(lambda user: "1 concurrent" if user == "alice" else "5/minute", key=["user"])
    async def chat(websocket: Any) -> None: ...

    limiter = Limiter()
    (mark,) = chat.__ratelimit_mw__.messages  # type: ignore[attr-defined]
    limiter.reloads.adopt([mark])
    plan = limiter.rules.plan_for_marks([mark], "GET", "", None, None)
    assert limiter.decide(plan, ALICE).unavailable
    assert "'1 concurrent' cannot be used for messages" in caplog.text
    assert limiter.decide(plan, {"user": "bob"}).allowed


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


def test_an_error_rejects_nothing_in_a_shadow_rule() -> None:
    """Nor does a limit that is known."""
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
