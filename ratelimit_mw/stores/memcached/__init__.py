"""The Memcached store: any number of servers, no library needed, states behind compare-and-swap and plain counters."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult

from ...errors import ConfigError
from .servers import Server, servers_in
from .store import MemcachedStore

__all__ = ["OPTIONS", "MemcachedStore", "meaning", "open_address"]

OPTIONS: Final = ("prefix",)


def meaning(split: SplitResult, options: dict[str, str]) -> tuple[tuple[Server, ...], str]:
    """The servers and the prefix of ``memcached://h1:11211,h2:11211?prefix=rl:``."""
    if split.path.strip("/"):
        raise ConfigError("memcached:// has no path: it is memcached://host:11211,other:11211")
    return servers_in(split.netloc), options.get("prefix", "rl:")


def open_address(meant: tuple[tuple[Server, ...], str], timeout_us: int) -> MemcachedStore:
    """The store at an address that was read."""
    return MemcachedStore(*meant, timeout_us)
