"""Bans by hand: who can be banned, how long, and how bans are listed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ban_kit import BAN, START, WHO, ban_client, rule_of
from shared_store import SharedStore

from ratelimit_mw import INVALID, ConfigError, Limiter, StoreError, load_settings
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.testing.clock import limits_timed_by


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


def test_a_ban_by_hand_needs_room(clock: ManualClock) -> None:
    """The store then has no place for it, and would not say so."""
    limiter = Limiter([rule_of()], MemoryStore(max_keys=1), clock)
    limiter.hit({"ip": "192.0.2.1"})
    with pytest.raises(StoreError, match="the ban is not in memory://: the store is nearly full, or another"):
        limiter.clients.ban("login", WHO)
    with pytest.raises(StoreError, match="nearly full"):
        asyncio.run(limiter.clients.aban("login", WHO))


def test_a_client_without_limits_cannot_be_banned(clock: ManualClock) -> None:
    limiter = Limiter([rule_of()], clock=clock)
    limiter.clients.override("login", WHO, "unlimited", duration=60)
    with pytest.raises(ConfigError, match=r"has the override .unlimited., so rule .login. cannot ban it\. Remove it"):
        limiter.clients.ban("login", WHO)
    clock.advance(60)
    limiter.clients.ban("login", WHO)
    assert limiter.hit(WHO).banned


def test_a_client_is_named_on_a_clock_of_a_test() -> None:
    """The keys of such a limiter end with the number of the test."""
    with limits_timed_by(ManualClock(START)):
        limiter = Limiter([rule_of()])
        assert not any(limiter.hit({}).banned for _ in range(5))
        ban_client(limiter)


def test_a_ban_by_hand_replaces_one_and_does_not_grow(clock: ManualClock) -> None:
    limiter = Limiter([rule_of(ban={**BAN, "after": 1, "growth": 3})], clock=clock)
    assert limiter.clients.ban("login", WHO, 60) == START + 60
    assert limiter.hit(WHO).retry_after == 60
    assert limiter.clients.ban("login", WHO, "30s") == START + 30
    clock.advance(30)
    assert limiter.hit(WHO).allowed
    assert limiter.hit(WHO).retry_after == 3600
    assert limiter.clients.ban("login", WHO) == START + 30 + 3600
    assert limiter.clients.unban("login", WHO)
    assert not limiter.clients.unban("login", WHO)


def test_bans_by_hand_have_async_twins(clock: ManualClock) -> None:
    async def play() -> None:
        store = SharedStore()
        limiter = Limiter([rule_of()], store, clock)
        assert await limiter.clients.aban("login", WHO, 60) == START + 60
        assert (await limiter.ahit(WHO)).banned
        assert await limiter.clients.aunban("login", WHO)
        assert (await limiter.ahit(WHO)).allowed

    asyncio.run(play())


def test_bans_are_listed_without_rejections_and_expired_bans(clock: ManualClock) -> None:
    limiter = Limiter([rule_of(), rule_of("api", "1/minute", ban=None)], clock=clock)
    ban_client(limiter)
    limiter.hit({"ip": "192.0.2.8"})
    limiter.hit({"ip": "192.0.2.8"})
    expected = [("login", "ip=192.0.2.7")]
    for page in (limiter.clients.bans(), limiter.clients.bans("login"), asyncio.run(limiter.clients.abans())):
        assert [(decision.rule, decision.client) for decision in page.decisions] == expected
    assert limiter.clients.bans("api").decisions == []
    clock.advance(3600)
    assert limiter.clients.bans().decisions == []


def test_a_client_on_the_allow_list_cannot_be_banned() -> None:
    """Nor its network. Other clients can."""
    settings = load_settings({"lists": {"allow": {"ip": [WHO["ip"], "2001:db8::/48"]}}})
    limiter = Limiter([rule_of()], settings=settings)
    for ip in (WHO["ip"], "2001:db8::1", "2001:db8::/64"):
        with pytest.raises(ConfigError, match=r"the client is on the allow list, so rule .login. never bans it"):
            limiter.clients.ban("login", {"ip": ip})
    limiter.clients.ban("login", {"ip": "192.0.2.8"})
    assert limiter.hit({"ip": "192.0.2.8"}).banned


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
        limiter.clients.ban(rule, features, seconds)
    assert message in str(caught.value)
