"""Which servers there are, and which of them holds a key: the same one for every process, blocking or on a loop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from ....errors import ConfigError

__all__ = ["Ring", "Server", "servers_in"]

_PORT: Final = 11211
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]]+)(?::(\d{1,5}))?")


class Server(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def servers_in(text: str) -> tuple[Server, ...]:
    """The servers of "h1:11211,h2:11211"; ``ConfigError``, which shows no password, for what cannot be that."""
    if "@" in text:
        raise ConfigError("memcached:// takes no user and no password: they are not part of the protocol it speaks")
    found = []
    for part in text.split(","):
        match = _HOST.fullmatch(part)
        if match is None or int(match[2] or _PORT) > 65_535:
            raise ConfigError(f'expected servers such as "10.0.0.1:11211,10.0.0.2:11211"; got {text!r}')
        found.append(Server(match[1].strip("[]").lower(), int(match[2] or _PORT)))
    if len(set(found)) < len(found):
        raise ConfigError(f"a server is named twice in {text!r}")
    return tuple(found)


class Ring:
    """Rendezvous hashing: a key belongs to the server with which it hashes highest.

    A server that is added or taken out moves the keys of its own share and no others, and the order of the servers
    does not matter. A server that does not answer keeps its keys: handing them to another one would give every
    client a fresh quota, and another one when it comes back.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = tuple(servers)
        self._seeds = [(blake2b(str(server).encode(), digest_size=32).digest(), server) for server in servers]

    def place(self, token: bytes) -> Server:
        """The server of everything that belongs to one key."""
        if len(self.servers) == 1:
            return self.servers[0]
        return max((blake2b(token, digest_size=8, key=seed).digest(), server) for seed, server in self._seeds)[1]
