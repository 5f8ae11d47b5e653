"""The states of a memory store in a file: written whole or not at all, and checked when read."""

import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec

from ...decision import Limit
from ...errors import url_of
from ...runtime.regularfile import read_regular
from .generations import Generations

_MAGIC: Final = b"ratelimit_mw snapshot 6\n"
_DIGEST: Final = 16
_log = logging.getLogger("ratelimit_mw")


class PackedState(bytes):
    """A state as it was read from the file. Its limit unpacks it when the key is first used."""

    __slots__ = ()


class SavedGenerations(msgspec.Struct, forbid_unknown_fields=True):
    """``Generations`` with states as bytes. Keys are bytes, too: they may be any text."""

    span: int
    states: dict[bytes, bytes]
    shared: dict[bytes, bytes]
    overdue: dict[bytes, int]


class Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    """All states and records of a store, by their prefixes. ``secret`` chooses the keys of the shared states."""

    secret: bytes
    generations: dict[bytes, SavedGenerations]
    records: dict[str, bytes] = msgspec.field(default_factory=dict, name="documents")


def pack(by_prefix: Mapping[str, Generations]) -> dict[bytes, SavedGenerations]:
    """Turn states into bytes. Each prefix was used if it has a state that is not bytes yet."""
    saved = {}
    for prefix, each in by_prefix.items():
        states, shared = (
            {_packed_key(key): _pack_state(each.limit, state) for key, state in table.items()}
            for table in (each.old, each.shared_old)
        )
        overdue = {_packed_key(key): until for key, until in each.overdue.items()}
        if states or shared:
            saved[_packed_key(prefix)] = SavedGenerations(each.span, states, shared, overdue)
    return saved


def unpack(saved: Mapping[bytes, SavedGenerations]) -> dict[str, Generations]:
    """Return the generations. Their states, which are still bytes, are old."""
    by_prefix = {}
    for prefix, each in saved.items():
        generations = by_prefix[_key(prefix)] = Generations()
        generations.old, generations.shared_old = (
            {_key(key): PackedState(state) for key, state in table.items()} for table in (each.states, each.shared)
        )
        generations.overdue = {_key(key): until for key, until in each.overdue.items()}
        generations.span = each.span
    return by_prefix


def _packed_key(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _key(packed: bytes) -> str:
    return packed.decode("utf-8", "surrogatepass")


def _pack_state(limit: Limit, state: Any) -> bytes:
    return bytes(state) if type(state) is PackedState else limit.algorithm.dump(state)


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
        with suppress(msgspec.MsgspecError):
            return msgspec.msgpack.decode(body, type=Snapshot)
    page = url_of("how-to/operate/log-messages#snapshot-damaged")
    _log.warning("the snapshot %s is damaged or of another version; starting with empty counts. See %s", path, page)
    return None
