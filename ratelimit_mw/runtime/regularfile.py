"""Read a file whole, if it is a regular file: a read of a pipe or a device may have no end."""

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raise ``OSError`` for a file that is missing, or no regular file."""
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
