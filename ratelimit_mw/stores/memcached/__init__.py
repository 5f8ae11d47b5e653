"""The Memcached store: any number of servers, no library needed, states behind compare-and-swap and plain counters."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult

from ...errors import ConfigError
from .servers import servers_in
from .store import MemcachedStore

__all__ = ["OPTIONS", "MemcachedStore", "open_address"]

OPTIONS: Final = ("prefix",)


def open_address(split: SplitResult, options: dict[str, str], timeout_us: int) -> MemcachedStore:
    """``memcached://h1:11211,h2:11211?prefix=rl:``."""
    if split.path.strip("/"):
        raise ConfigError("memcached:// has no path: it is memcached://host:11211,other:11211")
    return MemcachedStore(servers_in(split.netloc), options.get("prefix", "rl:"), timeout_us)
