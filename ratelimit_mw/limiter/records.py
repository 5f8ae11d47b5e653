"""The records of a store that all processes change: how to change one, and the names and form of those with counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from ..clock import SECOND
from ..stores import Store
from ..stores.blocking import Call
from .summary import Summary


class Span(NamedTuple):
    """The length of the period that a record covers, and how long records are kept, in microseconds."""

    width: int
    kept: int


class CountsRecord(NamedTuple):
    """A record of counts.

    Args:
        name: Its name in the store.
        size: The most counts that it keeps.
        lifetime: How long it stays after a write, in microseconds.
        begin: The start of the period that it covers, in microseconds since 1970.
    """

    name: str
    size: int
    lifetime: int
    begin: int


_MINUTE, _HOUR, _DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
SPANS: Final = (Span(5 * _MINUTE, 2 * _HOUR), Span(_HOUR, 8 * _DAY))
LONGEST: Final = 7 * _DAY / SECOND
"""The longest time range in seconds that can be read."""
OUTCOMES: Final = "outcomes"
"""The name of records that count ``"OUTCOME RULE"``. The others count clients."""
CLIENTS_SIZE: Final = 100
"""The maximum number of clients in a record."""
OUTCOMES_SIZE: Final = 2_000
"""The maximum number of counts in a record of outcomes."""


async def update(
    call: Call,
    store: Store,
    name: str,
    change: Callable[[bytes | None], Awaitable[bytes | None]],
    tries: int,
    lifetime: int | None = None,
) -> bool:
    """Change a record by compare-and-swap.

    Args:
        call: Calls a method of the store.
        store: The store.
        name: The name of the record.
        change: Returns the new data for those that were read. It is called again if another process was faster.
        tries: How often to try.
        lifetime: As for ``Store.write_record``.

    Returns:
        Whether the record is written. Otherwise other processes were faster each time.
    """
    for _ in range(tries):
        before = await call(store, "read_record", name)
        if await call(store, "write_record", name, await change(before), before, lifetime):
            return True
    return False


def clients_of(rule: str) -> str:
    """Return the name of the records of a rule's clients. The name of a rule may have any length and any characters."""
    return f"clients-{blake2b(rule.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def records_at(name: str, at: int) -> Iterator[CountsRecord]:
    """Yield the records that count what happens at a time in microseconds, one for each span."""
    size = OUTCOMES_SIZE if name == OUTCOMES else CLIENTS_SIZE
    for span in SPANS:
        begin = at // span.width * span.width
        full_name = f"{name}:{span.width // SECOND}:{begin // SECOND}"
        yield CountsRecord(full_name, size, span.width + span.kept, begin)


def decode(data: bytes | None) -> Summary:
    """Return the counts of a record. A record that cannot be decoded starts anew."""
    try:
        return Summary() if data is None else msgspec.msgpack.decode(data, type=Summary)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Summary()


async def read_sum(call: Call, store: Store, name: str, span: Span, start: int, end: int) -> Summary:
    """Return the sum of the records of a time range."""
    total, number = Summary(), SPANS.index(span)
    for at in range(start, end + 1, span.width):
        record = tuple(records_at(name, at))[number]
        total.merge(decode(await call(store, "read_record", record.name)), 100 * record.size)
    return total
