"""What a limiter does with a ban: several rules, shadow mode, resets, local decisions, the rejection cache, events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from shared_store import SharedStore

from ratelimit_mw import INVALID, ConfigError, Limiter, Rule, StoreError, load_settings
from ratelimit_mw.algorithms.ban_limit import BanLimit
from ratelimit_mw.decision import Decision, Hit, reject_uncounted
from ratelimit_mw.http.headers import HeaderWriter, as_text
from ratelimit_mw.http.rejection import build_rejection
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.stores.base import KeyPage
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.testing.clock import limits_timed_by

START = 1_767_268_800
WHO = {"ip": "192.0.2.7"}
BAN: dict[str, Any] = {"after": 2, "within": "10m", "for": "1h"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


def rule_of(name: str = "login", limits: str = "1/minute", **options: Any) -> Rule:
    return Rule(name=name, limits=limits, **{"ban": BAN, **options})


def ban_client(limiter: Limiter, hits: int = 3, who: dict[str, str] = WHO) -> None:
    for _ in range(hits):
        limiter.hit(who)
    assert limiter.hit(who).banned


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


def test_a_rule_in_shadow_mode_only_records_a_ban(clock: ManualClock) -> None:
    limiter = Limiter([rule_of(mode="shadow"), rule_of("api", "9/minute", ban=None)], clock=clock)
    verdicts = [limiter.hit(WHO) for _ in range(4)]
    assert all(verdicts)
    assert [verdict.decisions[0].banned for verdict in verdicts] == [False, False, False, True]
    assert not any(verdict.banned for verdict in verdicts)
    assert verdicts[-1].decisions[1].remaining == 5


def test_a_ban_consumes_nothing_of_its_rule(clock: ManualClock) -> None:
    """Not in shadow mode either, so that shadow mode shows what would be."""
    for mode in ("enforce", "shadow"):
        limiter = Limiter([rule_of(limits="2/minute", mode=mode, ban={**BAN, "within": "1h"})], clock=clock)
        ban_client_in_any_mode = [limiter.hit(WHO) for _ in range(4)]
        assert not any(verdict.decisions[0].banned for verdict in ban_client_in_any_mode)
        clock.advance(1800)
        assert limiter.hit(WHO).decisions[0].banned
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


def test_slots_and_bans(clock: ManualClock) -> None:
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
    assert limiter.hit(WHO).retry_after == 3600


def test_a_reset_lifts_a_ban(clock: ManualClock) -> None:
    limiter = Limiter([rule_of()], clock=clock)
    ban_client(limiter)
    limiter.reset("login", WHO)
    assert limiter.hit(WHO).allowed
    limiter.hit(WHO)
    assert not limiter.hit(WHO).banned


def test_the_reset_of_a_verdict_forgets_rejections(clock: ManualClock) -> None:
    """A login that succeeds after a rejection starts anew."""
    limiter = Limiter([rule_of()], clock=clock)
    limiter.hit(WHO)
    limiter.hit(WHO)
    clock.advance(60)
    verdict = limiter.hit(WHO)
    assert verdict
    verdict["login"].reset()
    limiter.hit(WHO)
    limiter.hit(WHO)
    assert not limiter.hit(WHO).banned
    assert limiter.hit(WHO).banned


def test_inspect_shows_a_ban_in_place_of_the_first_limit(clock: ManualClock) -> None:
    limiter = Limiter([rule_of()], clock=clock)
    limiter.hit(WHO)
    limiter.hit(WHO)
    for page in (limiter.inspect(), limiter.inspect("login", WHO)):
        assert [(d.banned, d.allowed) for d in page.decisions] == [(False, False)]
    ban_client(limiter, hits=1)
    for page in (limiter.inspect(), limiter.inspect(rejected=True), limiter.inspect("login", WHO)):
        assert [(d.rule, d.client, d.banned, d.retry_after) for d in page.decisions] == [
            ("login", "ip=192.0.2.7", True, 3600)
        ]
    limiter.reset_key(limiter.inspect().decisions[0].key)
    assert limiter.hit(WHO).allowed


class OneByOne(MemoryStore):
    """A store with one key on each page of its list, in either order."""

    is_reversed = False

    def list_keys(self, prefix: str, place: str = "") -> KeyPage:
        keys = sorted(super().list_keys(prefix).keys, reverse=self.is_reversed)
        i = int(place or 0)
        return KeyPage(keys[i : i + 1], str(i + 1) if i + 1 < len(keys) else None)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_inspect_shows_a_ban_once_when_the_keys_of_a_client_are_on_several_pages(
    clock: ManualClock, is_reversed: bool
) -> None:
    store = OneByOne()
    store.is_reversed = is_reversed
    limiter = Limiter([rule_of(limits="1/minute; 9/hour")], store, clock)
    ban_client(limiter)
    for rejected in (False, True):
        assert [d.banned for d in limiter.inspect(rejected=rejected).decisions] == [True, True]
    assert [d.client for d in limiter.bans().decisions] == ["ip=192.0.2.7"]
    clock.advance(3540)
    limiter.ban("login", {"ip": "192.0.2.9"})
    assert sorted(d.client for d in limiter.bans().decisions) == ["ip=192.0.2.7", "ip=192.0.2.9"]
    assert {d.banned for d in limiter.inspect(rejected=True).decisions} == {True}


def test_events_have_the_outcome_banned(clock: ManualClock) -> None:
    """The request that starts the ban was rejected by its limit."""
    events: list[Any] = []
    limiter = Limiter([rule_of(), rule_of("api", "9/minute")], clock=clock, observers=[events.append])
    ban_client(limiter)
    assert [event.outcome for event in events] == ["allowed", "rejected", "rejected", "banned"]
    assert dict(events[-1].outcomes) == {"login": "banned", "api": "allowed"}
    assert events[-1].is_rejected


@pytest.mark.parametrize("status", [429, 403])
def test_the_response_names_abnormal_usage(clock: ManualClock, status: int) -> None:
    limiter = Limiter([rule_of(ban={**BAN, "status": status}), rule_of("api", "9/minute")], clock=clock)
    ban_client(limiter)
    verdict = limiter.hit(WHO)
    rejection = build_rejection(verdict, "application/json", "3600")
    assert rejection.status == verdict.status == status
    assert b'problem-types#abnormal-usage-detected"' in rejection.body
    assert b"Too many of your requests were rejected. Retry after 3600 seconds." in rejection.body
    assert dict(as_text(HeaderWriter().headers(verdict))) == {
        "X-RateLimit-Limit": "1",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "3600",
        "RateLimit-Policy": '"login";q=1;w=60, "api";q=9;w=60',
        "RateLimit": '"login";r=0;t=3600',
        "Retry-After": "3600",
    }


def test_the_rejection_cache_loses_no_rejection() -> None:
    """Each rejection asks the store, until the client is banned. The ban itself is cached."""
    store = SharedStore()
    limiter = Limiter([rule_of(ban={**BAN, "after": 3})], store)
    assert [limiter.hit(WHO).banned for _ in range(5)] == [False] * 4 + [True]
    calls = store.calls
    assert calls == 5, "one call for each request, even for the rejections that are counted"
    verdict = limiter.hit(WHO)
    assert verdict.banned
    assert [3598 < (d.retry_after or 0) <= 3600 for d in verdict.decisions] == [True]
    assert store.calls == calls
    limiter.reset("login", WHO)
    assert limiter.hit(WHO).allowed


def test_a_cached_ban_is_shown_beside_a_longer_wait() -> None:
    """The limit rejects for an hour, the ban for a minute: the client is banned, and waits for an hour."""
    store = SharedStore()
    limiter = Limiter([rule_of(limits="1/hour", ban={**BAN, "for": "1m"})], store)
    ban_client(limiter)
    for _ in range(3):
        verdict = limiter.hit(WHO)
        assert verdict.banned
        assert (verdict.retry_after or 0) > 3598
    assert store.calls == 4


def test_a_cached_rejection_of_another_rule_counts_for_the_ban_too() -> None:
    store = SharedStore()
    limiter = Limiter(
        [rule_of("site", "1/minute", ban=None), rule_of("api", "1/minute", ban={**BAN, "after": 4})], store
    )
    limiter.hit(WHO)
    for _ in range(4):
        assert not limiter.hit(WHO).banned
    assert limiter.hit(WHO).banned


def test_a_ban_holds_without_the_store(clock: ManualClock) -> None:
    """A process that knows of a ban keeps rejecting until its end."""
    store = SharedStore()
    limiter = Limiter([rule_of(limits="5/minute", ban={**BAN, "growth": 2})], store, clock)
    ban_client(limiter, hits=7)
    store.down = True
    clock.advance(60)
    verdict = limiter.hit(WHO)
    assert (verdict.banned, verdict.retry_after) == (True, 3540)
    assert verdict.decisions[0].local
    clock.advance(3540)
    assert limiter.hit(WHO).allowed


def test_a_ban_that_has_ended_rejects_nobody_without_the_store(clock: ManualClock) -> None:
    """The process still knows of the ban, because the next one would be longer."""
    store = SharedStore()
    limiter = Limiter([rule_of(limits="5/minute", ban={**BAN, "growth": 2})], store, clock)
    ban_client(limiter, hits=7)
    store.down = True
    clock.advance(3600)
    assert limiter.hit(WHO).allowed


def test_rejections_without_the_store_start_a_ban_of_the_process(clock: ManualClock) -> None:
    store = SharedStore()
    limiter = Limiter([rule_of()], store, clock)
    limiter.hit(WHO)
    store.down = True
    limiter.hit(WHO)
    assert limiter.hit(WHO).retry_after == 3600
    assert limiter.hit(WHO).banned


@pytest.mark.parametrize(("policy", "status"), [("deny", 503), ("allow", 200)])
def test_other_policies_have_no_bans(clock: ManualClock, policy: Any, status: int) -> None:
    store = SharedStore()
    limiter = Limiter([rule_of(on_store_error=policy)], store, clock)
    ban_client(limiter)
    store.down = True
    verdict = limiter.hit(WHO)
    assert (verdict.status, verdict.banned) == (status, False)


def test_a_full_memory_store_bans_no_neighbours(clock: ManualClock) -> None:
    """Clients that share counts share no bans."""
    store = MemoryStore(max_keys=1)
    limiter = Limiter([rule_of()], store, clock)
    limiter.hit({"ip": "192.0.2.1"})
    assert not any(limiter.hit(WHO).banned for _ in range(9))


def test_a_ban_by_hand_needs_room(clock: ManualClock) -> None:
    """The store then has no place for it, and would not say so."""
    limiter = Limiter([rule_of()], MemoryStore(max_keys=1), clock)
    limiter.hit({"ip": "192.0.2.1"})
    with pytest.raises(StoreError, match="memory:// is nearly full, so the ban could not be written"):
        limiter.ban("login", WHO)
    with pytest.raises(StoreError, match="nearly full"):
        asyncio.run(limiter.aban("login", WHO))


def test_a_client_without_limits_cannot_be_banned(clock: ManualClock) -> None:
    limiter = Limiter([rule_of()], clock=clock)
    limiter.set_override("login", WHO, "unlimited", duration=60)
    with pytest.raises(ConfigError, match=r"has the override .unlimited., so rule .login. cannot ban it\. Remove it"):
        limiter.ban("login", WHO)
    clock.advance(60)
    limiter.ban("login", WHO)
    assert limiter.hit(WHO).banned


@pytest.mark.parametrize(
    ("key", "features", "is_banned"),
    [
        (["ip"], {}, False),
        (["ip"], {"ip": INVALID}, False),
        (["endpoint", "ip"], {"endpoint": "/login"}, False),
        (["user|ip"], {}, False),
        (["ip/24"], {}, False),
        (["email"], {"email": INVALID}, False),
        (["email", "ip"], {"email": INVALID}, False),
        (["email", "ip"], {"email": INVALID, **WHO}, True),
        (["email", "ip"], {"email": "ann@example.com"}, True),
        (["user"], {"user": "unknown"}, True),
        (["user"], {"user": "ann!&"}, True),
    ],
)
@pytest.mark.parametrize("secret", [{}, {"secret": "correct horse battery staple"}])
def test_requests_that_name_no_client_are_not_banned(
    clock: ManualClock, key: list[str], features: dict[str, Any], is_banned: bool, secret: dict[str, str]
) -> None:
    """Many clients have the value for a missing IP address, and that for invalid values. They are still limited."""
    rule = {"name": "login", "limits": "1/minute", "key": key, "ban": BAN}
    limiter = Limiter.from_settings({"rules": [rule], **secret}, clock)
    verdicts = [limiter.hit(features) for _ in range(5)]
    assert [verdict.allowed for verdict in verdicts] == [True] + [False] * 4
    assert [verdict.banned for verdict in verdicts] == [False] * 3 + [is_banned] * 2
    assert bool(limiter.bans().decisions) == is_banned


def test_a_client_is_named_on_a_clock_of_a_test() -> None:
    """The keys of such a limiter end with the number of the test."""
    with limits_timed_by(ManualClock(START)):
        limiter = Limiter([rule_of()])
        assert not any(limiter.hit({}).banned for _ in range(5))
        ban_client(limiter)


def test_bans_are_shown_in_linear_time(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each decision is looked at once, and not once for each ban."""
    limiter = Limiter([rule_of(limits="1/minute; 9/hour")], clock=clock)
    for i in range(99):
        ban_client(limiter, who={"ip": f"192.0.2.{i}"})
    calls: list[str] = []
    key_of = BanLimit.key_of
    monkeypatch.setattr(BanLimit, "key_of", lambda ban, limit, key: calls.append(key) or key_of(ban, limit, key))
    assert len(limiter.inspect().decisions) == 198
    assert len(calls) < 1000


