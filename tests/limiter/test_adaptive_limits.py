"""Adaptive limits in front of the store: each process sheds what it cannot bear, and asks no store for that."""

import asyncio
import itertools
import json
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from shared_store import SharedStore
from tables import each, expect_error

from ratelimit_mw import Event, Limiter, Rule, Verdict, load_settings
from ratelimit_mw.clock import SECOND, machine
from ratelimit_mw.limiter import adaptive_limits
from ratelimit_mw.limiter.adaptive import Aimd
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}
LIMIT = "adaptive 5..200 concurrent"
RATE = "adaptive 5..10/second"


def limiter(store: Any = None, limits: Any = LIMIT, observers: Any = (), **options: Any) -> Limiter:
    rule = Rule(name="api", limits=limits, target="250ms", **{"key": [], **options})
    return Limiter([rule], store, ManualClock(1_000_000.0), observers=observers)


def state(limits: Limiter) -> Aimd:
    (found,) = limits.adaptive.states().values()
    return found


def fill(limits: Limiter, **features: Any) -> list[Verdict]:
    """Hit until a request is rejected. Return the verdicts of those that are in flight."""
    held: list[Verdict] = []
    while verdict := limits.hit({**WHO, **features}):
        held.append(verdict)
    return held


def test_a_request_over_the_limit_is_rejected_without_the_store(shared: SharedStore) -> None:
    """It gets a 503 and a random wait. The limit of that moment is that of the decision. A verdict can be pickled."""
    limits = limiter(shared, [LIMIT, "1000/minute"])
    held, calls = fill(limits), shared.calls
    rejected = [limits.hit(WHO) for _ in range(50)]
    assert (len(held), shared.calls) == (18, calls)
    assert {(v.status, v.shed, v.unavailable, v.banned) for v in rejected} == {(503, True, False, False)}
    assert {v.retry_after for v in rejected} <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert len({v.retry_after for v in rejected}) > 1
    assert [(d.limit, d.remaining, d.shed) for d in rejected[0].decisions] == [(18, 0, True)]
    assert [(d.limit, d.remaining) for d in pickle.loads(pickle.dumps(held[0])).decisions] == [(18, 17), (1000, 999)]


def test_each_class_has_its_share() -> None:
    """The shares are those of the table of priorities."""
    limits = limiter()
    held = [fill(limits, priority=name) for name in ("background", "normal", "critical")]
    assert [*map(len, held)] == [12, 6, 2]
    settings = load_settings(
        {
            "priorities": {"order": ["vip", "all"], "shed": {"all": "50%"}},
            "rules": [{"limits": LIMIT, "target": 0.25, "key": []}],
        }
    )
    limits = Limiter.from_settings(settings, ManualClock(1_000_000.0))
    held = [fill(limits, priority=name) for name in ("all", "vip")]
    assert [*map(len, held)] == [10, 10]


@each(
    ("shed", "message"),
    [
        ({"vip": "50%"}, "priorities.shed.vip: unknown class 'vip'"),
        ({"background": "0%"}, 'priorities.shed.background: expected a share from "1%" to "100%"'),
        ({"normal": "50%"}, "priorities.shed: expected shares that fall in the order of the classes"),
    ],
)
def test_shares_that_cannot_work_are_an_error(shed: Any, message: str) -> None:
    """The message has the place."""
    expect_error(message, load_settings, {"priorities": {"shed": shed}})


def test_a_place_ends_with_its_request(way: Any, store: Store) -> None:
    """It ends once: by its end, a refund, a rejection by the store, an error, or a verdict that was dropped."""
    limits = limiter(store, [LIMIT, "5/minute"])
    call = way(limits)
    verdicts = [call.hit(WHO) for _ in range(6)]
    assert [bool(verdict) for verdict in verdicts] == [True] * 5 + [False]
    assert (verdicts[-1].status, len(state(limits).requests)) == (429, 5)
    call.peek(WHO)
    for _ in range(2):
        call.conclude(verdicts[0], 200)
        call.refund(verdicts[1])
    assert len(state(limits).requests) == 3
    verdicts[2]["api"].settle(1)
    del verdicts
    verdict = call.hit(WHO)
    assert len(state(limits).requests) == len(verdict.rules) == 1


