"""The overrides of all clients in the store, which are one record: how to read them, and how to change one."""

from __future__ import annotations

from typing import Final

from ...errors import ConfigError, StateError, StoreError
from ...rules.overrides import ClientOverride, Overrides, dump_overrides, load_overrides
from ...stores import redacted_url
from ...stores.base import MAX_RECORD, Store
from ...stores.blocking import Call

RECORD: Final = "overrides"
_TRIES: Final = 100
_OVERTAKEN: Final = "other processes kept changing the overrides. Try again"


async def read_overrides(call: Call, store: Store, now: int) -> Overrides:
    """Return the overrides in the store, without those that have ended at a time in microseconds."""
    try:
        return _decode(store, await call(store, "read_record", RECORD), now)
    except StateError as error:
        raise _damage(store, error) from None


async def change_override(
    call: Call, store: Store, now: int, rule: str, key: str, new: ClientOverride | None = None
) -> bool:
    """Replace the override of a client, or remove it. Return whether there was one."""
    for _ in range(_TRIES):
        try:
            record = await call(store, "read_record", RECORD)
        except StateError as error:
            raise _damage(store, error) from None
        before = _decode(store, record, now)
        others = [each for each in before if (each.rule, each.key) != (rule, key)]
        if await _write(call, store, [*others, *([new] if new else [])], record):
            return len(others) < len(before)
    raise StoreError(_OVERTAKEN)


async def clear_overrides(call: Call, store: Store) -> None:
    """Remove all overrides, even where their record is damaged."""
    for _ in range(_TRIES):
        try:
            record = await call(store, "read_record", RECORD)
        except StateError as error:
            await call(store, "forget", error.keys)
            record = None
        if await _write(call, store, [], record):
            return
    raise StoreError(_OVERTAKEN)


async def _write(call: Call, store: Store, overrides: list[ClientOverride], before: bytes | None) -> bool:
    """Write the record. False if another process has changed it since it was read."""
    record = dump_overrides(overrides)
    if len(record) > MAX_RECORD:
        hint = "Put the limits of many clients into per_key, or into a function"
        raise ConfigError(f"the override record is full ({len(overrides) - 1:,} overrides). {hint}")
    try:
        return bool(await call(store, "write_record", RECORD, record, before))
    except StoreError as error:  # the store may have made the change, or may still make it
        hint = "To be sure, make the same change again, or list the overrides"
        raise StoreError(f"{error}. The change of the overrides may be in effect. {hint}") from error


def _decode(store: Store, record: bytes | None, now: int) -> Overrides:
    try:
        return tuple(each for each in load_overrides(record) if not each.has_ended(now))
    except ValueError as error:
        raise _damage(store, error) from None


def _damage(store: Store, error: Exception) -> StoreError:
    hint = "clear_overrides(), or the command `override clear`, removes all of them"
    return StoreError(f"store {redacted_url(store)}: {error}. Workers keep the last overrides they know. {hint}")
