"""The store URL of Memcached: ``memcached://user:password@h1:11211,h2:11211?prefix=rl:``, and its TLS options.

No message shows a part of the URL that may hold a password.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError
from ..servers import TLS_OPTIONS, Server, parse_servers, parse_tls, split_login

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


def _login_command(username: str, password: str) -> bytes:
    """Return the command that logs in; empty without a login."""
    if bool(username) != bool(password):
        raise ConfigError("a login needs a user name and a password, as in memcached://user:password@h1:11211")
    if any(not character.isprintable() or character.isspace() for character in username + password):
        raise ConfigError("the user name and the password of Memcached cannot contain spaces or control characters")
    credentials = f"{username} {password}".encode()
    # A server without -Y takes the command for a write, and keeps nothing because of the expiry.
    return b"set login 0 -1 %d\r\n%b\r\n" % (len(credentials), credentials) if username else b""


@dataclass(frozen=True)
class MemcachedAddress:
    """The parts of a store URL. ``login`` is the first command of a connection, ``tls`` has the options for TLS."""

    servers: tuple[Server, ...]
    prefix: str
    login: bytes = field(repr=False)
    tls: Mapping[str, Any] | None


def parse_address(split: SplitResult, options: dict[str, str]) -> MemcachedAddress:
    """Parse a store URL. Raise ``ConfigError`` for servers, a login or options that cannot be used."""
    is_local = split.scheme == "memcached+unix"
    if is_local and (split.netloc.rpartition("@")[2] or not split.path.strip("/") or "\0" in unquote(split.path)):
        raise ConfigError("memcached+unix:// needs the path of a socket. Write memcached+unix:///run/memcached.sock")
    if not is_local and split.path.strip("/"):
        raise ConfigError(
            f"{split.scheme}:// has no path: expected {split.scheme}://host:11211,other:11211."
            " Write / in a password as %2F"
        )
    username, password, hosts = split_login(split.netloc)
    login = _login_command(username, password)
    servers = read_servers(unquote(split.path) if is_local else hosts)
    tls = parse_tls(options) if split.scheme == "memcacheds" else None
    return MemcachedAddress(servers, options.get("prefix", "rl:"), login, tls)
