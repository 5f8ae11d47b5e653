"""The states of a memory store in a file: written whole or not at all, and checked when read."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec

from ...algorithms.limit import prefix_of
from .generations import Generations, Table

_MAGIC: Final = b"ratelimit_mw snapshot 3\n"
_DIGEST: Final = 16
_log = logging.getLogger("ratelimit_mw")


class PackedState(bytes):
    """A state as it was read from the file. Its limit unpacks it when the key is first used."""

    __slots__ = ()


class SavedGenerations(msgspec.Struct, forbid_unknown_fields=True):
    """``Generations`` with states as bytes, and the prefixes of their limits. Keys are bytes: they may be any text."""

    span: int
    rotates_at: int
    prefixes: list[bytes]
    young: dict[bytes, bytes]
    old: dict[bytes, bytes]
    shared: dict[bytes, bytes]
    shared_old: dict[bytes, bytes]
    overdue: dict[bytes, int]


class Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    """All states of a store. ``secret`` chooses the keys of the shared states."""

    secret: bytes
    generations: list[SavedGenerations]


Dumps = Mapping[str, Callable[[Any], bytes]]


def pack(generations: Generations, dumps: Dumps) -> SavedGenerations:
    """Turn states into bytes. ``dumps`` holds the function that does it for each prefix of a limit."""
    prefixes: set[str] = set()
    tables = (generations.young, generations.old, generations.shared, generations.shared_old)
    young, old, shared, shared_old = (_pack_table(table, dumps, prefixes) for table in tables)
    overdue = {_bytes(key): until for key, until in generations.overdue.items()}
    names = [*map(_bytes, prefixes)]
    return SavedGenerations(generations.span, generations.rotates_at, names, young, old, shared, shared_old, overdue)


def unpack(saved: SavedGenerations) -> tuple[Generations, list[str]]:
    """Return the generations, whose states are still bytes, and the prefixes of their limits."""
    generations = Generations(saved.span, saved.rotates_at - saved.span)
    generations.young, generations.old = _unpack_table(saved.young), _unpack_table(saved.old)
    generations.shared, generations.shared_old = _unpack_table(saved.shared), _unpack_table(saved.shared_old)
    generations.overdue = {_text(key): until for key, until in saved.overdue.items()}
    return generations, [*map(_text, saved.prefixes)]


def _pack_table(table: Table, dumps: Dumps, prefixes: set[str]) -> dict[bytes, bytes]:
    packed = {}
    for key, state in table.items():
        prefix = prefix_of(key)
        prefixes.add(prefix)
        packed[_bytes(key)] = bytes(state) if type(state) is PackedState else dumps[prefix](state)
    return packed


def _unpack_table(table: dict[bytes, bytes]) -> Table:
    return {_text(key): PackedState(state) for key, state in table.items()}


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")


def write(path: Path, snapshot: Snapshot) -> None:
    """Replace the file in one step: a reader finds the old or the new file.

    Raises:
        OSError: The file cannot be written.
    """
    body = msgspec.msgpack.encode(snapshot)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + _digest(body) + body)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path) -> Snapshot | None:
    """Read a snapshot. Return None for a missing file, and, with a log line, for a file that cannot be used."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("cannot read the snapshot %s (%s); starting with empty counts", path, error.strerror)
        return None
    body = data[len(_MAGIC) + _DIGEST :]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : len(_MAGIC) + _DIGEST] != _digest(body):
        _log.warning("the snapshot %s is damaged or of another version; starting with empty counts", path)
        return None
    return msgspec.msgpack.decode(body, type=Snapshot)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST).digest()
