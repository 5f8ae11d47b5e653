"""A memory store's states in a file: written whole or not at all, checked when read. Knows no algorithm."""

from __future__ import annotations

import logging
import os
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["Snapshot", "read", "write"]

_MAGIC: Final = b"ratelimit_mw snapshot 1\n"
_DIGEST: Final = 16
_log = logging.getLogger("ratelimit_mw")


class Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    """States by the prefix of their limit and by key; ``secret`` chose the keys of the shared ones."""

    secret: bytes
    own: dict[str, dict[bytes, bytes]]
    shared: dict[str, dict[bytes, bytes]]


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
