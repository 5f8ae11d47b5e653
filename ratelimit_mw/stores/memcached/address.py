"""What an address of Memcached servers says."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult

from ...errors import ConfigError
from .client.servers import Server, servers_in

__all__ = ["OPTIONS", "parse_address"]

OPTIONS: Final = ("prefix",)


def parse_address(split: SplitResult, options: dict[str, str]) -> tuple[tuple[Server, ...], str]:
    """The servers and the prefix of ``memcached://h1:11211,h2:11211?prefix=rl:``."""
    if split.path.strip("/"):
        raise ConfigError("memcached:// has no path: it is memcached://host:11211,other:11211")
    return servers_in(split.netloc), options.get("prefix", "rl:")
