"""The servers, the access to them, and the server of each key."""

import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from ....errors import ConfigError

_PORT: Final = 11211
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]]+)(?::(\d{1,5}))?")


class MemcachedServer(NamedTuple):
    host: str
    port: int
    path: str = ""
    """The Unix socket of a server on this machine."""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_servers(text: str) -> tuple[MemcachedServer, ...]:
    """Parse ``h1:11211,h2:11211``, or the path of a Unix socket. The error shows no text that may hold a password."""
    if text.startswith("/"):
        return (MemcachedServer("", 0, text),)
    shown = "text with @" if "@" in text else repr(text)
    servers = []
    for part in text.split(","):
        match = _HOST.fullmatch(part)
        if match is None or int(match[2] or _PORT) > 65_535:
            raise ConfigError(f'expected servers such as "10.0.0.1:11211,10.0.0.2:11211"; got {shown}')
        servers.append(MemcachedServer(match[1].strip("[]").lower(), int(match[2] or _PORT)))
    if len(set(servers)) < len(servers):
        raise ConfigError(f"each server may appear once; got {shown}")
    return tuple(servers)


@dataclass(frozen=True)
class MemcachedAccess:
    """The encryption and the login of new connections. The password is in no message."""

    tls: ssl.SSLContext | None = field(default=None, repr=False)
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if bool(self.username) != bool(self.password):
            raise ConfigError("a login needs a user name and a password, as in memcached://user:password@h1:11211")
        if any(not character.isprintable() or character.isspace() for character in self.username + self.password):
            raise ConfigError("the user name and the password of Memcached cannot contain spaces or control characters")

    @property
    def login(self) -> bytes:
        """The first command of a connection; empty without a login."""
        if not self.username:
            return b""
        credentials = f"{self.username} {self.password}".encode()
        # A server without -Y takes the command for a write, and keeps nothing because of the expiry.
        return b"set login 0 -1 %d\r\n%b\r\n" % (len(credentials), credentials)


class Rendezvous:
    """A key belongs to the server with the highest hash of both, even while that server is unreachable."""

    def __init__(self, servers: Sequence[MemcachedServer]) -> None:
        self.servers = tuple(servers)
        self._seeds = [(blake2b(str(server).encode(), digest_size=32).digest(), server) for server in servers]

    def server_of(self, token: bytes) -> MemcachedServer:
        if len(self.servers) == 1:
            return self.servers[0]
        return max((blake2b(token, digest_size=8, key=seed).digest(), server) for seed, server in self._seeds)[1]
