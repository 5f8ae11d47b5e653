"""Bans by hand: who can be banned, how long, and how bans are listed."""

from typing import Any

import pytest
from ban_kit import BAN, START, WHO, ban_client, rule_of

from ratelimit_mw import ConfigError, Limiter, load_settings
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.testing.clock import limits_timed_by


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
    limiter.clients.override("login", WHO, "99/minute")
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
