"""Limits from functions: the arguments, the cache, the errors, and what concurrent requests share."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from ratelimit_mw import INVALID, ConfigError, Limiter, Quota, Rule
from ratelimit_mw.rules import lookup
from ratelimit_mw.rules.decorators import make_mark
from ratelimit_mw.starlette import limit, messages
from ratelimit_mw.testing import ManualClock

ALICE = {"user": "alice"}


class Plans:
    """A function of a user that counts its calls. ``result`` is returned, or raised when it is an error."""

    def __init__(self, result: Any = "2/minute") -> None:
        self.result = result
        self.calls: list[Any] = []

    def __call__(self, user: Any) -> Any:
        self.calls.append(user)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def build(limits: Any, clock: ManualClock | None = None, **options: Any) -> Limiter:
    options = {"key": ["user"], **options}
    return Limiter([Rule(name="api", limits=limits, **options)], clock=clock or ManualClock(1_000_000.0))


def quotas(limiter: Limiter, features: dict[str, Any] = ALICE) -> list[str]:
    return [str(decision.quota) for decision in limiter.peek(features).decisions]


def test_each_client_has_the_limits_of_the_function() -> None:
    """The function receives the value of the key."""
    limiter = build({"alice": "1/minute", "bob": "2/minute"}.get)
    assert [limiter.hit(ALICE).allowed for _ in range(2)] == [True, False]
    assert [limiter.hit({"user": "bob"}).allowed for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("5/minute; 20/hour", ["5/minute", "20/hour"]),
        (Quota("5/minute"), ["5/minute"]),
        (["5/minute", Quota(20, 3600.0)], ["5/minute", "20/hour"]),
        ((5, 60), ["5/minute"]),
        ("2 concurrent", ["2 concurrent"]),
    ],
)
def test_a_function_returns_limits_in_every_form(result: Any, expected: list[str]) -> None:
    """The forms are those of a rule."""
    assert quotas(build(lambda user: result)) == expected


def test_async_functions_work_with_both_methods() -> None:
    """`hit` runs an async function in an event loop of its own."""

    async def limits_of(user: str) -> str:
        await asyncio.sleep(0)
        return f"{len(user)}/minute"

    limiter = build(limits_of)
    assert quotas(limiter) == ["5/minute"]
    assert asyncio.run(limiter.ahit({"user": "bob"})).decisions[0].limit == 3


def test_a_result_is_kept_for_limits_ttl() -> None:
    """Until then the function is not called for that value."""
    clock, plans = ManualClock(1_000_000.0), Plans()
    limiter = build(plans, clock, limits_ttl="10s")
    for _ in range(3):
        limiter.hit(ALICE)
    limiter.hit({"user": "bob"})
    clock.advance(9.999999)
    limiter.hit(ALICE)
    assert plans.calls == ["alice", "bob"]
    clock.advance(0.000001)
    limiter.hit(ALICE)
    assert plans.calls == ["alice", "bob", "alice"]


def test_nothing_is_kept_without_a_ttl() -> None:
    """Each request calls the function."""
    plans = Plans()
    limiter = build(plans, limits_ttl=0)
    limiter.hit(ALICE)
    limiter.hit(ALICE)
    assert len(plans.calls) == 2


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
    limiter.adopt([make_mark("20/minute", {}, "shop.view")])
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
    """Alternatives are one entry, and a key without entries has no arguments."""
    seen: list[tuple[Any, ...]] = []

    def limits_of(*values: Any) -> str:
        seen.append(values)
        return "5/minute"

    build(limits_of, key=["endpoint", "user|ip"]).hit({"endpoint": "/a", "ip": "192.0.2.7"})
    build(limits_of, key=["user", "ip"]).hit(ALICE)
    build(limits_of, key=[]).hit({})
    assert seen == [("/a", "192.0.2.7"), ("alice", "unknown"), ()]


@pytest.mark.parametrize(
    ("key", "features", "value"),
    [
        ("user.id", {"user": {"id": 7}}, 7),
        ("user", {"user": Decimal("7.0")}, Decimal("7.0")),
        ("user", {"user": " Alice "}, " Alice "),
        ("path:id as int", {"path:id": "007"}, "7"),
        ("ip/24", {"ip": "192.0.2.7"}, "192.0.2.0/24"),
        ("user", {"user": INVALID}, INVALID),
        ("user", {"user": "a" * 1000}, "a" * 1000),
        ("user", {"user": b"a" * 1000}, b"a" * 1000),
    ],
)
def test_the_function_receives_the_value_of_the_feature(key: str, features: dict[str, Any], value: Any) -> None:
    """A value that is no text is passed as it is. A text has the form that tables compare."""
    plans = Plans()
    limiter = build(plans, key=[key])
    limiter.hit(features)
    limiter.hit(features)
    assert plans.calls == [value]


def test_values_that_are_equal_have_limits_of_their_own() -> None:
    """In Python ``1 == True``; the user 1 and the user True are two clients."""
    limiter = build(lambda user: "1/minute" if user is True else "5/minute")
    assert quotas(limiter, {"user": True}) == ["1/minute"]
    assert quotas(limiter, {"user": 1}) == ["5/minute"]


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


def test_per_key_returns_the_limits_of_single_clients() -> None:
    """For None the tables of ``per`` decide, then ``limits``, which may be a function too."""
    own = {"alice": "9/minute"}.get
    per = {"plan": {"pro": "8/minute"}}
    for limits in ("7/minute", lambda user: "7/minute"):
        limiter = build(limits, per_key=own, per=per)
        assert quotas(limiter, {**ALICE, "plan": "pro"}) == ["9/minute"]
        assert quotas(limiter, {"user": "bob", "plan": "pro"}) == ["8/minute"]
        assert quotas(limiter, {"user": "bob"}) == ["7/minute"]
        assert quotas(limiter, {"user": "bob", "plan": INVALID}) == ["7/minute"]


def test_a_rule_without_functions_keeps_its_tables_beside_one_with() -> None:
    """The plan of a request has rules of both kinds."""
    table = Rule(name="table", key=["user"], limits="3/minute", per_key={"alice": "4/minute"})
    limiter = Limiter([table, Rule(name="api", key=["user"], limits=lambda user: "5/minute")])
    assert quotas(limiter) == ["4/minute", "5/minute"]


def test_a_client_may_have_no_limits() -> None:
    """The text "unlimited" says so, of ``limits`` or of ``per_key``. Other limits of the rule do not apply then."""
    plans = {"alice": "unlimited", "bob": "1/minute"}
    for limiter in (build(plans.get), build("1/minute", per_key=plans.get)):
        verdicts = [limiter.hit(ALICE) for _ in range(3)]
        assert [(verdict.allowed, len(verdict.decisions)) for verdict in verdicts] == [(True, 0)] * 3
        assert [limiter.hit({"user": "bob"}).allowed for _ in range(2)] == [True, False]
    by_plan = build(plans.get, per={"plan": {"free": "3/minute"}})
    assert quotas(by_plan, {**ALICE, "plan": "free"}) == ["3/minute"]
    assert quotas(by_plan, {**ALICE, "plan": INVALID}) == ["3/minute"]
    alone = build(lambda user: "unlimited")
    alone.reset("api", ALICE)
    assert not asyncio.run(alone.ahit(ALICE)).decisions


ERRORS = [KeyError("alice@example.com"), "5/minit", None, 7, []]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_rejects_a_client_without_limits(error: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The limit never goes missing. The function is not called again within a second."""
    clock, plans = ManualClock(1_000_000.0), Plans(error)
    limiter = build(plans, clock)
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


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_keeps_the_last_limits(error: Any) -> None:
    """They stay in effect for as long as the function fails."""
    clock, plans = ManualClock(1_000_000.0), Plans()
    limiter = build(plans, clock, limits_ttl="10s")
    limiter.hit(ALICE)
    plans.result = error
    for _ in range(3):
        clock.advance(10.0)
        assert quotas(limiter) == ["2/minute"]
    assert len(plans.calls) == 4


