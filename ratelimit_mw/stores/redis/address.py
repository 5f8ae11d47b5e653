"""Parse and check the URL of a Redis, without importing redis-py. No message shows a text that may be a password."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError, placed

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_LOGIN: Final = ("username", "password", "client_name")
_SENTINEL_LOGIN: Final = ("sentinel_username", "sentinel_password")
_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_TEXTS: Final = ("ssl_ca_data", "ssl_password", "ssl_ciphers")
_CHOICES: Final[dict[str, dict[str, Any]]] = {
    "protocol": {"2": 2, "3": 3},
    "ssl_cert_reqs": {"required": "required", "optional": "optional", "none": "none"},
    "ssl_check_hostname": {"true": True, "false": False},
    "ssl_min_version": {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3},
}
_TLS: Final = (*_FILES, *_TEXTS, "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version")

OPTIONS: Final = ("prefix", "db", *_LOGIN, "protocol", *_TLS, *_SENTINEL_LOGIN)

# Options that belong to some schemes only: which ones, and the hint otherwise.
_RESTRICTED: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...]] = (
    (_TLS, lambda scheme: scheme.startswith("rediss"), "TLS needs rediss://"),
    (_SENTINEL_LOGIN, lambda scheme: scheme.endswith("+sentinel"), "only redis+sentinel:// has sentinels"),
    (("db",), lambda scheme: not scheme.endswith("+cluster"), "a cluster has one database"),
)


def takes(scheme: str, option: str) -> bool:
    """Return whether URLs of this scheme may have this option."""
    return all(allows(scheme) for names, allows, _ in _RESTRICTED if option in names)


@dataclass(frozen=True)
class Address:
    """Where the servers are, and how to log in."""

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
    credential_provider: Any = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @classmethod
    def parse(cls, split: SplitResult) -> Address:
        """The address in a URL that ``urlsplit`` has split, without its options."""
        login, _, hosts = split.netloc.rpartition("@")
        name, _, password = login.partition(":")
        common: dict[str, Any] = {"username": unquote(name) or None, "password": unquote(password) or None}
        scheme, path = split.scheme.replace("rediss", "redis"), split.path.strip("/")
        if scheme == "unix":
            if hosts or not path:
                raise ConfigError("expected the path of a socket, for example unix:///run/redis.sock")
            return cls(path=unquote(split.path), **common)
        if scheme == "redis+cluster":
            if path:
                raise ConfigError(f"{split.scheme}:// has no path, because a cluster has one database")
            return cls(_hosts(hosts, _PORT), cluster=True, **common)
        if scheme == "redis+sentinel":
            service, _, db = path.partition("/")
            if not service:
                example = f"{split.scheme}://h1:26379,h2:26379/mymaster/0"
                raise ConfigError(f"expected the name of a service, for example {example}")
            return cls(_hosts(hosts, _SENTINEL_PORT), service=unquote(service), db=_database(db), **common)
        servers = _hosts(hosts, _PORT)
        if len(servers) > 1:
            raise ConfigError(f"{split.scheme}:// has one host. For several, use redis+sentinel:// or redis+cluster://")
        return cls(servers, db=_database(path), **common)

    @property
    def first(self) -> tuple[str, int]:
        return self.hosts[0] if self.hosts else ("", 0)

    @property
    def options(self) -> dict[str, Any]:
        """The options of each connection. redis-py sets no timeout, because each call has its own."""
        return {"db": self.db, "client_name": self.client_name, "protocol": self.protocol, "socket_timeout": None}

    @property
    def sentinels(self) -> Address:
        """The same for the sentinels, which have a login of their own."""
        name, password = self.sentinel_username, self.sentinel_password
        return replace(self, db=0, credential_provider=None, username=name, password=password)


class ParsedAddress(NamedTuple):
    """A URL with its options. ``tls`` are options for redis-py, or None without TLS."""

    address: Address
    prefix: str
    tls: Mapping[str, Any] | None


def parse_address(split: SplitResult, options: Mapping[str, str]) -> ParsedAddress:
    """One of the URLs of docs/redis.md."""
    if split.fragment:
        raise ConfigError("the URL of a Redis has no #. Write special characters of a password as %23 and so on")
    for names, allows, hint in _RESTRICTED:
        if (wrong := [name for name in names if name in options]) and not allows(split.scheme):
            raise ConfigError(f"{split.scheme}:// does not take {', '.join(wrong)}: {hint}")
    address = Address.parse(split)
    own: dict[str, Any] = {name: options[name] for name in (*_LOGIN, *_SENTINEL_LOGIN) if name in options}
    if twice := [name for name in ("username", "password") if name in own and getattr(address, name)]:
        raise ConfigError(f"the URL sets {' and '.join(twice)} twice. Set each before the @ or as an option")
    if "db" in options:
        if address.db:
            raise ConfigError("the URL sets the database twice. Set it in the path or with db")
        own["db"] = _database(options["db"])
    parsed = {name: _choose(name, options[name]) for name in _CHOICES if name in options}
    address = replace(address, protocol=parsed.pop("protocol", 2), **own)
    tls = None
    if split.scheme.startswith("rediss"):
        if "ssl_keyfile" in options and not options.get("ssl_certfile"):
            raise ConfigError("ssl_keyfile is set without ssl_certfile. Set both")
        tls = {**parsed, **{name: options[name] for name in (*_FILES, *_TEXTS) if name in options}}
    return ParsedAddress(address, options.get("prefix", "rl:"), tls)


def _choose(option: str, text: str) -> Any:
    if text not in _CHOICES[option]:
        raise ConfigError(f"{option} is one of {', '.join(_CHOICES[option])}; got {text!r}")
    return _CHOICES[option][text]


def _hosts(text: str, port: int) -> tuple[tuple[str, int], ...]:
    """``h1:6379,h2,[::1]:6379``, or this machine."""
    return tuple(_host(part, port) for part in text.split(",")) if text else (("localhost", port),)


def _host(text: str, port: int) -> tuple[str, int]:
    name, colon, number = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        name, number = text, str(port)
    with placed("host"):
        if not number.isascii() or not number.isdigit() or not 0 < int(number) < 65536 or not name:
            raise ConfigError("expected NAME or NAME:PORT, several separated by commas")
    return unquote(name).strip("[]"), int(number)


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigError("expected the number of a database, for example redis://localhost:6379/0")
    return int(text or "0")
