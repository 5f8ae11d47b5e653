"""Parse and check the URL of a Redis, without importing redis-py. No message shows a text that may be a password."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_HOST: Final = re.compile(r"(\[[^\]]+\]|[^:\[\]]+)(?::([0-9]+))?")
_SENTINEL_LOGIN: Final = ("sentinel_username", "sentinel_password")
_CHOICES: Final[dict[str, dict[str, Any]]] = {
    "protocol": {"2": 2, "3": 3},
    "ssl_cert_reqs": {"required": "required", "optional": "optional", "none": "none"},
    "ssl_check_hostname": {"true": True, "false": False},
    "ssl_min_version": {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3},
}
_TLS_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_TLS_TEXTS: Final = ("ssl_ca_data", "ssl_password", "ssl_ciphers")
_TLS: Final = (*_TLS_FILES, *_TLS_TEXTS, "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version")

OPTIONS: Final = ("prefix", "db", "username", "password", "client_name", "protocol", *_TLS, *_SENTINEL_LOGIN)

# Options that belong to some schemes only: which ones, and the hint otherwise.
_RESTRICTED: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...]] = (
    (_TLS, lambda scheme: scheme.startswith("rediss"), "TLS needs rediss://"),
    (_SENTINEL_LOGIN, lambda scheme: scheme.endswith("+sentinel"), "only redis+sentinel:// has sentinels"),
    (("db",), lambda scheme: not scheme.endswith("+cluster"), "a cluster has one database"),
)


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
    protocol: int = 2
    prefix: str = "rl:"
    tls_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """Options for redis-py, or None without TLS."""
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    credential_provider: Any = field(default=None, repr=False)

    @property
    def options(self) -> dict[str, Any]:
        """The options of each connection. redis-py sets no timeout, because each call has its own."""
        return {"db": self.db, "client_name": self.client_name, "protocol": self.protocol, "socket_timeout": None}

    @property
    def sentinels(self) -> Address:
        """The same for the sentinels, which have a login of their own."""
        name, password = self.sentinel_username, self.sentinel_password
        return replace(self, db=0, credential_provider=None, username=name, password=password)


def parse_address(split: SplitResult, options: Mapping[str, str]) -> Address:
    """Parse one of the URLs of docs/redis.md."""
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
        match = _HOST.fullmatch(part)
        if not match or not 0 < int(match[2] or port) < 65536:
            raise ConfigError("expected NAME or NAME:PORT, several separated by commas", "host")
        hosts.append((unquote(match[1]).strip("[]"), int(match[2] or port)))
    return tuple(hosts)


def _parse_option(name: str, text: str) -> Any:
    if name == "db":
        if text and not (text.isascii() and text.isdigit()):
            raise ConfigError("expected the number of a database, for example redis://localhost:6379/0")
        return int(text or "0")
    choices = _CHOICES.get(name)
    if choices is not None and text not in choices:
        raise ConfigError(f"{name} is one of {', '.join(choices)}; got {text!r}")
    return text if choices is None else choices[text]
