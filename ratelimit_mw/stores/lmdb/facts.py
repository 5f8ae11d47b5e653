"""Facts about the folder of an environment: its disk, and a file that was set aside."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any


def values_of(folder: Path) -> dict[str, Any]:
    """Return what is known of the folder and of the disk that it is on."""
    aside = folder / "data.mdb.unclean"
    values: dict[str, Any] = {"set_aside": str(aside) if aside.exists() else ""}
    with suppress(OSError):
        file = (folder / "data.mdb").stat()
        values |= {"free": shutil.disk_usage(folder).free, "file": file.st_size, "allocated": file.st_blocks * 512}
    return values
