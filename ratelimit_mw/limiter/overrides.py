"""``RunTimeOverrides``: the part of a ``Limiter`` that gives single clients other limits, kept in the store.

All overrides are one record. A change reads it, and writes it again if no other process has changed it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final
from weakref import WeakSet

from ..errors import ConfigError, StoreError, error_path
from ..keys.features import INVALID, Features
from ..keys.parts import part_of
from ..quota import parse_duration
from ..rules.compiled import CompiledRule
from ..rules.lookup import UNLIMITED
from ..rules.overrides import (
    ClientOverride,
    OverriddenRules,
    Overrides,
    bare_rules,
    dump_overrides,
    limits_of,
    load_overrides,
    with_overrides,
)
from ..rules.ruleset import RuleSet
from ..settings import Settings
from ..stores.base import MAX_RECORD
from .override_reader import CHANGING, RECORD, OverrideReader, keeps_records, name_of
from .reloads import Reloads
from .watch import Watch, Watches

_MAX_TRIES: Final = 50
_log = logging.getLogger("ratelimit_mw")
_limiters: Final = WeakSet["RunTimeOverrides"]()
"""All limiters of this process. Those with one store object apply a change at once."""


class RunTimeOverrides(Reloads):
    """Holds overrides. ``Limiter`` inherits it."""

    _overrides: Overrides = ()
    _override_record: bytes | None = None
    """The record that the overrides are from."""
    _override_reader: OverrideReader | None = None
    _reported: frozenset[tuple[str, str]] = frozenset()

    def set_override(
        self, rule: str, features: Features, limits: Any, duration: float | str | None = None
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
            StoreError: The store could not be reached.

        Example:
            >>> from ratelimit_mw import Limiter, Rule
            >>> limiter = Limiter([Rule(name="api", key=["user"], limits="1/minute")])
            >>> limiter.set_override("api", {"user": "acme"}, "1000/minute", duration=7 * 86_400).client
            'user=acme'
            >>> limiter.hit({"user": "acme"}).decisions[0].remaining
            999
        """
        override = self._override(rule, features, limits, duration)
        self._change(override.rule, override.key, override)
        return override

    async def aset_override(
        self, rule: str, features: Features, limits: Any, duration: float | str | None = None
    ) -> ClientOverride:
        """Async form of ``set_override``."""
        return await asyncio.to_thread(self.set_override, rule, features, limits, duration)

    def remove_override(self, rule: str, features: Features) -> bool:
        """Remove the override of a client, so that it has the limits of the rule again.

        Args:
            rule: The name of the rule.
            features: The features of its key.

        Returns:
            Whether there was an override.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
            StoreError: The store could not be reached.
        """
        return self._change(*self._client(rule, features))

    async def aremove_override(self, rule: str, features: Features) -> bool:
        """Async form of ``remove_override``."""
        return await asyncio.to_thread(self.remove_override, rule, features)

    def clear_overrides(self) -> None:
        """Remove the overrides of all clients and rules, even where their record is damaged.

        Raises:
            StoreError: The store could not be reached.
        """
        self._change(None)

    async def aclear_overrides(self) -> None:
        """Async form of ``clear_overrides``."""
        await asyncio.to_thread(self.clear_overrides)

    def overrides(self) -> list[ClientOverride]:
        """Read the overrides of all clients from the store, without those that have ended.

        Returns:
            The overrides, in the order in which they were set.

        Raises:
            ConfigError: The store keeps no records.
            StoreError: The store could not be reached, or the record is damaged.
        """
        return list(self._overrides_in(self.store.read_record(RECORD)))

    async def aoverrides(self) -> list[ClientOverride]:
        """Async form of ``overrides``."""
        return list(self._overrides_in(await self.store.aread_record(RECORD)))

    @property
    def has_overrides(self) -> bool:
        """Whether overrides are known, active or not."""
        return bool(self._overrides)

    def start(self) -> None:
        super().start()
        if self._override_reader is not None and self.rules.enabled:
            self._override_reader.read()

    async def astart(self) -> None:
        """Async form of ``start``."""
        await super().astart()
        if self._override_reader is not None and self.rules.enabled:
            await asyncio.to_thread(self._override_reader.read)

    def close(self) -> None:
        if self._override_reader is not None:
            self._override_reader.close()
        super().close()

    async def aclose(self) -> None:
        if self._override_reader is not None:
            self._override_reader.close()
        await super().aclose()

    def watch_of(self, settings: Settings) -> Watch | None:
        """Return what looks for changes of these settings, and of overrides in the store; None for no changes.

        Args:
            settings: The settings of this limiter.
        """
        files = super().watch_of(settings)
        if self._override_reader is None:
            return files
        self._override_reader.hasten()
        return Watches([self._override_reader, *([files] if files else [])])

    def use_overrides(self, record: bytes | None) -> None:
        """Put the overrides of a record into effect, in this limiter. Requests that have begun keep theirs.

        Args:
            record: The record, as the store has it.

        Raises:
            ValueError: The record is damaged.
        """
        with self.adopting:
            if record == self._override_record:
                return
            overrides = load_overrides(record)
            if record is None:
                _log.warning("store %s has lost the overrides; the limits of the rules apply", name_of(self.store))
            rules = self._overlaid(bare_rules(self.rules), overrides)
            renewals = [user.renew(rules, self.settings) for user in tuple(self.users)]
            self.rules, self._overrides, self._override_record = rules, overrides, record
            for renewal in renewals:
                renewal()

    def _follow_overrides(self) -> None:
        """Begin to follow the overrides in the store. Those in the memory of this process are read now."""
        _limiters.add(self)
        if keeps_records(self.store):
            reader = OverrideReader(self)
            if self.waits:
                self._override_reader = reader
            else:
                reader.read()

    def _with_overrides(self, rules: RuleSet) -> RuleSet:
        return self._overlaid(rules, self._overrides)

    def _overlaid(self, rules: RuleSet, overrides: Overrides) -> RuleSet:
        """Return rules with these overrides. Log those that the rules cannot have, once."""
        rules = with_overrides(rules, overrides, self._time, self.rules)
        if isinstance(rules, OverriddenRules):
            problems = {(name, str(error)) for name, table in rules.tables.items() for error in table.errors}
            for name, problem in sorted(problems - self._reported):
                _log.warning("rule %r: overrides of clients are not active: %s", name, problem)
            self._reported = frozenset(problems)
        return rules

    def _override(self, name: str, features: Features, limits: Any, duration: float | str | None) -> ClientOverride:
        rule, key = self._client(name, features)
        with error_path("limits"):
            compiled = self.rules.by_name[rule]
            text = limits.strip().lower() if isinstance(limits, str) else ""
            if text != UNLIMITED:
                text = "; ".join(map(str, compiled.source.parse_limits(limits)))
            for limit in limits_of(compiled, text):
                self.store.check(limit)
        with error_path("duration"):
            span = None if duration is None else parse_duration(duration)
            if span == 0:
                raise ConfigError("expected more than 0; leave it out for an override without an end")
        return ClientOverride(rule, key, text, None if span is None else self._time() + span)

    def _client(self, name: str, features: Features) -> tuple[str, str]:
        """Return the name of a rule, and the key of a client as requests of the client have it."""
        rule = self.rules.named(name)
        _check_features(rule, features)
        return rule.name, rule.build_key(features) or ""

    def _change(self, rule: str | None, key: str = "", override: ClientOverride | None = None) -> bool:
        """Replace the override of a client, or remove it; without a rule, remove all. Return whether there was one."""
        with CHANGING.lock:
            for _ in range(_MAX_TRIES):
                before = self.store.read_record(RECORD)
                known = () if rule is None else self._overrides_in(before)
                others = [each for each in known if (each.rule, each.key) != (rule, key)]
                record = self._dump([*others, *([override] if override else [])])
                if self.store.write_record(RECORD, record, before):
                    for limiter in list(_limiters):
                        if limiter.store is self.store:
                            limiter.use_overrides(record)
                    return len(others) < len(known)
        raise StoreError("other processes changed the overrides all the time; try again")

    def _dump(self, overrides: list[ClientOverride]) -> bytes:
        record = dump_overrides(overrides)
        if len(record) > MAX_RECORD:
            hint = "Put the limits of many clients into per_key, or into a function"
            raise ConfigError(f"{len(overrides) - 1:,} overrides fill their record. {hint}")
        return record

    def _overrides_in(self, record: bytes | None) -> Overrides:
        try:
            overrides, now = load_overrides(record), self._time()
        except ValueError as error:
            hint = "clear_overrides(), or the command `override clear`, removes all of them"
            message = f"{error}. Workers keep the last overrides they know. {hint}"
            raise StoreError(message) from None
        return tuple(each for each in overrides if not each.has_ended(now))


def _check_features(rule: CompiledRule, features: Features) -> None:
    """Raise ``ConfigError`` for features that are missing in a key, or invalid."""
    features, missing = rule.captures.add(features), []
    for names in rule.source.entries:
        parts = [part for name in names if (part := part_of(name)).value(features) is not None]
        if not parts:
            missing.append("|".join(names))
        elif parts[0].compared(features) is INVALID:
            raise ConfigError(f"{parts[0].text} of rule {rule.name!r} cannot have this value")
    if missing:
        raise ConfigError(f"the key of rule {rule.name!r} needs {' and '.join(missing)}; got {sorted(features)}")
