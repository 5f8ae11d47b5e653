"""The whole messages of ``limiter.clients``. Other tests match the place and a key word of each."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock, patch

import pytest
from ban_kit import WHO, rule_of

from ratelimit_mw import INVALID, Limiter, Rule, StoreError, load_settings
from ratelimit_mw.errors import RateLimitError
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

ALLOWED = load_settings({"lists": {"allow": {"ip": [WHO["ip"]]}}})


def in_a_full_store(limiter: Limiter) -> None:
    limiter.clients.ban("login", WHO)


def with_an_override(limiter: Limiter) -> None:
    limiter.clients.override("login", WHO, "unlimited", duration=60)
    limiter.clients.ban("login", WHO)


def with_a_full_record(limiter: Limiter) -> None:
    for number in range(40):
        limiter.clients.override("login", {"ip": f"192.0.2.{number}"}, "7/minute")


def with_a_damaged_record(limiter: Limiter) -> None:
    limiter.store.write_record("overrides", b"x", None)
    limiter.clients.overrides()


def without_a_reply(limiter: Limiter) -> None:
    with patch.object(limiter.store, "write_record", Mock(side_effect=StoreError("no reply"))):
        limiter.clients.override("login", WHO, "7/minute")


MESSAGES: list[tuple[Callable[[Limiter], object], str]] = [
    (
        in_a_full_store,
        "the ban is not in memory://: the store is nearly full, or another process has just lifted the ban",
    ),
    (
        with_an_override,
        (
            "the client has the override 'unlimited', so rule 'login' cannot ban it. Remove it first, with"
            " remove_override() or the command `override remove`"
        ),
    ),
    (
        with_a_full_record,
        "the override record is full (32 overrides). Put the limits of many clients into per_key, or into a function",
    ),
    (
        with_a_damaged_record,
        (
            "store memory://: the record of overrides is damaged, or of another version. Workers keep the last"
            " overrides they know. clear_overrides(), or the command `override clear`, removes all of them"
        ),
    ),
    (
        without_a_reply,
        (
            "no reply. The change of the overrides may be in effect. To be sure, make the same change again, or list"
            " the overrides"
        ),
    ),
    (
        lambda limiter: limiter.clients.ban("plain", WHO),
        (
            "rule 'plain' has no ban option, so a ban would have no effect. Add ban = {after = 10, within = \"10m\","
            ' for = "1h"} to it, or add the client to lists.deny'
        ),
    ),
    (
        lambda limiter: limiter.clients.ban("login", {"ip": "unknown"}),
        "many clients share the key 'ip=unknown', so rule 'login' never bans them",
    ),
    (
        lambda limiter: limiter.clients.ban(None, {"plan": "free"}),
        "features: no rule and no list uses plan. A ban from all rules needs one of ip",
    ),
    (
        lambda limiter: limiter.clients.ban(None, {"path": "/api"}),
        "features: no rule and no list uses path. A ban from all rules needs one of ip",
    ),
    (
        lambda limiter: limiter.clients.ban(None, {"ip": INVALID}),
        "features: ip cannot have this value",
    ),
    (
        lambda limiter: limiter.clients.ban(None, {}),
        "features: no client is named. A ban from all rules needs one of ip",
    ),
    (
        lambda limiter: limiter.clients.ban("login", WHO, 0),
        "duration: expected more than 0. Leave the argument out for the length of the rule's ban",
    ),
    (
        lambda limiter: limiter.clients.ban(None, WHO, 0),
        "duration: expected more than 0. Leave the argument out for a ban without an end",
    ),
]
OF_ALLOWED: list[tuple[Callable[[Limiter], object], str]] = [
    (
        lambda limiter: limiter.clients.ban("login", WHO),
        "the client is on the allow list, so rule 'login' never bans it",
    ),
    (
        lambda limiter: limiter.clients.ban(None, WHO),
        "the client is on the allow list, so a ban has no effect",
    ),
]


@pytest.mark.parametrize(
    ("call", "message", "settings"),
    [*((*each, None) for each in MESSAGES), *((*each, ALLOWED) for each in OF_ALLOWED)],
    ids=[message[:40] for _, message in (*MESSAGES, *OF_ALLOWED)],
)
def test_an_error_names_place_problem_and_remedy(
    call: Callable[[Limiter], object], message: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the place, the problem, and what to do instead."""
    monkeypatch.setattr("ratelimit_mw.limiter.overrides.MAX_RECORD", 2_000)
    store = MemoryStore(max_keys=1 if call is in_a_full_store else 100)
    rules = [rule_of(), Rule(name="plain", limits="9/minute", match={"path": "/api"})]
    limiter = Limiter(rules, store, ManualClock(1_000_000.0), settings)
    limiter.hit({"ip": "192.0.2.1"})
    with pytest.raises(RateLimitError) as caught:
        call(limiter)
    assert str(caught.value) == message
