"""Findings on the files of an LMDB: size, room, readers, and the file system."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ...stores.lmdb.store import LmdbStore
from .finding import PROBLEM, WARNING, Finding

_MIB: Final = 1 << 20
_SHARING: Final = 3 / 4
"""The share of used pages from which new keys share states."""
_FULL: Final = 7 / 8
_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "fuse.glusterfs")


def examine(store: LmdbStore) -> Iterator[Finding]:
    """Yield findings on the environment and its folder."""
    folder = Path(store.path)
    env: Any = store._environment._env
    if env is not None:
        yield from _on_room(env)
        readers, most = env.info()["num_readers"], env.info()["max_readers"]
        yield Finding("readers", f"{readers} of {most} are in use", data={"readers": readers, "max_readers": most})
    yield from _on_disk(folder, env)
    kind = _file_system(folder)
    if kind in _NETWORK:
        text = f"{folder} is on the network file system {kind}, where locks do not work"
        yield Finding("files", text, PROBLEM, "use a local disk, or redis:// for several machines")
    if (folder / "data.mdb.unclean").exists():
        text = "the machine stopped without a shutdown, so counts started at zero once"
        fix = f"remove {folder / 'data.mdb.unclean'}. Use durable=true to keep counts"
        yield Finding("files", text, WARNING, fix)


def _on_room(env: Any) -> Iterator[Finding]:
    """Compare the used pages with the size of the map, as the store does."""
    stat, size = env.stat(), env.info()["map_size"]
    used = (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"]
    data = {"used": used, "size": size, "entries": stat["entries"]}
    text = f"{used / _MIB:,.1f} of {size / _MIB:,.1f} MiB are used by {stat['entries']:,} keys"
    fix = "raise ?size= in the store URL"
    if used >= size * _FULL:
        yield Finding("room", f"{text}: requests of new clients are rejected", PROBLEM, fix, data)
    elif used >= size * _SHARING:
        yield Finding(
            "room", f"{text}: new clients share counts, so they may be rejected too early", PROBLEM, fix, data
        )
    else:
        yield Finding("room", text, data=data)


def _on_disk(folder: Path, env: Any) -> Iterator[Finding]:
    """Compare the free disk with the growth that the size allows."""
    try:
        free, file = shutil.disk_usage(folder).free, (folder / "data.mdb").stat()
    except OSError:
        return
    growth = 0 if env is None else max(0, env.info()["map_size"] - file.st_blocks * 512)
    data = {"free": free, "file": file.st_size}
    text = f"{folder}, {free / _MIB:,.0f} MiB are free on its disk"
    if growth > free:
        fix = "free some disk space, or lower ?size= in the store URL"
        yield Finding("files", f"{text}, but the file may grow by {growth / _MIB:,.0f} MiB", WARNING, fix, data)
    else:
        yield Finding("files", text, data=data)


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
