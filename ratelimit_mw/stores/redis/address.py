"""What an address of a Redis says, read and checked. Never shows what may be a password."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError, placed

__all__ = ["TLS_OPTIONS", "Address", "database"]

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")


@dataclass(frozen=True)
class Address:
    """Where the servers are and how to log in."""

    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    db: int = 0
    service: str = ""
    cluster: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: Mapping[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, split: SplitResult, tls: Mapping[str, str] | None = None) -> Address:
        """The parts of an address that ``urlsplit`` has taken apart; ``ConfigError`` for what cannot be one."""
        login, _, hosts = split.netloc.rpartition("@")
        name, _, password = login.partition(":")
        known: dict[str, Any] = {"username": unquote(name) or None, "password": unquote(password) or None}
        if split.scheme == "unix":
            if hosts or not split.path.strip("/"):
                raise ConfigError("expected the path of a socket as in unix:///run/redis.sock")
            return cls(path=unquote(split.path), **known)
        if split.scheme == "redis+cluster":
            if split.path.strip("/"):
                raise ConfigError("redis+cluster:// has no path: a cluster has one database")
            return cls(_hosts(hosts, _PORT), cluster=True, **known)
        if split.scheme == "redis+sentinel":
            service, _, db = split.path.strip("/").partition("/")
            if not service:
                raise ConfigError("expected the name of a service as in redis+sentinel://h1:26379,h2:26379/mymaster/0")
            return cls(_hosts(hosts, _SENTINEL_PORT), service=unquote(service), db=database(db), **known)
        found = _hosts(hosts, _PORT)
        if len(found) > 1:
            raise ConfigError(f"{split.scheme}:// has one host; see redis+sentinel:// and redis+cluster://")
        return cls(found, db=database(split.path.strip("/")), tls=tls if split.scheme == "rediss" else None, **known)

    @property
    def first(self) -> tuple[str, int]:
        return self.hosts[0] if self.hosts else ("", 0)

    def options(self, host: str, port: int) -> tuple[str, dict[str, Any]]:
        """Which kind of connection leads to one of the servers, and what redis-py needs to make it."""
        options = {"db": self.db, "username": self.username, "password": self.password, "protocol": 2}
        if self.path:
            return "unix", {"path": self.path, **options}
        if self.tls is not None:
            return "tls", {"host": host, "port": port, **options, **self.tls}
        return "tcp", {"host": host, "port": port, **options}


def _hosts(text: str, port: int) -> tuple[tuple[str, int], ...]:
    """``h1:6379,h2,[::1]:6379``; without any, this machine."""
    return tuple(_host(part, port) for part in text.split(",")) if text else (("localhost", port),)


def _host(text: str, port: int) -> tuple[str, int]:
    name, colon, number = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        name, number = text, str(port)
    with placed("host"):
        if not number.isascii() or not number.isdigit() or not 0 < int(number) < 65536 or not name:
            raise ConfigError("expected NAME or NAME:PORT, several with commas between")
    return unquote(name).strip("[]"), int(number)


def database(text: str) -> int:
    """The number of a database; 0 when nothing is said."""
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigError("expected the number of a database as in redis://localhost:6379/0")
    return int(text or "0")
