"""Overrides: other limits for single clients of a rule, and the record that holds them in the store. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec.structs import asdict

from ..clock import Clock
from ..decision import Limit
from ..errors import ConfigError
from ..keys.parts import feature_of
from .clients import ClientBans, ClientOverride
from .compiled import CompiledRule
from .lookup import UNLIMITED
from .rule import parse_limits
from .ruleset import RuleSet

BANNED: Final = "(all rules)"
"""The name of all rules, from which a client is banned, in messages."""
_FORMAT: Final = b"ratelimit_mw overrides 1 "

Overrides = tuple[ClientOverride, ...]


def dump_overrides(overrides: Iterable[ClientOverride]) -> bytes:
    """Return the record of overrides. Keys may have halves of surrogate pairs, which only escapes can hold."""
    entries = [{name: value for name, value in asdict(each).items() if value not in (None, ())} for each in overrides]
    body = json.dumps(entries, separators=(",", ":")).encode()
    return _FORMAT + _digest(body) + b"\n" + body


def load_overrides(data: bytes | None) -> Overrides:
    """Return the overrides of a record; ``ValueError`` for a damaged one."""
    if data is None:
        return ()
    head, _, body = data.partition(b"\n")
    if head == _FORMAT + _digest(body):
        with suppress(ValueError, RecursionError, msgspec.ValidationError):
            return msgspec.convert(json.loads(body), Overrides)
    raise ValueError("the record of overrides is damaged, or of another version")


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).hexdigest().encode()


class OverrideTable(dict[str, tuple[Limit, ...]]):
    """The limits of the clients of one rule that have an override, by the key of the client.

    Equal limits are the same objects, even those in the table ``before``, so that leases of them stay valid.
    """

    def __init__(
        self,
        rule: CompiledRule,
        overrides: Iterable[ClientOverride],
        clock: Clock,
        before: OverrideTable | None,
    ) -> None:
        super().__init__()
        self._clock = clock
        self.sources: dict[str, ClientOverride] = {}
        self.errors: list[ConfigError] = []
        """The reasons why overrides are not active: the rule has changed since, or the process cannot decide them."""
        known = {} if before is None else {each.limits: before[key] for key, each in before.sources.items()}
        for each in overrides:
            try:
                if each.limits not in known:
                    known[each.limits] = limits_of(rule, each.limits)
                self[each.key] = known[each.limits]
                self.sources[each.key] = each
            except ConfigError as error:
                self.errors.append(error)

    def find(self, key: str | None) -> tuple[Limit, ...] | None:
        """Return the limits of a client; None without an override, or after its end."""
        limits = None if key is None else self.get(key)
        if limits is None or (source := self.sources[key or ""]).until_us is None:
            return limits
        return None if source.has_ended(self._clock()) else limits


def limits_of(rule: CompiledRule, text: str) -> tuple[Limit, ...]:
    """Return the limits of an override; ``ConfigError`` for those that the rule cannot have."""
    if text == UNLIMITED:
        return ()
    return rule.build_checked(parse_limits(rule.source, text))


def put_overrides(rules: RuleSet, overrides: Iterable[ClientOverride], clock: Clock) -> set[tuple[str, str]]:
    """Replace the overrides of rules, and return the names of rules with some that are not active, with the reasons.

    Those of other rules are left out: another application may have them.
    """
    by_rule: dict[str, list[ClientOverride]] = {}
    for each in overrides:
        by_rule.setdefault(each.rule, []).append(each)
    problems = _put_bans(rules, by_rule.pop("", ()), clock)
    for rule in rules.rules:
        table = None
        if group := by_rule.get(rule.name):
            before = rule.overrides if isinstance(rule.overrides, OverrideTable) else None
            table = OverrideTable(rule, group, clock, before)
            problems |= {(rule.name, str(error)) for error in table.errors}
        rule.override(table)
    rules.forget_plans()
    return problems


def _put_bans(rules: RuleSet, overrides: Iterable[ClientOverride], clock: Clock) -> set[tuple[str, str]]:
    """Replace the bans from all rules. A feature that no rule uses is a problem."""
    rules.lists = rules.own_lists
    known, problems, bans = known_to_bans(rules), set(), []
    for each in overrides:
        if unknown := [part for part in each.by if feature_of(part) not in known]:
            problems.add((BANNED, f"no rule uses {unknown[0]}"))
        else:
            bans.append(each)
    if bans:
        rules.lists = rules.own_lists.with_bans(ClientBans(bans, rules.secret, clock))
    return problems


def known_to_bans(rules: RuleSet) -> list[str]:
    """Return the features that a ban from all rules can name: those that all requests have, or a rule uses."""
    return [name for name in dict.fromkeys(("ip", *rules.needs)) if name not in ("path", "method", "host")]