def test_an_error_of_per_key_leaves_the_limits_of_the_rule() -> None:
    """They hold for a client without earlier limits of its own."""
    assert quotas(build("1/minute", per_key=Plans(KeyError()))) == ["1/minute"]


def test_the_log_names_the_line_of_the_error_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A function that fails for all clients does not fill the log."""
    limiter = build(Plans(KeyError("secret")))
    limiter.hit(ALICE)
    limiter.hit({"user": "bob"})
    (record,) = caplog.records
    assert f"KeyError at {__file__}:" in record.message


def test_an_error_of_a_shadow_rule_rejects_nothing() -> None:
    """The rule is left out of the decision."""
    assert build(Plans(KeyError()), mode="shadow").hit(ALICE).allowed


def test_a_limit_that_the_store_cannot_keep_is_an_error_of_the_function(caplog: pytest.LogCaptureFixture) -> None:
    """The store checks limits from a function too."""
    limiter = build(Plans("5/minute"))

    def refuse(limit: Any) -> None:
        raise ConfigError("too large")

    limiter.rules.rules[0].check = refuse
    assert limiter.hit(ALICE).unavailable
    assert "too large" in caplog.text


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
        with pytest.raises(ConfigError, match=r"rule 'api': limits: the function is async, .* await limiter.ahit"):
            asyncio.run(scenario(limiter))
    assert limiter.hit(ALICE).allowed
    assert asyncio.run(scenario(build(lambda user: Later())))
    assert asyncio.run(scenario(build(lambda user: limits_of(user))))
    assert "await limiter.ahit" in caplog.text


def test_concurrent_tasks_share_one_call() -> None:
    """They wait for the first of them, even when that one is cancelled."""
    calls = []

    async def scenario() -> None:
        gate = asyncio.Event()

        async def limits_of(user: str) -> str:
            calls.append(user)
            await gate.wait()
            return "9/minute"

        limiter = build(limits_of)
        tasks = [asyncio.ensure_future(limiter.ahit(ALICE)) for _ in range(10)]
        while not calls:
            await asyncio.sleep(0)
        tasks[0].cancel()
        gate.set()
        verdicts = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(verdicts[0], asyncio.CancelledError)
        assert all(verdicts[1:])

    asyncio.run(scenario())
    assert calls == ["alice"]


def test_concurrent_threads_share_one_call() -> None:
    """They wait for the first of them."""
    plans, arrived, gate = Plans("9/minute"), threading.Event(), threading.Event()

    def limits_of(user: str) -> Any:
        arrived.set()
        gate.wait()
        return plans(user)

    limiter = build(limits_of)
    with ThreadPoolExecutor(8) as pool:
        verdicts = [pool.submit(limiter.hit, ALICE) for _ in range(8)]
        arrived.wait()
        gate.set()
        assert all(verdict.result() for verdict in verdicts)
    assert plans.calls == ["alice"]


def test_an_expired_result_is_used_while_it_is_looked_up_again() -> None:
    """Only one request waits for the function."""
    clock, arrived, gate = ManualClock(1_000_000.0), threading.Event(), threading.Event()
    limiter = build(Plans("1/minute"), clock)
    limiter.hit(ALICE)

    def slow(user: str) -> str:
        arrived.set()
        gate.wait()
        return "5/minute"

    clock.advance(60.0)
    limiter.rules.rules[0]._of_rule.function = slow  # type: ignore[union-attr]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(quotas, limiter)
        arrived.wait()
        assert quotas(limiter) == ["1/minute"]
        gate.set()
        assert waiting.result() == ["5/minute"]


def test_a_request_does_not_wait_for_a_function_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do the next ones, for a second. Then another request makes another call. An async function is cancelled."""
    monkeypatch.setattr(lookup, "_LONGEST", 0.01)
    arrived, gate, calls = threading.Event(), threading.Event(), []

    def limits_of(user: str) -> str:
        calls.append(user)
        if len(calls) == 1:
            arrived.set()
            gate.wait()
        return "5/minute"

    clock = ManualClock(1_000_000.0)
    limiter = build(limits_of, clock)
    (lookup_of_rule,) = [limiter.rules.rules[0]._of_rule]
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(limiter.hit, ALICE)
        arrived.wait()
        assert lookup_of_rule is not None
        (call,) = lookup_of_rule._calls.values()
        assert call.wait() is None
        assert asyncio.run(call.await_()) is None
        assert limiter.hit(ALICE).unavailable
        assert calls == ["alice"]
        clock.advance(1)
        assert limiter.hit(ALICE).allowed
        gate.set()
        assert hanging.result()
    assert calls == ["alice", "alice"]

    async def forever(user: str) -> str:
        await asyncio.Event().wait()
        return "5/minute"

    assert asyncio.run(build(forever).ahit(ALICE)).unavailable
    assert build(forever).hit(ALICE).unavailable