def test_a_peek_shows_that_a_request_would_be_shed(way: Any, store: Store) -> None:
    """It takes no place."""
    limits = limiter(store, [LIMIT, "1000/minute"])
    call = way(limits)
    assert [(d.limit, d.remaining) for d in call.peek(WHO).decisions] == [(18, 18), (1000, 999)]
    held = fill(limits)
    for _ in range(2):
        verdict = call.peek(WHO)
        assert (verdict.status, verdict.shed, verdict.retry_after) == (503, True, 1.0)
        assert [(d.limit, d.remaining) for d in verdict.decisions] == [(18, 0)]
    assert [(d.limit, d.remaining) for d in call.peek(WHO, 0).decisions] == [(18, 0), (1000, 982)]
    limits.conclude(held.pop(), 200)
    assert [(d.limit, d.remaining) for d in call.peek(WHO).decisions] == [(18, 1), (1000, 981)]


def test_an_error_ends_the_place(shared: SharedStore) -> None:
    """A store of your own may raise any error."""
    limits = limiter(shared, [LIMIT, "5/minute"])
    shared.apply = lambda *_: 1 // 0  # type: ignore[assignment, method-assign]
    with pytest.raises(ZeroDivisionError):
        limits.hit(WHO)
    assert len(state(limits).requests) == 0


def test_a_rule_that_waits_for_slots_and_an_adaptive_one_apply_together() -> None:
    """The store is asked for the slots of the request that has a place."""
    rules = [Rule(name="api", limits=LIMIT, target=1), Rule(name="jobs", limits="1 concurrent", wait="1s")]
    for store in (None, SharedStore()):
        limits = Limiter(rules, store, ManualClock(1_000_000.0))
        with limits.slot(WHO) as verdict:
            assert verdict.rules == ("api", "jobs")
        verdict = asyncio.run(limits.ahit(WHO))
        assert verdict.rules == ("api", "jobs")
        limits.conclude(verdict, 200)
        assert len(state(limits).requests) == 0


def test_the_time_of_a_response_decides() -> None:
    """The time in the queue of the proxy counts. A drop is slow, and a WebSocket has no time."""
    limits = limiter(limits="adaptive 5..200 concurrent; 1000000/minute")
    clock: Any = limits.clocks.own

    def window(status: int | None, took: float = 0.0, **features: Any) -> str:
        for _ in range(120):
            verdict = limits.hit({**WHO, **features})
            clock.advance(took)
            limits.conclude(verdict, status)
        clock.advance(1)
        limits.conclude(limits.hit(WHO), 101)
        return state(limits).reason

    assert [window(200), window(200, 0.3)] == ["start", "slow"]
    assert [window(503), window(200), window(None)] == ["dropped", "dropped", "dropped"]
    before = state(limits).limit
    assert (window(101, 10), state(limits).limit) == ("dropped", before)
    assert window(200, request_start=time.time() - 1) == "slow"
    for start in (time.time() - 1000, "yesterday", time.time() + 9):
        before = state(limits).limit
        window(200, request_start=start)
        assert state(limits).limit == before


def test_the_queue_of_a_proxy_has_the_wall_clock_of_the_moment(
    monkeypatch: pytest.MonkeyPatch, responses: list[tuple[int, int | None]]
) -> None:
    """An operator, or a network time server, may step it while the process runs."""
    limits, now = Limiter([Rule(name="api", limits=LIMIT, target=1, key=[])]), time.time_ns()
    monkeypatch.setattr(machine, "time_ns", lambda: now + step * 1_000_000_000)
    for step in (-1000, 1000):
        for queued in (0, 5):
            limits.conclude(limits.hit({**WHO, "request_start": now / 1e9 + step - queued}), 200)
    assert [took > 4 * SECOND for took, _ in responses] == [False, True, False, True]


