"""Read a file whole, if it is a regular file, and notice changes. A read of a pipe or a device may have no end."""

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple


class Identity(NamedTuple):
    """The numbers that differ between a file and a later version of it."""

    device: int
    inode: int
    modified_ns: int
    changed_ns: int
    size: int


def identity_of(path: Path) -> Identity | None:
    """Return the identity of a file, or of the file that a symbolic link leads to; None for a missing file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Identity(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raise ``OSError`` for a file that is missing, or no regular file."""
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
