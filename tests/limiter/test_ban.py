"""What a limiter does with a ban: several rules, shadow mode, resets, local decisions, the rejection cache, events."""

from typing import Any

import pytest
from ban_kit import BAN, START, WHO, ban_client, rule_of
from shared_store import RejectingStore
from tables import each

from ratelimit_mw import INVALID, Limiter, Rule, load_settings
from ratelimit_mw.decision import BanLimit, Decision, Hit, reject_uncounted
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.stores.base import KeyPage
from ratelimit_mw.testing import ManualClock


def test_several_limits_of_a_rule_are_one_rejection(clock: ManualClock) -> None:
    """Each limit of the rule shows the ban, and waits for the longer of its own wait and the ban."""
    limiter = Limiter([rule_of(limits="1/minute; 1/day")], clock=clock)
    limiter.hit(WHO)
    assert [limiter.hit(WHO).banned for _ in range(3)] == [False, False, True]
    verdict = limiter.hit(WHO)
    assert [(d.banned, d.allowed, d.retry_after) for d in verdict.decisions] == [
        (True, False, 3600),
        (True, False, 86400),
    ]


def test_a_rejection_by_another_rule_does_not_count(clock: ManualClock) -> None:
    """Each rule counts its own rejections, and a ban consumes nothing from other rules."""
    limiter = Limiter([rule_of("login", "1/minute"), rule_of("api", "9/minute")], clock=clock)
    ban_client(limiter)
    outcomes = {decision.rule: decision.banned for decision in limiter.hit(WHO).decisions}
    assert outcomes == {"login": True, "api": False}
    assert limiter.peek(WHO, 0).decisions[1].remaining == 8


@each("mode", ["enforce", "shadow"])
def test_a_ban_consumes_nothing_of_its_rule(mode: str) -> None:
    """Not in shadow mode either, which shows what would be: it only records a ban, and other rules count."""
    clock = ManualClock(START)
    rules = [rule_of(limits="2/minute", mode=mode, ban={**BAN, "within": "1h"}), rule_of("api", "9/minute", ban=None)]
    limiter = Limiter(rules, clock=clock)
    assert not any(limiter.hit(WHO).decisions[0].banned for _ in range(4))
    clock.advance(1800)
    verdict = limiter.hit(WHO)
    assert verdict.decisions[0].banned
    assert (verdict.allowed, verdict.banned) == ((True, False) if mode == "shadow" else (False, True))
    assert verdict.decisions[1].remaining == (8 if mode == "shadow" else 9)
    clock.advance(1800)
    assert limiter.hit(WHO).decisions[0].remaining == 1


def test_lists_precede_bans(clock: ManualClock) -> None:
    """A client on the allow list is neither counted nor rejected. The rejections of a deny list are not counted."""
    lists = {"allow": {"user": ["monitoring"]}, "deny": {"user": ["mallory"]}}
    rules = [{"name": "login", "limits": "1/minute", "ban": BAN}]
    limiter = Limiter.from_settings({"rules": rules, "lists": lists}, clock)
    for user in ("monitoring", "mallory"):
        assert {limiter.hit({**WHO, "user": user}).banned for _ in range(9)} == {False}
    ban_client(limiter)
    assert limiter.hit({**WHO, "user": "monitoring"})
    assert limiter.hit({**WHO, "user": "mallory"}).status == 403


def test_a_rejection_for_want_of_a_slot_counts(clock: ManualClock) -> None:
    """A rejection for want of a slot counts. A shadow ban takes no slot, so that none is lost."""
    for mode in ("enforce", "shadow"):
        limiter = Limiter([rule_of(limits="1 concurrent", mode=mode)], clock=clock)
        first = limiter.hit(WHO)
        verdicts = [limiter.hit(WHO) for _ in range(3)]
        assert [verdict.decisions[0].banned for verdict in verdicts] == [False, False, True]
        limiter.refund(first)
        assert limiter.peek(WHO).decisions[0].banned
        clock.advance(3600)
        assert limiter.hit(WHO).decisions[0].allowed


def test_peeks_and_costs_of_zero_count_nothing(clock: ManualClock) -> None:
    limiter = Limiter([rule_of()], clock=clock)
    limiter.hit(WHO)
    for _ in range(5):
        assert not limiter.peek(WHO).allowed
        assert limiter.hit(WHO, 0).allowed
    ban_client(limiter, hits=2)
    look = limiter.peek(WHO, 0)
    assert look.allowed
    assert [(d.remaining, d.reset_after) for d in look.decisions] == [(0, 3600)]