def test_the_delay_of_a_queue_is_not_slow(clock: ManualClock, responses: list[tuple[int, int | None]]) -> None:
    """It comes from the rule, not from the service."""
    queue = Rule(name="queue", limits="10/s burst 9", algorithm={"name": "leaky-bucket", "mode": "queue"}, key=[])
    limits = Limiter([Rule(name="api", limits=LIMIT, target="250ms", key=[]), queue], None, clock)
    for took in (0.2, 0.3):
        assert limits.hit(WHO).delay == 0.0
        verdict = [limits.hit(WHO) for _ in range(5)][-1]
        assert verdict.delay == 0.5
        clock.advance(0.5 + took)
        limits.conclude(verdict, 200)
        clock.advance(5)
    assert responses == [(200_000, 200), (300_000, 200)]


def test_a_slot_tells_whether_its_block_was_dropped(responses: list[tuple[int, int | None]]) -> None:
    """A block that timed out was dropped. Another error was fast or slow."""
    limits = limiter()
    with limits.slot(WHO):
        pass
    for error in (ValueError, TimeoutError, asyncio.CancelledError):
        with pytest.raises(error), limits.slot(WHO):
            raise error
    assert [status in Aimd.drops for _, status in responses] == [False, False, True, False]
    assert len(state(limits).requests) == 0


def test_shadow_mode_counts_what_would_be_shed() -> None:
    """The requests run, and those in flight are counted. Events name what is shed, apart from other rejections.

    A rule in shadow mode allows nothing that another one sheds.
    """
    seen: list[Event] = []
    limits = limiter(observers=[seen.append], mode="shadow")
    verdicts = [limits.hit(WHO) for _ in range(25)]
    assert [verdict.status for verdict in verdicts] == [200] * 25
    assert [event.outcome for event in seen] == ["allowed"] * 18 + ["shadow"] * 7
    fill(limiter(observers=[seen.append]))
    assert (seen[-1].outcome, seen[-1].outcomes, seen[-1].local) == ("shed", {"api": "shed"}, False)
    assert (seen[-1].is_rejected, seen[-1].decisions[0].limit) == (True, 18)
    assert len(state(limits).requests) == 25
    for verdict in verdicts:
        limits.conclude(verdict, 200)
    assert len(state(limits).requests) == 0
    rules = [Rule(name=mode, limits=LIMIT, target=1, mode=mode) for mode in ("enforce", "shadow")]
    assert len(fill(Limiter(rules))) == 18


def test_each_decision_of_a_rule_follows_the_others() -> None:
    """Reports count a rule once for each request. A rejection by the store shows what would have been shed."""
    store, seen = SharedStore(), list[Event]()
    load = Rule(name="load", limits="adaptive 1..1 concurrent", target=1, mode="shadow")
    rules = [Rule(name="api", limits=["2/minute", LIMIT], target=1), load]
    limits = Limiter(rules, store, ManualClock(1_000_000.0), observers=[seen.append])
    verdicts = [limits.hit(WHO) for _ in range(3)]
    assert {tuple(d.rule for d in verdict.decisions) for verdict in verdicts} == {("api", "api", "load")}
    assert [event.outcomes["load"] for event in seen] == ["allowed", "shadow", "shadow"]
    assert [(verdict.status, verdict.shed) for verdict in verdicts] == [(200, False), (200, False), (429, False)]
    for verdict in verdicts:
        limits.conclude(verdict, 200)
    assert [len(state.requests) for state in limits.adaptive.states().values()] == [0, 0]


def test_a_slow_endpoint_does_not_choose_the_limit_of_another() -> None:
    """Each key of a rule has a limit of its own."""
    limits = limiter(key=["endpoint"])
    clock: Any = limits.clocks.own
    for path, took in (("/slow", 0.3), ("/fast", 0.0)):
        for _ in range(120):
            verdict = limits.hit({"endpoint": path})
            clock.advance(took)
            limits.conclude(verdict, 200)
        clock.advance(1)
        limits.hit({"endpoint": path})
    assert [state.limit < 20 for state in limits.adaptive.states().values()] == [True, False]


