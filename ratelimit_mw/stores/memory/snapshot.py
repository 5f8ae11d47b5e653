"""A memory store's states in a file: written whole or not at all, checked when read. Knows no algorithm."""

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

__all__ = ["Saved", "SavedShelf", "Snapshot", "packed", "read", "unpacked", "write"]

_MAGIC: Final = b"ratelimit_mw snapshot 2\n"
_DIGEST: Final = 16
_log = logging.getLogger("ratelimit_mw")


class Saved(bytes):
    """A state as it was read; what it means is known to the limit of whoever asks for it."""

    __slots__ = ()


class SavedShelf(msgspec.Struct, forbid_unknown_fields=True):
    """A shelf with states as bytes, and the limits that stand on it. Keys are bytes, for they may be any text."""

    span: int
    turns_at: int
    prefixes: list[bytes]
    young: dict[bytes, bytes]
    old: dict[bytes, bytes]
    shared: dict[bytes, bytes]
    shared_old: dict[bytes, bytes]
    debts: dict[bytes, int]


class Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    """All shelves of a store; ``secret`` chose the keys of the shared states."""

    secret: bytes
    shelves: list[SavedShelf]


Dumps = Mapping[str, Callable[[Any], bytes]]


def packed(shelf: Generations, dumps: Dumps) -> SavedShelf:
    """A shelf as bytes; ``dumps`` knows, by the prefix of its limit, how a state becomes some."""
    prefixes: set[str] = set()
    tables = (shelf.young, shelf.old, shelf.shared, shelf.shared_old)
    young, old, shared, shared_old = (_dumped(table, dumps, prefixes) for table in tables)
    debts = {_bytes(key): until for key, until in shelf.debts.items()}
    standing = [*map(_bytes, prefixes)]
    return SavedShelf(shelf.span, shelf.turns_at, standing, young, old, shared, shared_old, debts)


def unpacked(saved: SavedShelf) -> tuple[Generations, list[str]]:
    """The shelf as it was, its states still bytes, and the prefixes of its limits."""
    shelf = Generations(saved.span, saved.turns_at - saved.span)
    shelf.young, shelf.old = _loaded(saved.young), _loaded(saved.old)
    shelf.shared, shelf.shared_old = _loaded(saved.shared), _loaded(saved.shared_old)
    shelf.debts = {_text(key): until for key, until in saved.debts.items()}
    return shelf, [*map(_text, saved.prefixes)]


def _dumped(table: Table, dumps: Dumps, prefixes: set[str]) -> dict[bytes, bytes]:
    found = {}
    for key, state in table.items():
        prefix = prefix_of(key)
        prefixes.add(prefix)
        found[_bytes(key)] = bytes(state) if type(state) is Saved else dumps[prefix](state)
    return found


def _loaded(table: dict[bytes, bytes]) -> Table:
    return {_text(key): Saved(state) for key, state in table.items()}


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")


def write(path: Path, snapshot: Snapshot) -> None:
    """Replace the file at once: whoever reads it finds the old or the new one. ``OSError`` when that fails."""
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
    """What was written; None, with one log line where there is something to say, for a file that cannot be used."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("the snapshot %s cannot be read (%s); starting without it", path, error.strerror)
        return None
    body = data[len(_MAGIC) + _DIGEST :]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : len(_MAGIC) + _DIGEST] != _digest(body):
        _log.warning("the snapshot %s is damaged or of another kind; starting without it", path)
        return None
    return msgspec.msgpack.decode(body, type=Snapshot)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST).digest()
