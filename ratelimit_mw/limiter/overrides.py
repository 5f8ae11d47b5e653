"""``Overrides``: other limits for single clients. One record in the store has them all, and each process follows it."""

from __future__ import annotations

import logging
from typing import Final
from weakref import WeakValueDictionary

from ..errors import ConfigError, StateError, StoreError
from ..rules.overrides import ClientOverride, dump_overrides, load_overrides
from ..rules.ruleset import RuleSet
from ..runtime.blocking import Call, run_beside
from ..stores import Store
from ..stores.base import MAX_RECORD
from ..stores.url import redacted_url
from .clocks import Clocks
from .reloads import Reloads

_RECORD: Final = "overrides"
_TRIES: Final = 100
_KEEPS_CHANGING: Final = "other processes kept changing the overrides. Try again"
_log = logging.getLogger("ratelimit_mw")


def keeps_records(store: Store) -> bool:
    """Return whether a store keeps records. One of an application may not."""
    return type(store).read_record is not Store.read_record


class Overrides:
    """The overrides of a limiter, as far as this process knows them. A change replaces the tables of the rules."""

    def __init__(self, store: Store, clocks: Clocks, reloads: Reloads) -> None:
        self._store, self._clocks, self._reloads = store, clocks, reloads
        self.record: bytes | None = None
        """The record that is active."""
        self._known: tuple[ClientOverride, ...] = ()
        """All that is in the record."""
        self._active: tuple[ClientOverride, ...] = ()
        self._reported: frozenset[tuple[str, str]] = frozenset()
        self._is_shared = keeps_records(store)
        reloads.preparations.append(self._apply)
        _everywhere[id(self)] = self

    async def follow(self, call: Call) -> None:
        """Put the record of the store into effect. If another one is active since the read, read again.

        A ban that has ended is put out of effect, too, because each request is slower while there are bans. It is in
        effect again if the clock is set back.
        """
        is_active = False
        while not is_active:
            known = self.record
            record = await call(self._store, "read_record", _RECORD)
            if record == known and self._without_ended_bans() == self._active:
                return
            is_active = await run_beside(call, self._use, record, known)

    def _use(self, record: bytes | None, before: bytes | None) -> bool:
        """Put a record into effect. Return False if it is no longer ``before`` that was active before the read.

        A damaged record raises ``ValueError``.
        """
        with self._reloads.lock:
            if self.record is not before:
                return False
            self._known = load_overrides(record)
            self._active = self._without_ended_bans()
            if record is None:
                name = redacted_url(self._store)
                _log.warning("store %s has lost the overrides; the limits of the rules apply", name)
            self._apply(self._reloads.rules)
            self._reloads.update_middlewares()
            self.record = record  # last: after an error, the next read tries again
            return True

    def _without_ended_bans(self) -> tuple[ClientOverride, ...]:
        now = self._clocks.time()
        return tuple(each for each in self._known if not (each.by and each.has_ended(now)))

    async def change(self, call: Call, rule: str, key: str, new: ClientOverride | None = None) -> bool:
        """Replace the override of a client in the store, or remove it. Return whether there was one."""
        for _ in range(_TRIES):
            record, before = await self._read(call)
            others = [each for each in before if (each.rule, each.key) != (rule, key)]
            if await self._write(call, [*others, *([new] if new else [])], record):
                return len(others) < len(before)
        raise StoreError(_KEEPS_CHANGING)

    async def clear_overrides(self, call: Call) -> None:
        """Remove the overrides of all clients and rules, and bans from all rules, even where their record is damaged.

        Raises:
            StoreError: The store is unreachable.
        """
        for _ in range(_TRIES):
            try:
                record = await call(self._store, "read_record", _RECORD)
            except StateError as error:
                await call(self._store, "forget", error.keys)
                record = None
            if await self._write(call, [], record):
                return
        raise StoreError(_KEEPS_CHANGING)

    async def overrides(self, call: Call) -> list[ClientOverride]:
        """Read the overrides of all clients from the store, without those that have ended.

        Returns:
            The overrides, in the order in which they were set.

        Raises:
            ConfigError: The store keeps no records.
            StoreError: The store is unreachable, or the record is damaged.
        """
        return [each for each in (await self._read(call))[1] if not each.by]

    async def bans(self, call: Call) -> list[ClientOverride]:
        """Return the bans from all rules, without those that have ended. A store without records has none."""
        every = (await self._read(call))[1] if self._is_shared else ()
        return [each for each in every if each.by]

    async def _read(self, call: Call) -> tuple[bytes | None, list[ClientOverride]]:
        """Return the record in the store, and all that has not ended."""
        try:
            record = await call(self._store, "read_record", _RECORD)
            return record, [each for each in load_overrides(record) if not each.has_ended(self._clocks.time())]
        except ConfigError:
            raise
        except (StateError, ValueError) as error:
            hint = "clear_overrides(), or the command `override clear`, removes all of them"
            name = redacted_url(self._store)
            problem = f"store {name}: {error}. Workers keep the last overrides they know. {hint}"
            raise StoreError(problem) from None

    def _apply(self, rules: RuleSet) -> None:
        """Replace the overrides of rules. Log those that the rules cannot have, once."""
        problems = rules.override(self._active, self._clocks.time)
        for name, problem in sorted(problems - self._reported):
            _log.warning("rule %r: overrides of clients are not active: %s", name, problem)
        self._reported = frozenset(problems)

    async def _write(self, call: Call, overrides: list[ClientOverride], before: bytes | None) -> bool:
        """Write the record, and follow it in this process. False if another process has changed it since the read."""
        record = dump_overrides(overrides)
        if len(record) > MAX_RECORD:
            hint = "Put the limits of many clients into per_key, or into a function"
            raise ConfigError(f"the override record is full ({len(overrides) - 1:,} overrides). {hint}")
        try:
            is_written = bool(await call(self._store, "write_record", _RECORD, record, before))
        except StoreError as error:  # the store may have made the change, or may still make it
            hint = "To be sure, make the same change again, or list the overrides"
            raise StoreError(f"{error}. The change of the overrides may be in effect. {hint}") from error
        if is_written:
            for each in [reference() for reference in _everywhere.valuerefs()]:
                if each is not None and each._store is self._store:
                    await each.follow(call)
        return is_written


_everywhere: Final = WeakValueDictionary[int, Overrides]()
"""The overrides of all limiters of this process, by their ids. Those with one store object apply a change at once."""