def test_limits_from_a_function_have_the_ban_of_their_rule(clock: ManualClock) -> None:
    def limits_of(ip: str) -> str:
        return "1/minute"

    limiter = Limiter([Rule(name="login", limits=limits_of, ban=BAN)], clock=clock)
    ban_client(limiter)
    clock.advance(60)
    assert [str(decision.quota) for decision in limiter.bans().decisions] == ["1/minute"]
    limiter.reset("login", WHO)
    assert limiter.hit(WHO).allowed


def test_a_ban_survives_changed_terms(clock: ManualClock) -> None:
    """The end of a ban was decided when it began."""
    store = MemoryStore(clock=clock)
    ban_client(Limiter([rule_of()], store, clock))
    changed = Limiter([rule_of(limits="3/hour", ban={"after": 9, "within": "1m", "for": "1m"})], store, clock)
    assert changed.hit(WHO).retry_after == 3600
    assert Limiter([rule_of(ban=None)], store, clock).hit({"ip": "192.0.2.8"}).allowed


def test_a_snapshot_keeps_a_ban(clock: ManualClock, tmp_path: Any) -> None:
    path = tmp_path / "bans"
    store = MemoryStore(clock=clock, snapshot=path)
    ban_client(Limiter([rule_of()], store, clock))
    store.close()
    clock.advance(3599)
    assert Limiter([rule_of()], MemoryStore(clock=clock, snapshot=path), clock).hit(WHO).banned


