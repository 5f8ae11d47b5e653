"""Facts about the folder of an environment: its disk, its file system, and a file that was set aside."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any


def values_of(folder: Path) -> dict[str, Any]:
    """Return what is known of the folder and of the disk that it is on."""
    aside = folder / "data.mdb.unclean"
    values: dict[str, Any] = {"file_system": _file_system(folder), "set_aside": str(aside) if aside.exists() else ""}
    with suppress(OSError):
        file = (folder / "data.mdb").stat()
        values |= {"free": shutil.disk_usage(folder).free, "file": file.st_size, "allocated": file.st_blocks * 512}
    return values


def _file_system(folder: Path) -> str:
    """Return the type of the file system that a folder is on; "" where it is not known."""
    path, found = folder.resolve(), ("", "")
    try:
        lines = Path("/proc/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for _, mount, kind, *_ in (line.split() for line in lines):
        if path.is_relative_to(mount) and len(mount) >= len(found[0]):
            found = mount, kind
    return found[1]
