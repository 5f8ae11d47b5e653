"""``PostgresStore``: the states of all clients in one unlogged table, behind compare-and-swap.

A request reads its states with one statement and writes them with another. Each row has a version, which every write
increases. A write with an old version is lost. One statement writes all states of a request or none.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from importlib.resources import files
from itertools import count
from typing import ClassVar, Final

from ...algorithms.window_log import SlidingWindowLog, TieredWindow
from ...runtime.blocking import forms
from ...runtime.forksafe import CHANCE
from ..base import MAX_LISTED, KeyPage
from ..bytecall import DAY, Write
from ..bytestore import ByteStore, StoreCall
from ..drivers import Channel, Driver
from ..url import parse_url_of, redacted_url
from ..wire import ReplyError
from .address import PostgresAddress
from .connection import connect, open_connection

_MAX_NAME: Final = 500  # bytes; an index takes a few more
_HASHED: Final = b"\xff"
"""The start of the names that are not listed. No text in UTF-8 begins with the byte 255."""
_TOMBSTONE_US: Final = 60_000_000
"""How long the row of a deleted state stays, so that a write with an older version is lost."""
_SWEPT_EVERY: Final = 16  # writes
_SWEPT_AT_ONCE: Final = 64  # rows
_BYTEA, _BIGINT = 17, 20  # the numbers of the types
_NULL: Final = b"\xff" * 4


def _array(kind: int, values: Sequence[bytes | None]) -> bytes:
    """Return an array in the binary form of PostgreSQL."""
    items = [_NULL if value is None else len(value).to_bytes(4, "big") + value for value in values]
    return struct.pack(">iiiii", 1, None in values, kind, len(values), 1) + b"".join(items)


def _integer(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def _number(data: bytes | None) -> int:
    return int.from_bytes(data or b"", "big", signed=True)


def _name_of(key: str) -> bytes:
    """Return the name of a key in the table. The name of the empty key, which ``ping`` writes, is not listed."""
    name = key.encode("utf-8", "surrogatepass")
    return name if 0 < len(name) <= _MAX_NAME else _HASHED + blake2b(name, digest_size=32).digest()


class PostgresCall(StoreCall):
    """One call."""

    _store: PostgresStore

    def __init__(self, store: PostgresStore, driver: Driver, seconds: float) -> None:
        super().__init__(store, driver, seconds)
        self._versions: dict[str, int] = {}
        self._at = 0  # the time of the server

    async def ask(self, statement: bytes, *parameters: bytes) -> list[list[bytes | None]] | None:
        """Return the rows of a statement; None after a lost race."""
        (result,) = await (await self.driver.connections.send((statement, parameters), 1, self.deadline))
        self.driver.replies += 1
        if result is None:
            return None
        columns = range(result.nfields)
        return [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]

    async def load(self, keys: Sequence[str]) -> tuple[Sequence[bytes | None], int]:
        names = [_name_of(key) for key in keys]
        rows = await self.ask(b"load", _array(_BYTEA, names)) or []
        self._at = _number(rows[0][0])
        found = {name: (data, _number(version)) for _, name, data, version in rows}
        for key, name in zip(keys, names, strict=True):
            # A new row begins with a version that no row of this name had before.
            self._versions[key] = found[name][1] if name in found else -1 - CHANCE.getrandbits(61)
        return [found[name][0] if name in found else None for name in names], self._at

    async def swap(self, writes: Sequence[Write]) -> Collection[str]:
        columns = [
            _array(_BYTEA, [_name_of(write.key) for write in writes]),
            _array(_BYTEA, [write.data for write in writes]),
            _array(_BIGINT, [_integer(self._versions[write.key]) for write in writes]),
            _array(_BIGINT, [_integer(self._expiry(write)) for write in writes]),
        ]
        rows = await self.ask(b"swap" if len(writes) == 1 else b"swap_all", *columns)
        if rows is None or _number(rows[0][0]) != len(writes):
            return [write.key for write in writes]
        if next(self._store.writes) % _SWEPT_EVERY == 0:
            with suppress(ReplyError, ConnectionError, TimeoutError):  # the request is counted
                await self.ask(b"sweep", _integer(self._at), _integer(_SWEPT_AT_ONCE))
        return ()

    def _expiry(self, write: Write) -> int:
        """Return the time of expiry, later by up to an eighth: a write that leaves it alone leaves the index alone."""
        lasts = _TOMBSTONE_US if write.data is None else write.lasts_us
        step = 1 << max(0, lasts.bit_length() - 4)
        return self._at + lasts + step - (self._at + lasts) % step

    async def list_keys(self, prefix: str, cursor: str = "") -> KeyPage:
        """Return the keys of a page, without those too long for a name. Its cursor is the last key before it."""
        begin, after = (text.encode("utf-8", "surrogatepass") for text in (prefix, cursor))
        rows = await self.ask(b"list", begin, after, _integer(MAX_LISTED)) or []
        keys = [(name or b"").decode("utf-8", "surrogatepass") for (name,) in rows]
        return KeyPage(keys, keys[-1] if len(keys) == MAX_LISTED else None)

    async def ping(self) -> None:
        """Write a row: reading may work where writing does not."""
        await self.load([""])
        await self.swap([Write("", b"-", None, DAY)])


class PostgresStore(ByteStore):
    """Keep states in a PostgreSQL that all processes share.

    Args:
        url: A store URL such as ``postgresql://user:password@host/database``.
            docs/reference/stores/postgresql.md lists its options.
        timeout_us: The time budget of a call in microseconds.

    Raises:
        ConfigError: The URL or an option cannot be used.

    Example:
        ``limiter = Limiter(rules, store=PostgresStore("postgresql://app@db/shop"))``
    """

    _title = "PostgreSQL"
    _call = PostgresCall
    _most_entries: ClassVar = {SlidingWindowLog.name: 5_000, TieredWindow.name: 5_000}  # of 16 bytes

    def __init__(self, url: str | PostgresAddress, timeout_us: int = 50_000) -> None:
        address = parse_url_of(url, PostgresAddress, "postgresql://host/database") if isinstance(url, str) else url
        if isinstance(url, str):
            self.name = redacted_url(url)
        table = ".".join(f'"{part}"' for part in address.table.split("."))
        setup = files(__package__).joinpath("statements.sql").read_text("utf-8").replace("{table}", table)
        self._open_one = partial(connect, address.parameters, setup)
        self.writes = count(1)
        super().__init__(timeout_us)

    list_keys, alist_keys = forms(ByteStore.list_keys)

    def _connect(self, driver: Driver) -> Channel:
        return driver.channel(partial(open_connection, driver, self._open_one))


def open_address(parsed: PostgresAddress, timeout_us: int) -> PostgresStore:
    return PostgresStore(parsed, timeout_us)