def test_keys_that_clients_choose_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is used keeps its limit, and keys that are not make room for others."""
    monkeypatch.setattr(adaptive_limits, "_MAX_KEYS", 3)
    for options in ({"limits": LIMIT, "target": 1}, {"limits": RATE, "tune": "demand"}):
        limits = Limiter([Rule(name="api", key=["ip"], **options)])
        (first,) = limits.hit({"ip": "192.0.2.1"}).decisions
        known = limits.adaptive.states()[first.key, first.source.tuning]
        for number in range(2, 20):
            for last in (number, 1):
                limits.conclude(limits.hit({"ip": f"192.0.2.{last}"}), 200)
        assert len(limits.adaptive.states()) <= 6
        assert limits.adaptive.states()[first.key, first.source.tuning] is known


def test_no_other_keys_end_the_requests_in_flight_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with slow requests has no second limit, however many other clients there are meanwhile."""
    monkeypatch.setattr(adaptive_limits, "_MAX_KEYS", 3)
    limits = Limiter([Rule(name="api", key=["ip"], limits=LIMIT, target=1)])
    held = fill(limits, ip="192.0.2.1")
    for number in range(2, 20):
        limits.conclude(limits.hit({"ip": f"192.0.2.{number}"}), 200)
    assert held
    assert not limits.hit({"ip": "192.0.2.1"})


def test_a_rule_that_is_gone_has_no_level(tmp_path: Path) -> None:
    """Metrics and the dashboard show the rules of now."""
    file = tmp_path / "limits.json"
    for name in ("old", "new"):
        file.write_text(json.dumps({"rules": [{"name": name, "limits": LIMIT, "target": "1s", "key": "ip"}]}))
        if name == "old":
            limits = Limiter.from_settings(str(file))
        else:
            limits.reload()
        limits.conclude(limits.hit(WHO), 200)
        assert [*limits.adaptive.levels()] == [name]


class FakeLoop:
    """An event loop that runs its callbacks late."""

    def __init__(self) -> None:
        self.now, self.due, self.callback = 100.0, 0.0, None

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, callback: Any, loop: Any) -> None:
        self.due, self.callback = due, lambda: callback(loop)

    def run(self, late: float) -> None:
        self.now = self.due + late
        callback, self.callback = self.callback, None
        callback()


@pytest.mark.usefixtures("hasty")
def test_threads_that_begin_a_step_of_the_history_together_keep_the_last_hour() -> None:
    """No request of theirs fails."""
    steps = itertools.count(1_000_000 * SECOND, adaptive_limits.HISTORY_STEP)
    limits = Limiter([Rule(name="api", limits=LIMIT, target="250ms", key=[])], None, steps.__next__)

    def work(_: int) -> None:
        for _ in range(800):
            limits.conclude(limits.hit(WHO), 200)

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(work, range(8))] == [None] * 8
    assert len(limits.adaptive._history) == 360


def test_the_lag_of_an_event_loop_counts(
    monkeypatch: pytest.MonkeyPatch, responses: list[tuple[int, int | None]]
) -> None:
    """A request that arrives while the loop is busy begins late. Without requests, nobody looks at the loop."""
    loop: Any = FakeLoop()
    monkeypatch.setattr(adaptive_limits.asyncio, "_get_running_loop", lambda: loop)
    limits = Limiter([Rule(name="api", limits=LIMIT, target=1_000, key=[])])
    for late in (0.0, 5_000.0):
        limits.conclude(limits.hit(WHO), 200)
        loop.run(late)
    limits.conclude(limits.hit(WHO), 200)
    loop.run(0.0)
    limits.conclude(limits.hit(WHO), 200)
    loop.now += 2_000
    limits.conclude(limits.hit(WHO), 200)
    loop.run(0.0)
    assert loop.callback is None
    limits.conclude(limits.hit(WHO), 200)
    assert loop.callback is not None
    monkeypatch.setattr(adaptive_limits.asyncio, "_get_running_loop", lambda: None)
    limits.conclude(limits.hit(WHO), 200)
    assert [took > 1_000 * SECOND for took, _ in responses] == [False, False, True, False, True, False, False]


