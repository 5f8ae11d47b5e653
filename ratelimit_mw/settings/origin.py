"""Where settings come from: the files that were read for them, and how to read them again. Knows no settings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from ..stores.regular import read_regular


class Identity(NamedTuple):
    """The numbers that differ between a file and a later version of it."""

    device: int
    inode: int
    modified_ns: int
    changed_ns: int
    size: int


class FileState(NamedTuple):
    """A file as it was read. The identity is None for a missing file, the digest for one that could not be read."""

    identity: Identity | None
    digest: bytes | None


class Origin(NamedTuple):
    """The source of settings. Settings with an equal ``key`` have the same source."""

    key: Hashable
    load: Callable[[], Any]
    """Loads the ``Settings`` again. A file that is empty now is an error."""
    files: Mapping[Path, FileState]
    """The files that were read."""
    table: Mapping[str, object]
    """The settings as they were read."""
    arguments: tuple[str, ...] = ()
    """The settings that arguments of a middleware have replaced."""


_reading: ContextVar[dict[Path, FileState] | None] = ContextVar("ratelimit_mw.reading", default=None)


@contextmanager
def recording() -> Iterator[dict[Path, FileState]]:
    """Collect the files that are read within the block, each as it was first read. Outer blocks collect them, too."""
    outer, files = _reading.get(), dict[Path, FileState]()
    token = _reading.set(files)
    try:
        yield files
    finally:
        _reading.reset(token)
        if outer is not None:
            outer.update({path: state for path, state in files.items() if path not in outer})


def read_bytes(path: Path) -> bytes:
    """Read a file, and record it with its identity of before: a change in the meantime then makes a difference."""
    files = _reading.get()
    files = {} if files is None else files
    known = files.setdefault(path, FileState(identity_of(path), None))
    content = read_regular(path)
    files[path] = known._replace(digest=known.digest or blake2b(content).digest())
    return content


def identity_of(path: Path) -> Identity | None:
    """Return the identity of a file, or of the file that a symbolic link leads to; None for a missing file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Identity(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
