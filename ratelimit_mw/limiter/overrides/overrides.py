"""``RunTimeOverrides``: the part of a ``Limiter`` that gives single clients other limits, kept in the store."""

from __future__ import annotations

import logging
from typing import Any, Final

from ...errors import ConfigError, error_path
from ...keys.features import Features
from ...quota import parse_duration
from ...rules.lookup import UNLIMITED
from ...rules.overrides import (
    CheckLimits,
    ClientOverride,
    OverriddenRules,
    Overrides,
    bare_rules,
    limits_of,
    load_overrides,
    with_overrides,
)
from ...rules.ruleset import RuleSet
from ...settings import Settings
from ...stores import redacted_url
from ...stores.blocking import Call, twins
from ..registry import Registry
from ..reloads import Reloads
from ..remote.breaker import Breaker
from ..resets import Resets
from ..watch import Watch
from .reader import OverrideReader
from .record import change_override, clear_overrides, read_overrides

_log = logging.getLogger("ratelimit_mw")
_limiters: Final = Registry["RunTimeOverrides"]()
"""All limiters of this process. Those with one store object apply a change at once."""


class RunTimeOverrides(Reloads, Resets):
    """Holds overrides. ``Limiter`` inherits it."""

    _active: Overrides = ()
    breaker: Breaker | None
    override_record: bytes | None = None
    """The record of the active overrides."""
    _override_reader: OverrideReader | None = None
    _check_override: CheckLimits = staticmethod(lambda _: None)
    """Raises ``ConfigError`` for the limits of an override that this process cannot decide."""
    _reported: frozenset[tuple[str, str]] = frozenset()

    async def _set_override(
        self, call: Call, rule: str, features: Features, limits: Any, duration: float | str | None = None
    ) -> ClientOverride:
        """Change the limits of one client: these replace all limits that the rule has for it.

        All workers that share the store apply the change within ``reload_interval``. The client keeps its counts if
        the period and the algorithm stay the same. An earlier override of the client is replaced.

        Args:
            rule: The name of the rule.
            features: The features of its key, for example ``{"user": "acme"}``.
            limits: The limits as for ``Rule``, such as ``"1000/minute"``, or ``"unlimited"``.
            duration: The length of the override, in seconds or as text such as ``"7d"``. By default it has no end.

        Returns:
            The override.

        Raises:
            ConfigError: There is no such rule, a feature of its key is missing, the rule cannot have the limits, or
                the store keeps no records.
            StoreError: The store is unreachable. Without a reply of the store, the change may be in effect.

        Example:
            >>> from ratelimit_mw import Limiter, Rule
            >>> limiter = Limiter([Rule(name="api", key=["user"], limits="1/minute")])
            >>> limiter.set_override("api", {"user": "acme"}, "1000/minute", duration=7 * 86_400).client
            'user=acme'
            >>> limiter.hit({"user": "acme"}).decisions[0].remaining
            999
        """
        override = self._override(rule, features, limits, duration)
        await self._change(call, override.rule, override.key, override)
        return override

    set_override, aset_override = twins(_set_override)

    async def _remove_override(self, call: Call, rule: str, features: Features) -> bool:
        """Remove the override of a client, so that it has the limits of the rule again.

        Args:
            rule: The name of the rule.
            features: The features of its key.

        Returns:
            Whether there was an override.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
            StoreError: The store is unreachable.
        """
        compiled, key = self._client(rule, features)
        return await self._change(call, compiled.name, key)

    remove_override, aremove_override = twins(_remove_override)

    async def _clear_overrides(self, call: Call) -> None:
        """Remove the overrides of all clients and rules, even where their record is damaged.

        Raises:
            StoreError: The store is unreachable.
        """
        await clear_overrides(call, self.store)
        await self._follow(call)

    clear_overrides, aclear_overrides = twins(_clear_overrides)

    async def _overrides(self, call: Call) -> list[ClientOverride]:
        """Read the overrides of all clients from the store, without those that have ended.

        Returns:
            The overrides, in the order in which they were set.

        Raises:
            ConfigError: The store keeps no records.
            StoreError: The store is unreachable, or the record is damaged.
        """
        return list(await read_overrides(call, self.store, self._time()))

    overrides, aoverrides = twins(_overrides)

    def _watched(self, settings: Settings) -> list[Watch]:
        own = [self._override_reader] if self._override_reader is not None and self.waits else []
        return [*own, *super()._watched(settings)]

    def use_overrides(self, record: bytes | None, before: bytes | None) -> bool:
        """Put the overrides of a record into effect, in this limiter. Requests that have begun keep theirs.

        Args:
            record: The record, as the store has it.
            before: The ``override_record`` before the record was read.

        Returns:
            Whether they are active. False if another record was put into effect since.

        Raises:
            ValueError: The record is damaged.
        """
        with self.adopting:
            if self.override_record is not before:
                return False
            overrides = load_overrides(record)
            if record is None:
                _log.warning("store %s has lost the overrides; the limits of the rules apply", redacted_url(self.store))
            rules = self._overlaid(bare_rules(self.rules), overrides)
            renewals = [user.renew(rules, self.settings) for user in tuple(self.users)]
            self.rules, self._active = rules, overrides
            for renewal in renewals:
                renewal()
            self.override_record = record  # last: after an error, the next read tries again
            return True

    def _follow_overrides(self) -> None:
        """Begin to follow the overrides in the store. Those in the memory of this process are read now."""
        _limiters.add(self)
        if self._override_reader is not None and not self.waits:
            self._override_reader.read()

    def _with_overrides(self, rules: RuleSet) -> RuleSet:
        return self._overlaid(rules, self._active)

    def _overlaid(self, rules: RuleSet, overrides: Overrides) -> RuleSet:
        """Return rules with these overrides. Log those that the rules cannot have, once."""
        rules = with_overrides(rules, overrides, self._time, self.rules, self._check_override)
        if isinstance(rules, OverriddenRules):
            problems = {(name, str(error)) for name, table in rules.tables.items() for error in table.errors}
            for name, problem in sorted(problems - self._reported):
                _log.warning("rule %r: overrides of clients are not active: %s", name, problem)
            self._reported = frozenset(problems)
        return rules

    def _override(self, name: str, features: Features, limits: Any, duration: float | str | None) -> ClientOverride:
        rule, key = self._client(name, features)
        with error_path("limits"):
            text = limits.strip().lower() if isinstance(limits, str) else ""
            if text != UNLIMITED:
                text = "; ".join(map(str, rule.source.parse_limits(limits)))
            for limit in limits_of(rule, text, self._check_override):
                self.store.check(limit)
        with error_path("duration"):
            span = None if duration is None else parse_duration(duration)
            if span == 0:
                raise ConfigError("expected more than 0. Leave the argument out for an override without an end")
        return ClientOverride(rule.name, key, text, None if span is None else self._time() + span)

    async def _change(self, call: Call, rule: str, key: str, new: ClientOverride | None = None) -> bool:
        """Replace the override of a client, or remove it. Return whether there was one."""
        was_there = await change_override(call, self.store, self._time(), rule, key, new)
        await self._follow(call)
        return was_there

    async def _follow(self, call: Call) -> None:
        """Put a change into effect in the limiters of this process that share the store object."""
        for limiter in _limiters:
            if limiter.store is self.store and limiter._override_reader:
                await limiter._override_reader.follow(call)
