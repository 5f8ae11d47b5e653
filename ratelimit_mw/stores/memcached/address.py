"""The store URL of Memcached: ``memcached://h1:11211,h2:11211?prefix=rl:``, and its TLS options.

No message shows a part of the URL that may hold a password.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError
from ..servers import TLS_OPTIONS, Server, parse_servers, parse_tls

_PORT: Final = 11211
OPTIONS: Final = ("prefix", *TLS_OPTIONS)


def hint_for(scheme: str, option: str) -> str:
    """Return why a scheme does not take an option, "" if it does."""
    return "TLS needs memcacheds://" if option in TLS_OPTIONS and scheme != "memcacheds" else ""


def read_servers(text: str) -> tuple[Server, ...]:
    """Parse ``h1:11211,h2:11211``, or the path of a Unix socket."""
    if text.startswith("/"):
        return (Server(text, 0),)
    return parse_servers(text.lower(), _PORT)


@dataclass(frozen=True)
class MemcachedAddress:
    """The parts of a store URL. ``tls`` has the options for TLS."""

    servers: tuple[Server, ...]
    prefix: str
    tls: Mapping[str, Any] | None


def parse_address(split: SplitResult, options: dict[str, str]) -> MemcachedAddress:
    """Parse a store URL. Raise ``ConfigError`` for servers or options that cannot be used."""
    is_local = split.scheme == "memcached+unix"
    if "@" in split.netloc:
        raise ConfigError(f"{split.scheme}:// has no login. Let only your application reach the server, or use Redis")
    if is_local and (split.netloc or not split.path.strip("/") or "\0" in unquote(split.path)):
        raise ConfigError("memcached+unix:// needs the path of a socket. Write memcached+unix:///run/memcached.sock")
    if not is_local and split.path.strip("/"):
        raise ConfigError(f"{split.scheme}:// has no path: expected {split.scheme}://host:11211,other:11211")
    servers = read_servers(unquote(split.path) if is_local else split.netloc)
    tls = parse_tls(options) if split.scheme == "memcacheds" else None
    return MemcachedAddress(servers, options.get("prefix", "rl:"), tls)
