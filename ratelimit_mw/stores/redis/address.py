"""Parse and check the URL of a Redis, without importing redis-py. No message shows a text that may be a password."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_ANY_PORT: Final = 0
_HOST: Final = re.compile(r"(\[[^\]]+\]|\*|[^:\[\]>*,\s]+)(?::([0-9]+))?")
_SENTINEL_LOGIN: Final = ("sentinel_username", "sentinel_password")
_CHOICES: Final[dict[str, dict[str, Any]]] = {
    "ssl_cert_reqs": {"required": "required", "optional": "optional", "none": "none"},
    "ssl_check_hostname": {"true": True, "false": False},
    "ssl_min_version": {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3},
}
_TLS_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_TLS_TEXTS: Final = ("ssl_ca_data", "ssl_password", "ssl_ciphers")
_TLS: Final = (*_TLS_FILES, *_TLS_TEXTS, "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version")

_COMMON: Final = ("prefix", "db", "username", "password", "client_name", "remap")
OPTIONS: Final = (*_COMMON, *_TLS, *_SENTINEL_LOGIN)

# Options that belong to some schemes only: which ones, and the hint otherwise.
_RESTRICTED: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...]] = (
    (_TLS, lambda scheme: scheme.startswith("rediss"), "TLS needs rediss://"),
    (_SENTINEL_LOGIN, lambda scheme: scheme.endswith("+sentinel"), "only redis+sentinel:// has sentinels"),
    (("db",), lambda scheme: not scheme.endswith("+cluster"), "a cluster has one database"),
    (("remap",), lambda scheme: scheme.endswith(("+cluster", "+sentinel")), "its server announces no other server"),
)


Remap = dict[tuple[str, int], tuple[str, int]]
"""Where to reach the servers that announce a host and port. The host ``*`` and the port 0 mean any."""


def takes(scheme: str, option: str) -> bool:
    return all(allows(scheme) for names, allows, _ in _RESTRICTED if option in names)


@dataclass(frozen=True)
class Address:
    """Where the servers are, how to log in, and the prefix of the keys."""

    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
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

    def locate(self, host: str, port: int) -> tuple[str, int]:
        """Return where to reach a server that announces this host and port."""
        name = _canonical(host) if self.remap else host
        for announced in ((name, port), (name, _ANY_PORT), ("*", port), ("*", _ANY_PORT)) if self.remap else ():
            if announced in self.remap:
                host, own = self.remap[announced]
                return host, own or port
        return host, port

    @property
    def sentinels(self) -> Address:
        """The same for the sentinels, which have a login of their own."""
        name, password = self.sentinel_username, self.sentinel_password
        return replace(self, db=0, credential_provider=None, username=name, password=password)


def parse_address(split: SplitResult, options: Mapping[str, str]) -> Address:
    """Parse one of the URLs of docs/reference/stores/redis.md."""
    for names, allows, hint in _RESTRICTED:
        if (wrong := [name for name in names if name in options]) and not allows(split.scheme):
            raise ConfigError(f"{split.scheme}:// does not take {', '.join(wrong)}: {hint}")
    address = _parse_place(split)
    values = {name: _parse_option(name, text) for name, text in options.items()}
    if twice := [name for name in ("username", "password", "db") if name in values and getattr(address, name)]:
        raise ConfigError(f"the URL sets {' and '.join(twice)} twice. Set each before the ? or as an option")
    if "ssl_keyfile" in values and not values.get("ssl_certfile"):
        raise ConfigError("ssl_keyfile is set without ssl_certfile. Set both")
    tls: dict[str, Any] = {name: values.pop(name) for name in _TLS if name in values}
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
        announced, reachable = (_parse_host(text, _ANY_PORT) for text in pair)
        if announced is None or reachable is None or reachable[0] == "*":
            example = "10.0.0.1:6379->localhost:7000 or *->localhost"
            raise ConfigError(f"expected HOST:PORT->HOST:PORT, for example {example}; got {given!r}", "remap")
        announced = (_canonical(announced[0]), announced[1])
        if announced == ("*", _ANY_PORT) and reachable[1]:
            raise ConfigError(f"{given!r} sends all servers to one port. Write '*->{reachable[0]}'", "remap")
        if announced in remap:
            raise ConfigError(f"{pair[0]!r} is there twice", "remap")
        remap[announced] = reachable
    return remap


def _parse_place(split: SplitResult) -> Address:
    login, _, hosts = split.netloc.rpartition("@")
    name, _, password = login.partition(":")
    common: dict[str, Any] = {"username": unquote(name) or None, "password": unquote(password) or None}
    scheme, path = split.scheme.replace("rediss", "redis"), split.path.strip("/")
    if scheme == "unix":
        if hosts or not path:
            raise ConfigError("expected the path of a socket, for example unix:///run/redis.sock")
        return Address(path=unquote(split.path), **common)
    if scheme == "redis+cluster":
        if path:
            raise ConfigError(f"{split.scheme}:// has no path, because a cluster has one database")
        return Address(_parse_hosts(hosts, _PORT), cluster=True, **common)
    if scheme == "redis+sentinel":
        service, _, db = path.partition("/")
        if not service:
            example = f"{split.scheme}://h1:26379,h2:26379/mymaster/0"
            raise ConfigError(f"expected the name of a service, for example {example}")
        servers = _parse_hosts(hosts, _SENTINEL_PORT)
        return Address(servers, service=unquote(service), db=_parse_option("db", db), **common)
    servers = _parse_hosts(hosts, _PORT)
    if len(servers) > 1:
        raise ConfigError(f"{split.scheme}:// has one host. For several, use redis+sentinel:// or redis+cluster://")
    return Address(servers, db=_parse_option("db", path), **common)


def _parse_hosts(text: str, port: int) -> tuple[tuple[str, int], ...]:
    """Parse ``h1:6379,h2,[::1]:6379``. The default is this machine."""
    hosts = []
    for part in (text or "localhost").split(","):
        if (host := _parse_host(part, port)) is None:
            raise ConfigError("expected NAME or NAME:PORT, several separated by commas", "host")
        hosts.append(host)
    return tuple(hosts)


def _parse_host(text: str, port: int) -> tuple[str, int] | None:
    match = _HOST.fullmatch(text)
    if not match or not 0 < int(match[2] or 1) < 65536:
        return None
    return unquote(match[1]).strip("[]"), int(match[2] or port)


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
    choices = _CHOICES.get(name)
    if choices is not None and text not in choices:
        raise ConfigError(f"{name} is one of {', '.join(choices)}; got {text!r}")
    return text if choices is None else choices[text]
