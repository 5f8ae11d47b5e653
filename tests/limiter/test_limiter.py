"""The limiter and its verdicts, blocking and async: all or nothing over limits and keys."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from limiter_ways import ANN, left, limiter, rule
from tables import each, expect_error

from ratelimit_mw import ConfigError, Limiter, Quota, RateLimitExceeded, Rule, Settings, Verdict, load_settings
from ratelimit_mw.decision import Limit
from ratelimit_mw.errors import RateLimitError
from ratelimit_mw.rules.decorators import make_mark
from ratelimit_mw.stores import LmdbStore, MemoryStore
from ratelimit_mw.testing import ManualClock


def test_every_method_that_may_wait_has_an_async_form() -> None:
    """The async form has the same arguments."""
    for name in ("hit", "peek", "decide", "refund", "settle", "conclude", "reset", "close"):
        blocking, awaited = getattr(Limiter, name), getattr(Limiter, f"a{name}")
        assert inspect.signature(blocking) == inspect.signature(awaited)
        assert inspect.iscoroutinefunction(awaited)


def test_a_limiter_has_the_rules_and_the_store_of_its_settings(tmp_path: Path) -> None:
    """Neither goes missing. Arguments replace them, even with nothing."""
    url = f"lmdb://{tmp_path}/state"
    settings = load_settings({"store": url, "rules": [{"name": "site", "limits": "9/day"}]})
    for options, names, kind in [
        ({}, ["site"], LmdbStore),
        ({"rules": [rule("2/day", "own")]}, ["own"], LmdbStore),
        ({"rules": []}, [], LmdbStore),
        ({"store": "memory://"}, ["site"], MemoryStore),
    ]:
        rate = Limiter(**options, settings=settings)  # type: ignore[arg-type]
        assert ([each.name for each in rate.rules.rules], type(rate.store)) == (names, kind)
        rate.close()


def test_a_limiter_with_the_rules_of_its_settings_follows_them() -> None:
    """A reload reads them again, as with ``from_settings``. Rules of your own stay."""
    table: Any = {"rules": [{"name": "site", "limits": "9/day"}]}
    settings = load_settings(table)
    rates = [Limiter(settings=settings), Limiter([rule("2/day")], settings=settings)]
    assert rates[0].reloads.watch is None, "a dictionary has no file to look at"
    table["rules"][0]["limits"] = "5/day"
    for rate in rates:
        rate.reload()
    assert [left(rate, ANN) for rate in rates] == [[5], [2]]


# -- all or nothing ----------------------------------------------------------------------------------------


def test_a_rejected_request_consumes_nothing(way: Any) -> None:
    """Across limits, rules and keys: a request counts everywhere or nowhere."""
    rate = limiter(
        rule("9/minute; 90/hour", "by-ip"),
        rule("2/minute", "by-user", key=["user"]),
        rule("900/day", "all", key=[]),
    )
    seen = [way(rate).hit(ANN) for _ in range(5)]
    assert [verdict.allowed for verdict in seen] == [True, True, False, False, False]
    assert left(rate) == [7, 88, 0, 898]
    assert left(rate, {**ANN, "user": "bob"}) == [7, 88, 2, 898]
    assert left(rate, {**ANN, "ip": "192.0.2.8"}) == [9, 90, 0, 898]


def test_a_rejected_verdict_has_a_decision_of_each_limit(way: Any) -> None:
    """The rejecting limits have a retry_after; the others show their state and are allowed."""
    rate = limiter(
        rule("2/minute; 2/hour", "a", algorithm="fixed-window"), rule("9/minute", "b", algorithm="fixed-window")
    )
    for _ in range(2):
        way(rate).hit(ANN)
    verdict = way(rate).hit(ANN)
    assert [(d.rule, str(d.quota), d.allowed, d.remaining) for d in verdict.decisions] == [
        ("a", "2/minute", False, 0),
        ("a", "2/hour", False, 0),
        ("b", "9/minute", True, 7),
    ]
    assert [d.retry_after for d in verdict.decisions] == [20.0, 800.0, 0.0]
    assert verdict.retry_after == 800.0
    assert [str(d.quota) for d in verdict.rejected_by] == ["2/minute", "2/hour"]
    assert verdict.rules == ("a", "b")


def test_retry_after_is_exact(way: Any) -> None:
    """At retry_after the same request is allowed, one microsecond before it is not."""
    rate = limiter(rule("2/minute", "a"), rule("3/7s", "b"))
    clock = rate.clocks.own
    assert isinstance(clock, ManualClock)
    for _ in range(40):
        verdict = way(rate).hit(ANN)
        if verdict:
            continue
        clock.advance(verdict.retry_after - 1e-6)
        assert not way(rate).peek(ANN)
        clock.advance(1e-6)
        assert way(rate).peek(ANN)


def test_a_cost_beyond_the_limit_has_no_retry_after(way: Any) -> None:
    """retry_after is None, even when other limits have a time. Waiting does not help, so the error has no number."""
    rate = limiter(rule("5/minute", "small"), rule("50/minute", "large"))
    way(rate).hit(ANN, cost=5)
    verdict = way(rate).hit(ANN, cost=46)
    assert [d.retry_after is None for d in verdict.decisions] == [True, False]
    assert verdict.retry_after is None
    with pytest.raises(RateLimitExceeded, match=r"rejected by small \(5/minute\): waiting does not help"):
        limiter(rule("5/minute", "small")).hit(ANN, cost=6).raise_for_limit()


# -- looking, refunds, settling, forgetting ---------------------------------------------------------------


@each("limits", ["2/minute", "2/minute; 9/hour"])
def test_a_peek_equals_the_next_hit(way: Any, limits: str) -> None:
    """Any number of peeks consume nothing, and a refund of a peek returns nothing."""
    rate = limiter(rule(limits))
    for _ in range(3):
        peeks = [way(rate).peek(ANN) for _ in range(3)]
        for peek in peeks:
            way(rate).refund(peek)
            way(rate).settle(peek, 2)
        assert {repr(verdict) for verdict in peeks} == {repr(way(rate).hit(ANN))}


def test_a_cost_of_zero_is_always_allowed(way: Any) -> None:
    """It shows what remains, even of a key that is used up."""
    rate = limiter(rule())
    assert [way(rate).hit(ANN, cost=0).allowed for _ in range(5)] == [True] * 5
    way(rate).hit(ANN, cost=2)
    assert way(rate).peek(ANN, cost=0).allowed
    assert left(rate) == [0]


def test_reset_forgets_one_key_of_one_rule(way: Any) -> None:
    """It forgets all limits of that rule for that key, and nothing else."""
    per_key = {"ann": "1/minute", "bob": "1/10s; 2/minute"}
    rate = limiter(rule("3/minute; 5/hour", "a", key=["user"], per_key=per_key), rule("9/minute", "b", key=[]))
    users = [{"user": name} for name in ("ann", "bob", "cid", "dan")]
    for user in users:
        way(rate).hit(user)
    for user in users[:3]:
        way(rate).reset("a", user)
    assert [left(rate, user) for user in users] == [[1, 5], [1, 2, 5], [3, 5, 5], [2, 4, 5]]


def test_reset_of_an_unknown_rule_or_key_is_an_error(way: Any) -> None:
    """The rule does not exist, or a feature of its key is missing."""
    rate = limiter(rule(name="login", key=["user"]))
    expect_error("unknown rule 'logn'", way(rate).reset, "logn", ANN)
    expect_error("rule 'login' does not use ip. Its key is: user", way(rate).reset, "login", {"ip": "192.0.2.7"})
    expect_error("There is none", way(limiter()).reset, "login", ANN)


# -- verdicts ----------------------------------------------------------------------------------------------


def test_a_verdict_is_true_when_allowed() -> None:
    """raise_for_limit raises for a rejected verdict only."""
    rate = limiter(rule("1/minute; 2/hour", algorithm="fixed-window"))
    allowed, rejected = rate.hit(ANN), rate.hit(ANN)
    assert [bool(allowed), bool(rejected)] == [True, False]
    allowed.raise_for_limit()
    with pytest.raises(RateLimitExceeded) as caught:
        rejected.raise_for_limit()
    assert caught.value.verdict is rejected
    assert str(caught.value) == "rejected by r (1/minute): retry after 20 s"
    assert isinstance(caught.value, RateLimitError)
    rate.clocks.own.advance(0.9)  # type: ignore[union-attr]
    with pytest.raises(RateLimitExceeded, match="retry after 20 s"):
        rate.hit(ANN).raise_for_limit()


def test_the_repr_of_a_limiter_shows_its_store_and_its_rules() -> None:
    """A log or a debugger shows it, and no login."""
    limiter = Limiter([Rule(name=name, limits="5/minute") for name in ("login", "api")], "redis://ann:hidden@cache/0")
    assert repr(limiter) == "<Limiter <RedisStore redis://cache/0>: login, api>"
    assert repr(Limiter([])) == "<Limiter <MemoryStore memory://>: no rules>"


def test_the_repr_of_a_verdict_shows_its_decisions() -> None:
    """All times are in seconds."""
    verdict = limiter(rule("5/minute", algorithm="fixed-window")).hit(ANN)
    assert repr(verdict) == (
        "Verdict(allowed=True, retry_after=0.0, decisions=[Decision(rule='r', quota='5/minute', allowed=True,"
        " limit=5, remaining=4, reset_after=20.0, retry_after=0.0)])"
    )
    decision = verdict.decisions[0]
    assert (decision.quota, decision.at, decision.delay) == (Quota(5, 60), 1_000_000.0, 0.0)
    empty = limiter().hit(ANN)  # without rules there is nothing to reject or to consume
    assert (empty.allowed, empty.rules, empty.retry_after, empty.rejected_by) == (True, (), 0.0, [])
    assert repr(Verdict()) == repr(empty)


# -- building and closing ----------------------------------------------------------------------------------


def test_a_clock_in_seconds_is_an_error() -> None:
    """Such a clock would make every limit a million times too wide."""
    with pytest.raises(TypeError, match="a clock must return whole microseconds as an int"):
        Limiter([rule()], clock=lambda: 1_000_000.0)  # type: ignore[arg-type, return-value]


@each(
    ("arguments", "message"),
    [
        ({"rules": "ratelimit.toml"}, "rules: expected a list of rules, as in .*; got 'ratelimit.toml'. For a file or"),
        ({"rules": Rule(limits="5/minute")}, "rules: expected a list of rules, as in .*; got Rule\\(limits='5/minute'"),
        ({"rules": ["5/minute"]}, "rules\\[0\\]: expected a Rule, as in .*; got '5/minute'"),
        ({"rules": [rule(), rule()]}, "the name 'r' is already used"),
        (
            {"settings": {"rules": []}},
            r"settings: expected Settings; got dict\. Write Limiter\.from_settings\(\.\.\.\)",
        ),
        ({"settings": "r.toml"}, r"settings: expected Settings; got str\. .*, or pass load_settings\(\.\.\.\)$"),
        (
            {"clock": 5},
            r"^clock: expected a function that returns whole microseconds; got 5\. Use lambda: .*ManualClock$",
        ),
        ({"store": "nothing://x"}, "store: unknown scheme 'nothing' of a store URL"),
        (
            {"store": redis.Redis(password="hunter2")},
            r"store: expected a store URL or a Store, such as RedisStore\(client=\.\.\.\); got Redis$",
        ),
    ],
)
def test_an_invalid_argument_is_an_error_at_the_start(arguments: dict[str, Any], message: str) -> None:
    """Rules and stores are checked before the first request."""
    expect_error(message, Limiter, **arguments)


class SmallStore(MemoryStore):
    """Keeps amounts of at most 10."""

    def check(self, limit: Limit) -> None:
        if limit.limit > 10:
            raise ConfigError(f"the amount is at most 10, not {limit.limit}")


def test_a_limit_that_the_store_cannot_keep_is_an_error_at_the_start() -> None:
    """Limits of rules, of tables and of decorators; the error names the rule."""
    table = {"plan": {"free": "5/minute", "pro": "50/minute"}}
    for rejected in (rule("20/minute", "wide"), rule("5/minute", "wide", per=table)):
        expect_error(r"rule 'wide': the amount is at most 10, not [25]0", Limiter, [rule(), rejected], SmallStore())
    mark = make_mark("20/minute", {"name": "login"}, "views.login")
    adopt = Limiter([rule()], SmallStore()).reloads.adopt
    expect_error("rule 'login': the amount is at most 10, not 20", adopt, [mark])


@each(
    "options",
    [
        {},
        {"limits": "9/minute; 3/second"},
        {"limits": "9/minute burst 3", "algorithm": "gcra"},
        {"limits": "9/minute", "per_key": {"192.0.2.7": "3/minute"}},
        {"limits": "9/minute", "per": {"user": {"ann": "3/minute"}}},
        {"limits": "9/minute", "schedule": {"mon": "3/minute"}},
        {"limits": "3 concurrent"},
        {"limits": "3/minute", "lease": "50%"},
    ],
)
def test_a_cost_above_a_limit_is_an_error_at_the_start(options: dict[str, Any]) -> None:
    """Such a limit would reject every request, of the rules and of the decorators."""
    options = {"name": "r", "cost": 5, "limits": "3/minute", **options}
    message = r"^rule 'r': cost: the cost 5 is above the limit .*3.*, so every request is rejected$"
    expect_error(message, Limiter, [Rule(**options)])
    mark = make_mark(options.pop("limits"), options, "views.r")  # type: ignore[arg-type]
    expect_error(message, Limiter([]).reloads.adopt, [mark])


def test_a_limiter_can_be_closed_twice(way: Any) -> None:
    """The second close changes nothing, and the settings can still be read."""
    rate = Limiter.from_settings(Settings(limits="3/minute"))
    for _ in range(2):
        way(rate).close()
    assert rate.settings.store == "memory://"
    assert not rate.waits


def test_a_clock_that_reads_0_is_the_time_of_a_missing_key() -> None:
    """The time 0 is a time, even where no store is asked."""
    rule = Rule(name="api", limits="1/minute", key=["user"], when_missing="reject")
    assert Limiter([rule], clock=ManualClock(0.0)).hit({}).decisions[0].at == 0.0
