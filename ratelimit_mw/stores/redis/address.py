"""Parse and check the URL of a Redis, without importing redis-py. No message shows a text that may be a password."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError
from ..servers import TLS_OPTIONS, Server, parse_server, parse_servers, parse_tls, split_login

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_ANY_PORT: Final = 0
_SENTINEL_LOGIN: Final = ("sentinel_username", "sentinel_password")
OPTIONS: Final = ("prefix", "db", "username", "password", "client_name", "remap", *TLS_OPTIONS, *_SENTINEL_LOGIN)

# Options that belong to some schemes only: which ones, and the hint otherwise.
_RESTRICTED: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...]] = (
    (TLS_OPTIONS, lambda scheme: scheme.startswith("rediss"), "TLS needs rediss://"),
    (_SENTINEL_LOGIN, lambda scheme: scheme.endswith("+sentinel"), "only redis+sentinel:// has sentinels"),
    (("db",), lambda scheme: not scheme.endswith("+cluster"), "a cluster has one database"),
    (("remap",), lambda scheme: scheme.endswith(("+cluster", "+sentinel")), "its server announces no other server"),
)


Remap = dict[tuple[str, int], tuple[str, int]]
"""Where to reach the servers that announce a host and port. The host ``*`` and the port 0 mean any."""


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
    client_name: str | None = None
    prefix: str = "rl:"
    remap: Remap = field(default_factory=dict)
    tls_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """Options for redis-py, or None without TLS."""
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    credential_provider: Any = field(default=None, repr=False)

    def locate(self, host: str, port: int) -> Server:
        """Return where to reach a server that announces this host and port."""
        name = _canonical(host) if self.remap else host
        for announced in ((name, port), (name, _ANY_PORT), ("*", port), ("*", _ANY_PORT)) if self.remap else ():
            if announced in self.remap:
                host, own = self.remap[announced]
                return Server(host, own or port)
        return Server(host, port)

    @property
    def sentinels(self) -> Address:
        """The same for the sentinels, which have a login of their own."""
        name, password = self.sentinel_username, self.sentinel_password
        return replace(self, db=0, credential_provider=None, username=name, password=password)


def parse_address(split: SplitResult, options: Mapping[str, str]) -> Address:
    """Parse one of the URLs of docs/reference/stores/redis.md."""
    address = _parse_place(split)
    tls = parse_tls(options)
    values = {name: _parse_option(name, text) for name, text in options.items() if name not in tls}
    if twice := [name for name in ("username", "password", "db") if name in values and getattr(address, name)]:
        raise ConfigError(f"the URL sets {' and '.join(twice)} twice. Set each before the ? or as an option")
    return replace(address, tls_options=tls if split.scheme.startswith("rediss") else None, **values)


def add_remap(address: Address | None, remap: Any) -> Address:
    """Return the address with a remap that is given in Python."""
    if address is None or not (address.cluster or address.service):
        raise ConfigError("needs a URL that starts with redis+cluster:// or redis+sentinel://", "remap")
    if address.remap:
        raise ConfigError("the URL sets it too. Set it once", "remap")
    if not isinstance(remap, Mapping) or not all(isinstance(text, str) for pair in remap.items() for text in pair):
        raise ConfigError(f"expected a dict such as {{'10.0.0.1:6379': 'localhost:7000'}}; got {remap!r}", "remap")
    return replace(address, remap=_parse_remap(remap.items()))


def _parse_remap(pairs: Iterable[tuple[str, str]]) -> Remap:
    """Parse pairs of an announced address and the reachable one."""
    remap: Remap = {}
    for pair in pairs:
        given = "->".join(pair)
        announced, reachable = (parse_server(text, _ANY_PORT) for text in pair)
        if announced is None or reachable is None or reachable[0] == "*":
            example = "10.0.0.1:6379->localhost:7000 or *->localhost"
            raise ConfigError(f"expected HOST:PORT->HOST:PORT, for example {example}; got {given!r}", "remap")
        announced = announced._replace(host=_canonical(announced.host))
        if announced == ("*", _ANY_PORT) and reachable[1]:
            raise ConfigError(f"{given!r} sends all servers to one port. Write '*->{reachable[0]}'", "remap")
        if announced in remap:
            raise ConfigError(f"{pair[0]!r} is there twice", "remap")
        remap[announced] = reachable
    return remap


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
        return Address(servers, service=unquote(service), db=_parse_option("db", db), **common)
    servers = parse_servers(hosts or "localhost", _PORT)
    if len(servers) > 1:
        raise ConfigError(f"{split.scheme}:// has one host. For several, use redis+sentinel:// or redis+cluster://")
    return Address(servers, db=_parse_option("db", path), **common)


def _canonical(host: str) -> str:
    """Return the one form of a host that has several: an IPv6 address, or a name in capitals."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower()


def _parse_option(name: str, text: str) -> Any:
    if name == "db":
        if text and not (text.isascii() and text.isdigit()):
            raise ConfigError("expected the number of a database, for example redis://localhost:6379/0")
        return int(text or "0")
    if name == "remap":
        pairs = (part.partition("->") for part in text.split(","))
        return _parse_remap((announced, reachable) for announced, _, reachable in pairs)
    return text