def test_refunds_do_not_change_a_ban(clock: ManualClock) -> None:
    limiter = Limiter([rule_of()], clock=clock)
    first = limiter.hit(WHO)
    limiter.hit(WHO)
    limiter.refund(first)
    assert limiter.hit(WHO).allowed
    last = limiter.hit(WHO)
    assert (last.retry_after, last.decisions[0].reset_after) == (3600, 3600)


def test_a_reset_lifts_a_ban_and_forgets_rejections(clock: ManualClock) -> None:
    """Also that of a verdict: a login that succeeds after a rejection starts anew."""
    limiter = Limiter([rule_of()], clock=clock)
    ban_client(limiter)
    limiter.reset("login", WHO)
    assert [bool(limiter.hit(WHO)), limiter.hit(WHO).banned] == [True, False]
    clock.advance(60)
    verdict = limiter.hit(WHO)
    assert verdict
    verdict["login"].reset()
    assert [limiter.hit(WHO).banned for _ in range(4)] == [False, False, False, True]


def test_inspect_shows_a_ban_in_place_of_the_first_limit(clock: ManualClock) -> None:
    limiter = Limiter([rule_of()], clock=clock)
    limiter.hit(WHO)
    limiter.hit(WHO)
    for page in (limiter.clients.inspect(), limiter.clients.inspect("login", WHO)):
        assert [(d.banned, d.allowed) for d in page.decisions] == [(False, False)]
    ban_client(limiter, hits=1)
    for page in (
        limiter.clients.inspect(),
        limiter.clients.inspect(rejected=True),
        limiter.clients.inspect("login", WHO),
    ):
        assert [(d.rule, d.client, d.banned, d.retry_after) for d in page.decisions] == [
            ("login", "ip=192.0.2.7", True, 3600)
        ]
    limiter.clients.reset_key(limiter.clients.inspect().decisions[0].key)
    assert limiter.hit(WHO).allowed


class OneByOne(MemoryStore):
    """A store with one key on each page of its list, in either order."""

    is_reversed = False

    def list_keys(self, prefix: str, cursor: str = "") -> KeyPage:
        keys = sorted(super().list_keys(prefix).keys, reverse=self.is_reversed)
        i = int(cursor or 0)
        return KeyPage(keys[i : i + 1], str(i + 1) if i + 1 < len(keys) else None)


@each("is_reversed", [False, True])
def test_inspect_shows_a_ban_once_when_the_keys_of_a_client_are_on_several_pages(is_reversed: bool) -> None:
    store, clock = OneByOne(), ManualClock(START)
    store.is_reversed = is_reversed
    limiter = Limiter([rule_of(limits="1/minute; 9/hour")], store, clock)
    ban_client(limiter)
    for rejected, limits in ((False, {1, 9}), (True, {1})):  # the ban shows the first limit
        shown = limiter.clients.inspect(rejected=rejected).decisions
        assert ({d.limit for d in shown}, [d.banned for d in shown]) == (limits, [True] * len(limits))
    assert [d.client for d in limiter.clients.bans().decisions] == ["ip=192.0.2.7"]
    clock.advance(3540)
    limiter.clients.ban("login", {"ip": "192.0.2.9"})
    assert sorted(d.client for d in limiter.clients.bans().decisions) == ["ip=192.0.2.7", "ip=192.0.2.9"]
    assert {d.banned for d in limiter.clients.inspect(rejected=True).decisions} == {True}


def test_events_have_the_outcome_banned(clock: ManualClock) -> None:
    """The request that starts the ban was rejected by its limit."""
    events: list[Any] = []
    limiter = Limiter([rule_of(), rule_of("api", "9/minute")], clock=clock, observers=[events.append])
    ban_client(limiter)
    assert [event.outcome for event in events] == ["allowed", "rejected", "rejected", "banned"]
    assert dict(events[-1].outcomes) == {"login": "banned", "api": "allowed"}
    assert events[-1].is_rejected


def test_a_full_memory_store_bans_no_neighbours(clock: ManualClock) -> None:
    """Clients that share counts share no bans."""
    store = MemoryStore(max_keys=1)
    limiter = Limiter([rule_of()], store, clock)
    limiter.hit({"ip": "192.0.2.1"})
    assert not any(limiter.hit(WHO).banned for _ in range(9))


