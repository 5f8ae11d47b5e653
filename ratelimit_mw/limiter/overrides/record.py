"""The overrides of all clients in the store: how to read them, and how to change one.

They are one record. Another record has its first line, so that workers see whether it has changed without reading it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from ...errors import ConfigError, StateError, StoreError
from ...rules.overrides import ClientOverride, Overrides, dump_overrides, head_of, load_overrides
from ...stores import redacted_url
from ...stores.base import MAX_RECORD, Store
from ...stores.blocking import Call

RECORD: Final = "overrides"
HEAD: Final = "overrides.head"
_TRIES: Final = 100


async def read_overrides(call: Call, store: Store, known: bytes | None, now: int) -> Overrides:
    """Return the overrides in the store, without those that have ended at a time in microseconds.

    ``known`` is the last record that this process has read. It counts where the store has evicted its own.
    """
    try:
        return await _decode(call, store, await call(store, "read_record", RECORD), known, now)
    except StateError as error:
        raise _damage(store, error) from None


async def change_overrides(
    call: Call, store: Store, known: bytes | None, now: int, rule: str | None, key: str, new: ClientOverride | None
) -> bool:
    """Replace the override of a client, or remove it; without a rule, remove all. Return whether there was one."""
    before: Overrides = ()
    others: list[ClientOverride] = []

    async def change(record: bytes | None) -> bytes:
        nonlocal before, others
        before = () if rule is None else await _decode(call, store, record, known, now)
        others = [each for each in before if (each.rule, each.key) != (rule, key)]
        return _dump([*others, *([new] if new else [])])

    async def checked(target: object, method: str, *arguments: Any) -> Any:
        try:
            return await call(target, method, *arguments)
        except StoreError as error:
            if method == "write_record":
                raise _uncertain(error) from error
            raise

    async def show(_: bytes | None) -> bytes | None:
        return head_of(await call(store, "read_record", RECORD))

    try:
        is_written = await update(checked, store, RECORD, change, _TRIES)
        is_written = is_written and await update(checked, store, HEAD, show, _TRIES)
    except StateError as error:
        if rule is not None:
            raise _damage(store, error) from None
        await call(store, "forget", error.keys)
        return await change_overrides(call, store, None, now, None, "", None)
    if not is_written:
        raise StoreError("other processes kept changing the overrides. Try again")
    return len(others) < len(before)


async def read_change(call: Call, store: Store, known: bytes | None, is_whole: bool) -> bytes | None:
    """Return the record, or ``known`` if its head shows no change. ``is_whole``: read it without a change, too.

    Memcached evicts a record that is not read. A process that knows an evicted record writes it again.
    """
    head = await call(store, "read_record", HEAD)
    if head == head_of(known) and not is_whole:
        return known
    record: bytes | None = await call(store, "read_record", RECORD)
    if record is None and (record := _evicted(head, known)) is not None:
        await call(store, "write_record", RECORD, record, None)
    return record


async def _decode(call: Call, store: Store, record: bytes | None, known: bytes | None, now: int) -> Overrides:
    try:
        if record is None and (head := await call(store, "read_record", HEAD)) is not None:
            # Another process may have written both since.
            record = await call(store, "read_record", RECORD) or _evicted(head, known)
        return tuple(each for each in load_overrides(record) if not each.has_ended(now))
    except ValueError as error:
        raise _damage(store, error) from None


def _evicted(head: bytes | None, known: bytes | None) -> bytes | None:
    """Return the record that a store has lost, but not its head; ``ValueError`` if this process does not know it."""
    if head is not None and head != head_of(known):
        problem = "the store has evicted the record of overrides"
        raise ValueError(f"{problem}; a worker that still has the record writes it again within a minute")
    return known if head else None


def _dump(overrides: list[ClientOverride]) -> bytes:
    record = dump_overrides(overrides)
    if len(record) > MAX_RECORD:
        hint = "Put the limits of many clients into per_key, or into a function"
        raise ConfigError(f"the override record is full ({len(overrides) - 1:,} overrides). {hint}")
    return record


def _uncertain(error: StoreError) -> StoreError:
    """Return the error of a write without a reply, which the store may have made, or may still make."""
    hint = "To be sure, make the same change again, or list the overrides"
    return StoreError(f"{error}. The change of the overrides may be in effect. {hint}")


def _damage(store: Store, error: Exception) -> StoreError:
    hint = "clear_overrides(), or the command `override clear`, removes all of them"
    return StoreError(f"store {redacted_url(store)}: {error}. Workers keep the last overrides they know. {hint}")


async def update(
    call: Call,
    store: Store,
    name: str,
    change: Callable[[bytes | None], Awaitable[bytes | None]],
    tries: int,
) -> bool:
    """Change a record by compare-and-swap.

    Args:
        call: Calls a method of the store.
        store: The store.
        name: The name of the record.
        change: Returns the new data for those that were read. It is called again if another process was faster.
        tries: How often to try.

    Returns:
        Whether the record is written. Otherwise other processes were faster each time.
    """
    for _ in range(tries):
        before = await call(store, "read_record", name)
        if await call(store, "write_record", name, await change(before), before):
            return True
    return False
