"""The mark that tells whether an environment was closed in order before the machine stopped.

It is the content of the lock file: which start of the machine, and whether anybody has had it open without syncing
since. It is on the disk before the first such change is made, and taken back after everything was synced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["BOOT_ID", "Mark", "boot_id", "read_mark", "sync_folder", "write_mark"]

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_MAGIC: Final = "ratelimit_mw"


class Mark(NamedTuple):
    boot: str
    open: bool


def boot_id() -> str:
    """What is another one after each start of the machine."""
    return Path(BOOT_ID).read_text("ascii").strip()


def read_mark(fd: int) -> Mark | None:
    """The mark in a file; None where there is none yet. One that is cut short is as good as open."""
    text = os.pread(fd, 200, 0).decode("ascii", "replace")
    if not text:
        return None
    words = text.split()
    if len(words) != 3 or words[0] != _MAGIC or not text.endswith("\n"):
        return Mark("", True)
    return Mark(words[1], words[2] != "closed")


def write_mark(fd: int, mark: Mark) -> None:
    """Replace the mark; it is on the disk when this returns."""
    text = f"{_MAGIC} {mark.boot} {'open' if mark.open else 'closed'}\n".encode("ascii")
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))
    os.fsync(fd)


def sync_folder(path: str) -> None:
    """Have the names of new files on the disk too."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
