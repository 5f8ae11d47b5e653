"""``RunTimeOverrides``: the part of a ``Limiter`` that applies the overrides in the store. ``Clients`` changes them."""

from __future__ import annotations

import logging
from typing import Final

from ...rules.overrides import CheckLimits, Overrides, load_overrides, put_overrides
from ...rules.ruleset import RuleSet
from ...settings import Settings
from ...stores import redacted_url
from ...stores.blocking import Call
from ..registry import Registry
from ..reloads import Reloads
from ..remote.breaker import Breaker
from ..resets import Resets
from ..watch import Watch
from .reader import OverrideReader

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
            self._put(overrides, self.rules)
            renewals = [user.renew(self.rules, self.settings) for user in tuple(self.users)]
            self._active = overrides
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
        """Return rules with the overrides that are active."""
        self._put(self._active, rules)
        return rules

    def _put(self, overrides: Overrides, rules: RuleSet) -> None:
        """Replace the overrides of rules. Log those that the rules cannot have, once."""
        problems = put_overrides(rules, overrides, self._time, self._check_override)
        for name, problem in sorted(problems - self._reported):
            _log.warning("rule %r: overrides of clients are not active: %s", name, problem)
        self._reported = frozenset(problems)

    async def follow_change(self, call: Call) -> None:
        """Put a change into effect in the limiters of this process that share the store object.

        Args:
            call: Calls a method of the store, blocking or async.
        """
        for limiter in _limiters:
            if limiter.store is self.store and limiter._override_reader:
                await limiter._override_reader.follow(call)
