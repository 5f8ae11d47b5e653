"""The mark that shows whether an environment was open when the machine stopped.

The mark is the content of the lock file: the boot ID while processes change the environment without syncing, and
nothing once everything was synced. The boot ID is synced before the first unsynced change.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """A text that differs after each start of the machine."""
    return Path(BOOT_ID).read_text("ascii").strip()


def is_unclean(fd: int, boot: str) -> bool:
    """Whether the mark was set, in whole or in part, before the machine started."""
    return os.pread(fd, 200, 0) not in (b"", boot.encode())


def set_mark(fd: int, boot: str, folder: Path) -> None:
    """Set the mark, and sync it and the names of the files in the folder to the disk."""
    if os.pread(fd, 200, 0) != boot.encode():
        os.ftruncate(fd, 0)
        os.pwrite(fd, boot.encode(), 0)
        os.fsync(fd)
        _sync(folder)


def clear_mark(fd: int, data: Path) -> None:
    """Sync the data to the disk, then remove the mark."""
    _sync(data)
    os.ftruncate(fd, 0)
    os.fsync(fd)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
