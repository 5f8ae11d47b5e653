"""The Redis store: one script call for all hits of a request, in the server's own time. Valkey speaks the same."""

from __future__ import annotations

from dataclasses import replace

from ..redis_address import Meaning, tls_of
from .store import RedisStore

__all__ = ["RedisStore", "open_address"]


def open_address(meant: Meaning, timeout_us: int) -> RedisStore:
    """The store at an address that was read."""
    tls = None if meant.tls is None else tls_of(meant.tls)
    return RedisStore(replace(meant.address, tls=tls), meant.prefix, timeout_us)
