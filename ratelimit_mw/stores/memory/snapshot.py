"""The states of a memory store in a file: written whole or not at all, and checked when read."""

import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec

from ...decision import prefix_of
from ...errors import url_of
from ..regular import read_regular
from .generations import Generations, Table

_MAGIC: Final = b"ratelimit_mw snapshot 4\n"
_DIGEST: Final = 16
_CODEC: Final = ("utf-8", "surrogatepass")
_log = logging.getLogger("ratelimit_mw")


class PackedState(bytes):
    """A state as it was read from the file. Its limit unpacks it when the key is first used."""

    __slots__ = ()


_Dumps = Mapping[str, Callable[[Any], bytes]]
_Saved = dict[bytes, bytes]


class SavedGenerations(msgspec.Struct, forbid_unknown_fields=True):
    """``Generations`` with states as bytes, and the prefixes of their limits. Keys are bytes: they may be any text."""

    span: int
    rotates_at: int
    prefixes: list[bytes]
    tables: tuple[_Saved, _Saved, _Saved, _Saved]  # young, old, shared, shared_old
    overdue: dict[bytes, int]


class Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    """All states and records of a store. ``secret`` chooses the keys of the shared states."""

    secret: bytes
    generations: list[SavedGenerations]
    documents: dict[str, bytes] = {}


def pack(generations: Generations, dumps: _Dumps) -> SavedGenerations:
    """Turn states into bytes. ``dumps`` holds the function that does it for each prefix of a limit."""
    tables = (generations.young, generations.old, generations.shared, generations.shared_old)
    prefixes = {prefix_of(key) for table in tables for key in table}
    young, old, shared, shared_old = (_pack_table(table, dumps) for table in tables)
    overdue = {key.encode(*_CODEC): until for key, until in generations.overdue.items()}
    names, saved = [prefix.encode(*_CODEC) for prefix in prefixes], (young, old, shared, shared_old)
    return SavedGenerations(generations.span, generations.rotates_at, names, saved, overdue)


def unpack(saved: SavedGenerations) -> tuple[Generations, list[str]]:
    """Return the generations, whose states are still bytes, and the prefixes of their limits."""
    generations = Generations(saved.span, saved.rotates_at - saved.span)
    tables = ({key.decode(*_CODEC): PackedState(state) for key, state in table.items()} for table in saved.tables)
    generations.young, generations.old, generations.shared, generations.shared_old = tables
    generations.overdue = {key.decode(*_CODEC): until for key, until in saved.overdue.items()}
    return generations, [prefix.decode(*_CODEC) for prefix in saved.prefixes]


def _pack_table(table: Table, dumps: _Dumps) -> _Saved:
    return {
        key.encode(*_CODEC): bytes(state) if type(state) is PackedState else dumps[prefix_of(key)](state)
        for key, state in table.items()
    }


def write(path: Path, snapshot: Snapshot) -> None:
    """Replace the file in one step: a reader finds the old or the new file."""
    body = msgspec.msgpack.encode(snapshot)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + blake2b(body, digest_size=_DIGEST).digest() + body)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path) -> Snapshot | None:
    """Read a snapshot. Return None for a missing file, and, with a log line, for a file that cannot be used."""
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        page = url_of("how-to/operate/log-messages#snapshot-rights")
        _log.warning("cannot read the snapshot %s (%s); starting with empty counts. See %s", path, error.strerror, page)
        return None
    body = data[len(_MAGIC) + _DIGEST :]
    if data[: len(_MAGIC) + _DIGEST] == _MAGIC + blake2b(body, digest_size=_DIGEST).digest():
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return msgspec.msgpack.decode(body, type=Snapshot)
    page = url_of("how-to/operate/log-messages#snapshot-damaged")
    _log.warning("the snapshot %s is damaged or of another version; starting with empty counts. See %s", path, page)
    return None