def test_a_ban_by_hand_replaces_one_and_does_not_grow(clock: ManualClock) -> None:
    limiter = Limiter([rule_of(ban={**BAN, "after": 1, "growth": 3})], clock=clock)
    assert limiter.ban("login", WHO, 60) == START + 60
    assert limiter.hit(WHO).retry_after == 60
    assert limiter.ban("login", WHO, "30s") == START + 30
    clock.advance(30)
    assert limiter.hit(WHO).allowed
    assert limiter.hit(WHO).retry_after == 3600
    assert limiter.ban("login", WHO) == START + 30 + 3600
    assert limiter.unban("login", WHO)
    assert not limiter.unban("login", WHO)


def test_bans_by_hand_have_async_twins(clock: ManualClock) -> None:
    async def play() -> None:
        store = SharedStore()
        limiter = Limiter([rule_of()], store, clock)
        assert await limiter.aban("login", WHO, 60) == START + 60
        assert (await limiter.ahit(WHO)).banned
        assert await limiter.aunban("login", WHO)
        assert (await limiter.ahit(WHO)).allowed

    asyncio.run(play())


def test_bans_are_listed_without_rejections_and_expired_bans(clock: ManualClock) -> None:
    limiter = Limiter([rule_of(), rule_of("api", "1/minute", ban=None)], clock=clock)
    ban_client(limiter)
    limiter.hit({"ip": "192.0.2.8"})
    limiter.hit({"ip": "192.0.2.8"})
    expected = [("login", "ip=192.0.2.7")]
    for page in (limiter.bans(), limiter.bans("login"), asyncio.run(limiter.abans())):
        assert [(decision.rule, decision.client) for decision in page.decisions] == expected
    assert limiter.bans("api").decisions == []
    clock.advance(3600)
    assert limiter.bans().decisions == []


