"""Bans by hand: who can be banned, how long, and how bans are listed."""

from __future__ import annotations

from typing import Any

import pytest
from ban_kit import BAN, START, WHO, ban_client, rule_of
from tables import each, expect_error

from ratelimit_mw import INVALID, ConfigError, Limiter, StoreError, load_settings
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.testing.clock import limits_timed_by


def test_a_ban_by_hand_needs_room(clock: ManualClock, way: Any) -> None:
    """The store then has no place for it, and would not say so."""
    limiter = Limiter([rule_of()], MemoryStore(max_keys=1), clock)
    limiter.hit({"ip": "192.0.2.1"})
    with pytest.raises(StoreError, match="nearly full"):
        way(limiter.clients).ban("login", WHO)


def test_a_client_without_limits_cannot_be_banned(clock: ManualClock) -> None:
    limiter = Limiter([rule_of()], clock=clock)
    limiter.clients.override("login", WHO, "unlimited", duration=60)
    with pytest.raises(ConfigError, match=r"has the override .unlimited."):
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


def test_a_ban_by_hand_replaces_one_and_does_not_grow(clock: ManualClock, way: Any, store: Store) -> None:
    limiter = Limiter([rule_of(ban={**BAN, "after": 1, "growth": 3})], store, clock)
    assert way(limiter.clients).ban("login", WHO, 60) == START + 60
    assert limiter.hit(WHO).retry_after == 60
    assert way(limiter.clients).ban("login", WHO, "30s") == START + 30
    clock.advance(30)
    assert limiter.hit(WHO).allowed
    assert limiter.hit(WHO).retry_after == 3600
    assert limiter.clients.ban("login", WHO) == START + 30 + 3600
    assert way(limiter.clients).unban("login", WHO)
    assert not way(limiter.clients).unban("login", WHO)


def test_bans_are_listed_without_rejections_and_expired_bans(clock: ManualClock, way: Any) -> None:
    limiter = Limiter([rule_of(), rule_of("api", "1/minute", ban=None)], clock=clock)
    ban_client(limiter)
    limiter.hit({"ip": "192.0.2.8"})
    limiter.hit({"ip": "192.0.2.8"})
    expected = [("login", "ip=192.0.2.7")]
    for page in (way(limiter.clients).bans(), limiter.clients.bans("login")):
        assert [(decision.rule, decision.client) for decision in page.decisions] == expected
    assert limiter.clients.bans("api").decisions == []
    clock.advance(3600)
    assert limiter.clients.bans().decisions == []


def test_a_client_on_the_allow_list_cannot_be_banned() -> None:
    """Nor its network. Other clients can."""
    settings = load_settings({"lists": {"allow": {"ip": [WHO["ip"], "2001:db8::/48"]}}})
    limiter = Limiter([rule_of()], settings=settings)
    for ip in (WHO["ip"], "2001:db8::1", "2001:db8::/64"):
        with pytest.raises(ConfigError, match="allow list"):
            limiter.clients.ban("login", {"ip": ip})
    limiter.clients.ban("login", {"ip": "192.0.2.8"})
    assert limiter.hit({"ip": "192.0.2.8"}).banned


@each(
    ("rule", "features", "seconds", "message"),
    [
        ("api", WHO, None, "rule 'api' has no ban option"),
        ("login", {"ip": "unknown"}, None, "many clients share the key"),
        ("mail", {"email": INVALID}, None, "email of rule 'mail' cannot have this value"),
        ("login", WHO, 0, "duration: expected more than 0"),
        ("login", WHO, -1, "duration: expected a duration"),
    ],
)
def test_a_mistake_in_a_ban_by_hand_is_named(rule: str, features: Any, seconds: Any, message: str) -> None:
    """A rule or a feature that is unknown, and a duration that is too long, are those of overrides, too."""
    limiter = Limiter([rule_of(), rule_of("api", ban=None), rule_of("mail", key=["email"])])
    expect_error(message, limiter.clients.ban, rule, features, seconds)
