"""Limits that change with the time: when they change, what stays, and what comes before them."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from shared_store import SharedStore
from tables import each, expect_error

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.clock import machine
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import ManualClock, limits_timed_by

ANN = {"user": "ann"}
BOB = {"user": "bob"}
WORK = "mon-fri 08:00-18:00"
END = datetime(2026, 1, 7, 18, tzinfo=UTC).timestamp()  # a Wednesday


def rule_of(inside: Any = "50/hour", limits: Any = "200/hour", **options: Any) -> Rule:
    algorithm = (
        {} if "concurrent" in str(inside) and "concurrent" in str(limits) else {"algorithm": "sliding-window-log"}
    )
    return Rule(
        name="exports", **{"key": ["user"], "limits": limits, "schedule": {WORK: inside}, **algorithm, **options}
    )


def limiter_of(
    store: str | Store = "memory://", seconds: float = END - 1, **options: Any
) -> tuple[Limiter, ManualClock]:
    clock = ManualClock(seconds)
    settings = load_settings({"store_timeout": "9s"})
    return Limiter([rule_of(**options)], store, clock, settings), clock


def limits(limiter: Limiter, features: Any = ANN) -> list[str]:
    """Return the limits that a request of the client meets."""
    return [str(decision.source.quota) for decision in limiter.peek(features, cost=0).decisions]


@each("algorithm", ["token-bucket", "sliding-window-log", "fixed-window", "sliding-window"])
def test_limits_change_at_their_microsecond_and_counts_stay(any_url: str, way: Any, algorithm: str) -> None:
    """The decision and the choice of the limits have one time, on every store."""
    limiter, clock = limiter_of(any_url, END - 0.000001, algorithm=algorithm, inside="50/2d", limits="200/2d")
    hit = way(limiter).hit
    before = hit(ANN, 40).decisions[0]
    assert (before.limit, before.remaining) == (50, 10)
    assert not hit(ANN, 11).allowed
    clock.advance(0.000001)
    after = hit(ANN, 11).decisions[0]
    assert (after.limit, after.remaining) == (200, 149)
    clock.advance(-0.000001)
    rejected = hit(ANN).decisions[0]
    assert (rejected.allowed, rejected.limit, rejected.remaining) == (False, 50, 0)
    limiter.reset("exports", ANN)
    way(limiter).close()


def test_a_limit_with_another_period_has_a_count_of_its_own() -> None:
    limiter, clock = limiter_of(inside="5/minute; 50/hour")
    assert [decision.remaining for decision in limiter.hit(ANN).decisions] == [4, 49]
    clock.advance(1)
    assert [decision.remaining for decision in limiter.hit(ANN).decisions] == [198]
    clock.advance(-1)
    assert [decision.remaining for decision in limiter.peek(ANN, 0).decisions] == [4, 48]


def test_a_client_with_limits_of_its_own_keeps_them() -> None:
    """An override comes before ``per_key``, then ``per``, then the schedule, then ``limits``."""
    options: Any = {"per_key": {"bob": "7/hour"}, "per": {"plan": {"pro": "9/hour"}}}
    limiter, clock = limiter_of(**options)
    limiter.clients.override("exports", {"user": "eve"}, "3/hour")
    cases: list[tuple[dict[str, Any], str]] = [
        (BOB, "7/hour"),
        ({"user": "ann", "plan": "pro"}, "9/hour"),
        ({"user": "eve", "plan": "pro"}, "3/hour"),
    ]
    for scheduled in ("50/hour", "200/hour"):
        assert limits(limiter) == [scheduled]
        assert [limits(limiter, features) for features, _ in cases] == [[expected] for _, expected in cases]
        clock.advance(1)
    clock.advance(-2)
    assert limiter.clients.remove_override("exports", {"user": "eve"})
    assert limits(limiter, {"user": "eve"}) == ["50/hour"]


def test_a_schedule_replaces_limits_of_a_function(way: Any) -> None:
    """The function is not called in the range."""
    calls: list[str] = []

    async def limits_of(user: str) -> str:
        calls.append(user)
        return "9/hour"

    limiter, clock = limiter_of(limits=limits_of)
    assert way(limiter).hit(ANN).decisions[0].limit == 50
    assert calls == []
    clock.advance(1)
    assert way(limiter).hit(ANN).decisions[0].limit == 9
    assert calls == ["ann"]


def test_a_ban_lasts_beyond_its_range(any_url: str) -> None:
    limiter, clock = limiter_of(any_url, inside="1/hour", ban={"after": 1, "within": "1m", "for": "1h"})
    assert [bool(limiter.hit(ANN)) for _ in range(3)] == [True, False, False]
    clock.advance(1)
    banned = limiter.hit(ANN)
    assert (banned.allowed, banned.rejected_by[0].banned, banned.retry_after) == (False, True, 3599.0)
    assert [each.banned for each in limiter.clients.inspect("exports", ANN, rejected=True).decisions] == [True]
    limiter.close()


def test_shadow_mode_shows_what_a_range_would_reject() -> None:
    limiter, _ = limiter_of(inside="1/hour", mode="shadow")
    verdicts = [limiter.hit(ANN) for _ in range(2)]
    assert [(each.allowed, each.decisions[0].allowed) for each in verdicts] == [(True, True), (True, False)]


def test_no_share_of_a_process_outlives_its_range(shared: SharedStore) -> None:
    """What a process has taken counts in the next range."""
    limiter, clock = limiter_of(shared, inside="100/hour", limits="1000/hour", consistency="leased")
    other = Limiter([rule_of("100/hour", "1000/hour")], shared.states, clock)
    assert sum(bool(limiter.hit(ANN)) for _ in range(50)) == 50
    assert shared.calls < 50
    clock.advance(1)
    assert limiter.hit(ANN).decisions[0].limit == 1000
    limiter.close()
    assert other.peek(ANN, 0).decisions[0].remaining == 1000 - 51


def test_a_cached_rejection_ends_with_its_range() -> None:
    """The cache of rejections is on where the limiter has no clock of its own."""
    store, clock = SharedStore(), ManualClock(END - 0.5)
    with limits_timed_by(clock):
        limiter = Limiter([rule_of("1/hour", "9/hour")], store)
        assert [bool(limiter.hit(ANN)) for _ in range(3)] == [True, False, False]
        calls = store.calls
        clock.advance(0.4)
        assert not limiter.hit(ANN)
        assert store.calls == calls
        clock.advance(0.1)
        assert limiter.hit(ANN).decisions[0].remaining == 7


def test_a_slot_is_returned_in_the_next_range() -> None:
    limiter, clock = limiter_of(inside="1 concurrent", limits="3 concurrent")
    first = limiter.hit(ANN)
    assert (bool(first), bool(limiter.hit(ANN))) == (True, False)
    clock.advance(1)
    second = limiter.hit(ANN)
    assert second.decisions[0].remaining == 1
    limiter.refund(first)
    assert limiter.peek(ANN, 0).decisions[0].remaining == 2
    limiter.refund(second)


def test_a_rule_may_hold_slots_in_a_range_only() -> None:
    """A wait needs a slot in one of the ranges."""
    limiter, clock = limiter_of(inside="1 concurrent", wait="1s")
    with limiter.slot(ANN) as verdict:
        assert str(verdict.decisions[0].quota) == "1 concurrent"
    assert limiter.peek(ANN, 0).decisions[0].remaining == 1
    clock.advance(1)
    with limiter.slot(ANN) as verdict:
        assert str(verdict.decisions[0].quota) == "200/hour"


def test_a_cost_is_settled_and_refunded_across_a_change() -> None:
    expect_error(r"^rule 'exports': cost: the cost 6 is above the limit 5/hour", limiter_of, inside="5/hour", cost=6)
    limiter, clock = limiter_of(cost=10)
    first, second = limiter.hit(ANN), limiter.hit(ANN)
    clock.advance(1)
    limiter.settle(first, 3)
    limiter.refund(second)
    assert limiter.peek(ANN, 0).decisions[0].remaining == 197


def test_inspect_shows_the_limits_of_now_and_reset_forgets_all(any_url: str, way: Any) -> None:
    limiter, clock = limiter_of(any_url, inside="5/minute; 50/hour")

    def shown(features: Any) -> list[tuple[str, int]]:
        page = way(limiter.clients).inspect("exports", features)
        return sorted((str(decision.quota), decision.remaining) for decision in page.decisions)

    for seconds, expected in (0, [("5/minute", 4), ("50/hour", 49)]), (1, [("200/hour", 198)]):
        clock.advance(seconds)
        way(limiter).hit(ANN)
        for features in [ANN] if any_url.startswith("memcached") else [ANN, None]:
            assert shown(features) == expected
    way(limiter).reset("exports", ANN)
    clock.advance(-1)
    assert shown(ANN) == [("5/minute", 5), ("50/hour", 50)]
    way(limiter).close()


def test_two_schedules_change_at_their_own_times() -> None:
    """A plan has one form for each pair of ranges, and both rules hold in each."""
    night = Rule(name="night", key=["user"], limits="9/hour", schedule={"wed 17:00-20:00": "3/hour"})
    plain = Rule(name="plain", key=["user"], limits="4/hour")
    clock = ManualClock(END - 3 * 3600)
    limiter = Limiter([rule_of(), night, plain], clock=clock)
    found = []
    for _ in range(6):
        found.append(limits(limiter))
        clock.advance(3600)
    outside = ["200/hour", "9/hour", "4/hour"]
    evening = ["200/hour", "3/hour", "4/hour"]
    assert found == [["50/hour", "9/hour", "4/hour"]] * 2 + [["50/hour", "3/hour", "4/hour"], evening, evening, outside]


def test_a_schedule_follows_a_wall_clock_that_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock may be wrong when a worker starts, and a machine may be suspended."""
    limiter = Limiter([rule_of()])
    for seconds, expected in ((END - 1, "50/hour"), (END, "200/hour"), (END - 1, "50/hour")):
        monkeypatch.setattr(machine, "time_ns", lambda seconds=seconds: int(seconds) * 10**9)
        assert limits(limiter) == [expected]