@pytest.mark.parametrize(
    ("rule", "features", "seconds", "message"),
    [
        ("api", WHO, None, "rule 'api' has no ban option, so a ban would have no effect. Add ban = {"),
        ("login", {"ip": "unknown"}, None, "many clients share the key 'ip=unknown', so rule 'login' never bans them"),
        ("mail", {"email": INVALID}, None, "email of rule 'mail' cannot have this value"),
        ("logon", WHO, None, "unknown rule 'logon'. Did you mean 'login'"),
        ("login", {}, None, "the key of rule 'login' needs ip"),
        ("login", WHO, 0, "duration: expected more than 0"),
        ("login", WHO, "600000w", "duration: expected a duration of at most 366 days; got '600000w'"),
        ("login", WHO, -1, "duration: expected a duration"),
    ],
)
def test_a_mistake_in_a_ban_by_hand_is_named(rule: str, features: Any, seconds: Any, message: str) -> None:
    limiter = Limiter([rule_of(), rule_of("api", ban=None), rule_of("mail", key=["email"])])
    with pytest.raises(ConfigError) as caught:
        limiter.ban(rule, features, seconds)
    assert message in str(caught.value)


class RejectingStore(SharedStore):
    """A store without room, or one that has lost its races: it rejects all hits, as a store of your own may do."""

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        self._called()
        decisions = [Decision(False, hit.limit.limit, 1_000_000, 1_000_000, now or 0) for hit in hits]
        for decision, hit in zip(decisions, hits, strict=True):
            decision.hit = hit
        return decisions


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


def test_a_rejection_that_shows_no_ban_stays_a_rejection() -> None:
    """With and without the rejection cache."""
    for span in ("0s", "1s"):
        limiter = Limiter(
            [rule_of(limits="5/minute")], RejectingStore(), settings=load_settings({"rejection_cache": span})
        )
        verdicts = [limiter.hit(WHO) for _ in range(4)]
        assert [(verdict.allowed, verdict.banned, verdict.status) for verdict in verdicts] == [(False, False, 429)] * 4