@each(
    ("key", "features", "is_banned"),
    [
        (["ip"], {}, False),
        (["ip"], {"ip": INVALID}, False),
        (["endpoint", "ip"], {"endpoint": "/login"}, False),
        (["user|ip"], {}, False),
        (["ip/24"], {}, False),
        (["ip"], {"ip": "unknown"}, False),
        (["user|ip/24"], {"ip": "unknown"}, False),
        (["email"], {"email": INVALID}, False),
        (["email", "ip"], {"email": INVALID}, False),
        (["email", "ip"], {"email": INVALID, **WHO}, True),
        (["email", "ip"], {"email": "ann@example.com"}, True),
        (["user"], {"user": "unknown"}, True),
        (["user"], {"user": "ann!&"}, True),
    ],
)
@each("secret", [{}, {"secret": "correct horse battery staple"}])
def test_requests_that_name_no_client_are_not_banned(key: Any, features: Any, is_banned: bool, secret: Any) -> None:
    """Many clients have the value for a missing IP address, and that for invalid values. They are still limited."""
    rule = {"name": "login", "limits": "1/minute", "key": key, "ban": BAN}
    limiter = Limiter.from_settings({"rules": [rule], **secret}, ManualClock(START))
    verdicts = [limiter.hit(features) for _ in range(5)]
    assert [verdict.allowed for verdict in verdicts] == [True] + [False] * 4
    assert [verdict.banned for verdict in verdicts] == [False] * 3 + [is_banned] * 2
    assert bool(limiter.clients.bans().decisions) == is_banned


def test_bans_are_shown_in_linear_time(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each decision is looked at once, and not once for each ban."""
    limiter = Limiter([rule_of(limits="1/minute; 9/hour")], clock=clock)
    for i in range(99):
        ban_client(limiter, who={"ip": f"192.0.2.{i}"})
    calls: list[str] = []
    key_of = BanLimit.key_of
    monkeypatch.setattr(BanLimit, "key_of", lambda ban, limit, key: calls.append(key) or key_of(ban, limit, key))
    assert len(limiter.clients.inspect().decisions) == 198
    assert len(calls) < 1000


def test_limits_from_a_function_have_the_ban_of_their_rule(clock: ManualClock) -> None:
    def limits_of(ip: str) -> str:
        return "1/minute"

    limiter = Limiter([Rule(name="login", limits=limits_of, ban=BAN)], clock=clock)
    ban_client(limiter)
    clock.advance(60)
    assert [str(decision.quota) for decision in limiter.clients.bans().decisions] == ["1/minute"]
    limiter.reset("login", WHO)
    assert limiter.hit(WHO).allowed


def test_a_ban_survives_changed_terms(clock: ManualClock) -> None:
    """The end of a ban was decided when it began."""
    store = MemoryStore(clock=clock)
    ban_client(Limiter([rule_of()], store, clock))
    changed = Limiter([rule_of(limits="3/hour", ban={"after": 9, "within": "1m", "for": "1m"})], store, clock)
    assert changed.hit(WHO).retry_after == 3600
    assert Limiter([rule_of(ban=None)], store, clock).hit({"ip": "192.0.2.8"}).allowed


def test_a_request_that_is_not_counted_is_rejected_by_its_limits() -> None:
    """A store without room or time calls this. Only a ban rejects a hit on it, and a look is always allowed."""
    (rule,) = Limiter([rule_of()]).rules.rules
    assert rule.ban is not None
    limits = [rule.ban, rule.limits[0], rule.limits[0], rule.limits[0]]
    decisions = [
        Decision(allowed, 1, 0 if allowed else 90, 7, 0, 3, Hit(limit, "key", cost))
        for limit, cost, allowed in zip(limits, (1, 1, 0, 1), (True, True, True, False), strict=True)
    ]
    reject_uncounted(decisions, 50)
    found = [(each.allowed, each.remaining, each.retry_us, each.reset_us, each.delay_us) for each in decisions]
    assert found == [(True, 1, 0, 7, 3), (False, 0, 50, 50, 0), (True, 1, 0, 7, 3), (False, 1, 90, 7, 3)]


@each("span", ["0s", "1s"])
def test_a_rejection_that_shows_no_ban_stays_a_rejection(span: str) -> None:
    """With and without the rejection cache."""
    store, settings = RejectingStore(), load_settings({"rejection_cache": span})
    store.remaining = 5
    limiter = Limiter([rule_of(limits="5/minute")], store, settings=settings)
    verdicts = [limiter.hit(WHO) for _ in range(4)]
    assert [(verdict.allowed, verdict.banned, verdict.status) for verdict in verdicts] == [(False, False, 429)] * 4
