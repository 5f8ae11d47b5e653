"""Findings on the files of an LMDB: room, readers, disk, and the file system."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...stores.facts import Facts
from .finding import PROBLEM, WARNING, Finding

_MIB: Final = 1 << 20
_SHARING: Final = 3 / 4
"""The share of used pages from which new keys share states."""
_FULL: Final = 7 / 8
_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "fuse.glusterfs")


def examine_lmdb(facts: Facts) -> Iterator[Finding]:
    """Judge an environment and its folder."""
    folder, values = facts.name, facts.values
    if "used" in values:
        yield _on_room(values)
        readers = {name: values[name] for name in ("readers", "max_readers")}
        yield Finding("readers", f"{values['readers']} of {values['max_readers']} are in use", data=readers)
    if "free" in values:
        yield _on_disk(folder, values)
    if values["file_system"] in _NETWORK:
        text = f"{folder} is on the network file system {values['file_system']}, where locks do not work"
        yield Finding("files", text, PROBLEM, "use a local disk, or redis:// for several machines")
    if values["set_aside"]:
        text = "the machine stopped without a shutdown, so counts started at zero once"
        yield Finding("files", text, WARNING, f"remove {values['set_aside']}. Use durable=true to keep counts")


def _on_room(values: Mapping[str, Any]) -> Finding:
    """Compare the used pages with the size of the map, as the store does."""
    used, size = values["used"], values["size"]
    data = {name: values[name] for name in ("used", "size", "entries")}
    text = f"{used / _MIB:,.1f} of {size / _MIB:,.1f} MiB are used by {values['entries']:,} keys"
    fix = "raise ?size= in the store URL"
    if used >= size * _FULL:
        return Finding("room", f"{text}: requests of new clients are rejected", PROBLEM, fix, data)
    if used >= size * _SHARING:
        effect = "new clients share counts, so they may be rejected too early"
        return Finding("room", f"{text}: {effect}", PROBLEM, fix, data)
    return Finding("room", text, data=data)


def _on_disk(folder: str, values: Mapping[str, Any]) -> Finding:
    """Compare the free disk with the growth that the size allows."""
    free, growth = values["free"], max(0, values.get("size", 0) - values["allocated"])
    data = {name: values[name] for name in ("free", "file")}
    text = f"{folder}, {free / _MIB:,.0f} MiB are free on its disk"
    if growth > free:
        fix = "free some disk space, or lower ?size= in the store URL"
        return Finding("files", f"{text}, but the file may grow by {growth / _MIB:,.0f} MiB", WARNING, fix, data)
    return Finding("files", text, data=data)