def test_a_lag_of_the_past_does_not_count(
    monkeypatch: pytest.MonkeyPatch, responses: list[tuple[int, int | None]]
) -> None:
    """After a quiet time, it says nothing about the next request."""
    loop: Any = FakeLoop()
    monkeypatch.setattr(adaptive_limits.asyncio, "_get_running_loop", lambda: loop)
    limits = Limiter([Rule(name="api", limits=LIMIT, target=1_000, key=[])])
    for quiet in (0.0, 0.9, 1.0):
        limits.conclude(limits.hit(WHO), 200)
        loop.run(5_000.0)
        loop.now += quiet
    limits.conclude(limits.hit(WHO), 200)
    assert [took > 1_000 * SECOND for took, _ in responses] == [False, True, True, False]


def test_a_forked_child_has_none_of_the_requests_of_its_parent() -> None:
    """They end in the parent."""
    limits = limiter()
    held = fill(limits)
    limits.adaptive.start_over(True)
    assert len(fill(limits)) == len(held)


def test_limits_from_a_function_and_per_value_are_adaptive_too() -> None:
    """A function may return one where the rule has a target."""
    rule = Rule(name="api", limits=lambda ip: LIMIT, target="1s")
    assert len(fill(Limiter([rule]))) == 18
    rule = Rule(name="api", limits="5/minute", per={"plan": {"pro": LIMIT}}, target="1s")
    assert len(fill(Limiter([rule]), plan="pro")) == 18
    verdict = Limiter([Rule(name="api", limits=lambda ip: LIMIT)]).hit(WHO)
    assert (verdict.allowed, verdict.unavailable) == (False, True)


@each(
    ("options", "message"),
    [
        ({"limits": LIMIT}, "'adaptive 5..200 concurrent' needs target. Write target ="),
        ({"limits": "5/minute", "target": 1}, "target: no limit of the rule uses it"),
        ({"limits": LIMIT, "target": 0}, "target: expected a duration above 0"),
        ({"limits": LIMIT, "target": 1, "wait": "1s"}, "wait: cannot be combined with target"),
        (
            {"limits": [LIMIT, "5/s"], "target": 1, "ban": {"after": 1, "within": 9, "for": 9}},
            "ban: cannot be combined with target",
        ),
        ({"limits": lambda ip: LIMIT, "target": 1, "wait": 1}, "wait: cannot be combined with target"),
        (
            {"limits": "adaptive 9..5 concurrent", "target": 1},
            "smallest amount as a whole number from 1 to 5",
        ),
        ({"limits": "adaptive 0..5 concurrent", "target": 1}, "expected the smallest amount as a whole number from 1"),
        (
            {"limits": "adaptive 5 concurrent", "target": 1},
            'Expected "adaptive FLOOR..CEILING concurrent", for example',
        ),
        ({"limits": "adaptive 5..9", "target": 1}, "cannot parse quota 'adaptive 5..9'. Expected \"adaptive"),
        ({"limits": RATE}, "limits.0.: 'adaptive 5..10/second' needs tune. Write tune = \"demand\", or"),
        ({"limits": RATE, "target": 1}, "limits.0.: 'adaptive 5..10/second' needs tune"),
        ({"limits": RATE, "tune": "health"}, "limits.0.: 'adaptive 5..10/second' needs target"),
        ({"limits": RATE, "tune": "demand", "target": 1}, "target: no limit of the rule uses it. Add a limit such as"),
        ({"limits": [RATE, LIMIT], "tune": "demand"}, "'adaptive 5..200 concurrent' needs target. Write target ="),
        ({"limits": LIMIT, "target": 1, "tune": "demand"}, "tune: no limit of the rule uses it. Add a limit such as"),
        ({"limits": "5/minute", "tune": "demand"}, "tune: no limit of the rule uses it"),
        ({"limits": RATE, "tune": "load"}, "tune: expected"),
        ({"limits": [RATE, "2 concurrent"], "tune": "demand", "wait": 1}, "wait: cannot be combined with tune"),
        ({"limits": RATE, "tune": "demand", "lease": "5%"}, "adaptive limits, concurrency limits and .* always exact"),
        (
            {"limits": "adaptive 5..10 per calendar day", "tune": "demand"},
            "cannot parse quota 'adaptive 5..10 per calendar day'",
        ),
    ],
)
def test_an_adaptive_limit_that_cannot_work_is_an_error(options: dict[str, Any], message: str) -> None:
    """The message names the option and the fix."""
    expect_error(message, lambda: Rule(name="api", **options))
