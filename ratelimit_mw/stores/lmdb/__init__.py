"""The LMDB store: all worker processes of one machine count together, exactly, without a server, across restarts."""

from __future__ import annotations

from ..lmdb_address import Meaning
from .store import LmdbStore

__all__ = ["LmdbStore", "open_address"]


def open_address(meant: Meaning, timeout_us: int) -> LmdbStore:
    """The store at an address that was read."""
    return LmdbStore(meant.path, meant.size, meant.durable, timeout_us)
