"""The store URL of Memcached: ``memcached://user:password@h1:11211,h2:11211?prefix=rl:``. Opens nothing.

No message shows a part of the URL that may hold a password.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError
from .client.servers import MemcachedAccess, MemcachedServer, parse_servers
from .tls import TLS_OPTIONS, check_tls_options

OPTIONS: Final = ("prefix", *TLS_OPTIONS)


def takes(scheme: str, option: str) -> bool:
    """Return whether URLs of this scheme may have this option."""
    return scheme == "memcacheds" or option not in TLS_OPTIONS


class MemcachedAddress(NamedTuple):
    """The parts of a store URL."""

    servers: tuple[MemcachedServer, ...]
    prefix: str
    username: str
    password: str
    tls: dict[str, str] | None

    def __repr__(self) -> str:
        return f"MemcachedAddress({', '.join(map(str, self.servers))})"


def parse_address(split: SplitResult, options: dict[str, str]) -> MemcachedAddress:
    """Parse a store URL.

    Raises:
        ConfigError: For servers, a login or options that cannot be used.
    """
    if split.fragment or split.path.strip("/"):
        raise ConfigError(
            f"{split.scheme}:// has no path and no #: expected {split.scheme}://host:11211,other:11211."
            " Write special characters of a password as %2F, %23 and so on"
        )
    is_encrypted = split.scheme == "memcacheds"
    tls = {name: value for name, value in options.items() if name in TLS_OPTIONS}
    if tls and not is_encrypted:
        raise ConfigError(f"{split.scheme}:// has no option {', '.join(tls)}. Use memcacheds:// for TLS")
    check_tls_options(tls)
    login, _, hosts = split.netloc.rpartition("@")
    username, _, password = login.partition(":")
    access = MemcachedAccess(None, unquote(username), unquote(password))  # checks them
    address = parse_servers(hosts), options.get("prefix", "rl:"), access.username, access.password
    return MemcachedAddress(*address, tls if is_encrypted else None)