def test_a_call_ends_when_its_thread_ends() -> None:
    """A worker that is stopped in the function leaves no call behind that later requests wait for."""
    plans = Plans("5/minute")

    def stop(user: str) -> str:
        raise SystemExit

    limiter = build(stop)
    with pytest.raises(SystemExit):
        limiter.hit(ALICE)
    limiter.rules.rules[0]._of_rule.function = plans  # type: ignore[union-attr]
    assert limiter.hit(ALICE).unavailable
    assert plans.calls == []


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps two generations of values, and as many different limits."""
    monkeypatch.setattr(lookup, "_MAX_VALUES", 4)
    for module in ("compiled", "plan"):
        monkeypatch.setattr(f"ratelimit_mw.rules.{module}.MAX_FOUND", 3)
    limiter = build(lambda user: f"{user}/minute")
    for user in range(1, 20):
        assert quotas(limiter, {"user": user}) == [f"{user}/minute"]
    rule = limiter.rules.rules[0]
    assert rule._of_rule is not None
    assert len(rule._of_rule._young) + len(rule._of_rule._old) <= 4
    assert len(rule._found) <= 3
    assert len(limiter.match({})._found) <= 3
    assert quotas(limiter, {"user": 18}) == ["18/minute"]


def test_a_forked_child_waits_for_no_call_of_its_parent() -> None:
    """The thread that makes the call is not in the child."""
    limits = build(Plans()).rules.rules[0]._of_rule
    assert limits is not None
    limits._calls = {"key": None}  # type: ignore[dict-item]
    limits._after_fork(True)
    assert not limits._calls


def test_reset_forgets_the_counts_of_the_limits_that_the_function_returns() -> None:
    """The keys of a client depend on the periods of its limits."""
    limiter = build(Plans("1/minute; 5/hour"))
    limiter.hit(ALICE)
    limiter.reset("api", ALICE)
    assert limiter.hit(ALICE).decisions[1].remaining == 4
    asyncio.run(limiter.areset("api", ALICE))
    assert asyncio.run(limiter.ahit(ALICE)).allowed
    with pytest.raises(ConfigError, match="the limits of rule 'api' are not known, because their function failed"):
        build(Plans(KeyError())).reset("api", ALICE)


def test_slots_from_a_function_are_held_and_returned() -> None:
    """A function may return a concurrency limit."""
    limiter = build(lambda user: "1 concurrent")
    with limiter.slot(ALICE):
        assert not limiter.hit(ALICE)
    assert limiter.hit(ALICE)


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        (lambda: "5/minute", {}, r"rule \"api\": limits: expected a function of the value of 'user'; got <lambda>\(\)"),
        ("5/minute", {"per_key": lambda: "5/minute"}, r"per_key: expected a function of the value of 'user'"),
        ("5/minute", {"per_key": lambda user: None, "key": ["user", "ip"]}, "per_key needs a key of one part"),
        (lambda user: "5/minute", {"limits_ttl": "soon"}, "limits_ttl: expected a duration"),
    ],
)
def test_a_function_that_cannot_work_is_an_error_at_the_start(limits: Any, options: Any, message: str) -> None:
    """The message names the option."""
    with pytest.raises(ConfigError, match=message):
        build(limits, **options)


def test_a_decorator_takes_a_function_with_a_key() -> None:
    """Without options it is the view of a decorator without parentheses."""
    limit(Plans(), key=["user"])
    with pytest.raises(ConfigError, match=r'expected @limit\("5/minute"\), with its limits, or @limit\(function, key='):
        limit(Plans.__call__)


def test_messages_take_no_slots_from_a_function(caplog: pytest.LogCaptureFixture) -> None:
    """The end of a message is not known."""

    @messages(lambda user: "1 concurrent", key=["user"])
    async def chat(websocket: Any) -> None: ...

    limiter = Limiter()
    (mark,) = chat.__ratelimit_mw__.messages  # type: ignore[attr-defined]
    limiter.adopt([mark])
    plan = limiter.rules.plan_of([mark], "GET", "", None, None)
    assert limiter.decide(plan, ALICE).unavailable
    assert "'1 concurrent' cannot be used for messages" in caplog.text