def test_a_reload_changes_the_schedule(tmp_path: Path) -> None:
    """The rules that stay the same keep their plan, and those that change have the new ranges at once."""
    file = tmp_path / "ratelimit.toml"
    text = '[[rules]]\nname = "exports"\nkey = "user"\nlimits = "200/hour"\nschedule = {{ "{}" = "{}/hour" }}\n'
    file.write_text(text.format(WORK, 50))
    limiter = Limiter.from_settings(str(file), ManualClock(END - 1))
    limiter.hit(ANN)
    for text_of_range, limit in ((WORK, 60), ("wed", 70), ("thu", 200)):
        file.write_text(text.format(text_of_range, 200 if limit == 200 else limit))
        limiter.reload()
        decision = limiter.peek(ANN, 0).decisions[0]
        assert (decision.limit, decision.remaining) == (limit, limit - 1)


def test_commands_know_the_range_of_a_time(tmp_path: Path) -> None:
    """``explain`` shows the range of now. ``replay`` decides each line of a log at its time, also out of order."""
    path, log = tmp_path / "limits.toml", tmp_path / "access.log"
    path.write_text(f'[[rules]]\nname = "exports"\nlimits = "2/minute"\nschedule = {{ "{WORK}" = "1/minute" }}\n')
    clock, arguments = ManualClock(END - 1), ("explain", path, "GET", "/", "--feature", "ip=192.0.2.7", "--json")
    with limits_timed_by(clock):
        for seconds, expected in (0, (WORK, "1/minute")), (1, (None, "2/minute")):
            clock.advance(seconds)
            rule = json.loads(run(*arguments).stdout)["rules"][0]
            assert (rule["schedule"], rule["limits"][0]["limit"]) == expected
    moments = ["17:59:00", "17:59:01", "18:00:02", "18:00:03", "17:59:04", "18:00:05"]
    log.write_text("".join(f'192.0.2.7 - - [07/Jan/2026:{at} +0000] "GET / HTTP/1.1" 200 1\n' for at in moments))
    rule = json.loads(run("replay", path, log, "--json").stdout)["rules"][0]
    assert (rule["matched"], rule["rejected"]) == (6, 3)
    assert rule["limits"] == [{"limit": "2/minute", "rejected": 1}, {"limit": "1/minute", "rejected": 2}]
