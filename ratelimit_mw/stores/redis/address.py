"""Parse and check the URL of a Redis, without importing redis-py. No message shows a text that may be a password."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError
from ..servers import TLS_OPTIONS, Server, TlsFiles, parse_servers, parse_tls, split_login

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_SENTINEL_LOGIN: Final = ("sentinel_username", "sentinel_password")
_LOGIN: Final = ("username", "password")
OPTIONS: Final = ("prefix", "db", *TLS_OPTIONS, *_SENTINEL_LOGIN, *_LOGIN)

# Options that belong to some schemes only: which ones, and the hint otherwise.
_RESTRICTED: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...]] = (
    (TLS_OPTIONS, lambda scheme: scheme.startswith("rediss"), "TLS needs rediss://"),
    (_LOGIN, lambda _: False, "write the login before the host or path, as in redis://app:secret@cache"),
    (_SENTINEL_LOGIN, lambda scheme: scheme.endswith("+sentinel"), "only redis+sentinel:// has sentinels"),
    (
        ("db",),
        lambda scheme: scheme == "unix",
        "the path names a database, as in redis://cache/2; a cluster has one database",
    ),
)

Remap = Callable[[tuple[str, int]], tuple[str, int]]
"""Returns where to reach the server that announces a host and a port, as ``address_remap`` of redis-py does."""


def hint_for(scheme: str, option: str) -> str:
    """Return why a scheme does not take an option, "" if it does."""
    return next((hint for names, allows, hint in _RESTRICTED if option in names and not allows(scheme)), "")


@dataclass(frozen=True)
class Address:
    """Where the servers are, how to log in, and the prefix of the keys."""

    hosts: tuple[Server, ...] = ()
    db: int = 0
    service: str = ""
    cluster: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    prefix: str = "rl:"
    remap: Remap | None = None
    tls_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """Options for redis-py, or None without TLS."""
    tls: TlsFiles | None = field(default=None, repr=False, compare=False)
    credential_provider: Any = field(default=None, repr=False)

    def locate(self, host: str, port: int) -> Server:
        """Return where to reach a server that announces this host and port."""
        return Server(host, port) if self.remap is None else Server(*self.remap((host, port)))

    @property
    def sentinels(self) -> Address:
        """The same for the sentinels, which have a login of their own."""
        name, password = self.sentinel_username, self.sentinel_password
        return replace(self, db=0, credential_provider=None, username=name, password=password)


def parse_address(split: SplitResult, options: Mapping[str, str]) -> Address:
    """Parse one of the URLs of docs/reference/stores/redis.md."""
    address = _parse_place(split)
    tls = parse_tls(options)
    values: Any = {name: _parse_db(text) if name == "db" else text for name, text in options.items() if name not in tls}
    return replace(address, tls_options=tls if split.scheme.startswith("rediss") else None, **values)


def _parse_place(split: SplitResult) -> Address:
    name, password, hosts = split_login(split.netloc)
    common: dict[str, Any] = {"username": name or None, "password": password or None}
    scheme, path = split.scheme.replace("rediss", "redis"), split.path.strip("/")
    if scheme == "unix":
        if hosts or not path:
            raise ConfigError("expected the path of a socket, for example unix:///run/redis.sock")
        return Address((Server(unquote(split.path), 0),), **common)
    if scheme == "redis+cluster":
        if path:
            raise ConfigError(f"{split.scheme}:// has no path, because a cluster has one database")
        return Address(parse_servers(hosts or "localhost", _PORT), cluster=True, **common)
    if scheme == "redis+sentinel":
        service, _, db = path.partition("/")
        if not service:
            example = f"{split.scheme}://h1:26379,h2:26379/mymaster/0"
            raise ConfigError(f"expected the name of a service, for example {example}")
        servers = parse_servers(hosts or "localhost", _SENTINEL_PORT)
        return Address(servers, service=unquote(service), db=_parse_db(db), **common)
    servers = parse_servers(hosts or "localhost", _PORT)
    if len(servers) > 1:
        raise ConfigError(f"{split.scheme}:// has one host. For several, use redis+sentinel:// or redis+cluster://")
    return Address(servers, db=_parse_db(path), **common)


def _parse_db(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigError("expected the number of a database, for example redis://localhost:6379/0")
    return int(text or "0")
