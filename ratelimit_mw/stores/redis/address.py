"""What an address of a Redis says, read and checked without its library. Never shows what may be a password."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError, placed

__all__ = ["OPTIONS", "Address", "ParsedAddress", "parse_address", "tls_of"]

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
_SWITCH: Final = {"true": True, "false": False}
_CERT_REQS: Final = {"required": ssl.CERT_REQUIRED, "none": ssl.CERT_NONE}

OPTIONS: Final = ("prefix", "db", *_TLS_OPTIONS, *_SENTINEL_OPTIONS)

# Options that only some addresses have: to which, and what to say otherwise.
_RESTRICTED: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...]] = (
    (_TLS_OPTIONS, lambda scheme: scheme.startswith("rediss"), "encryption is rediss://"),
    (_SENTINEL_OPTIONS, lambda scheme: scheme.endswith("+sentinel"), "sentinels are asked by redis+sentinel://"),
    (("db",), lambda scheme: scheme == "unix", "it is the path, as in redis://localhost/0"),
)


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
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, split: SplitResult) -> Address:
        """The parts of an address that ``urlsplit`` has taken apart; ``ConfigError`` for what cannot be one."""
        login, _, hosts = split.netloc.rpartition("@")
        name, _, password = login.partition(":")
        known: dict[str, Any] = {"username": unquote(name) or None, "password": unquote(password) or None}
        scheme = split.scheme.replace("rediss", "redis")
        if scheme == "unix":
            if hosts or not split.path.strip("/"):
                raise ConfigError("expected the path of a socket as in unix:///run/redis.sock")
            return cls(path=unquote(split.path), **known)
        if scheme == "redis+cluster":
            if split.path.strip("/"):
                raise ConfigError(f"{split.scheme}:// has no path: a cluster has one database")
            return cls(_hosts(hosts, _PORT), cluster=True, **known)
        if scheme == "redis+sentinel":
            service, _, db = split.path.strip("/").partition("/")
            if not service:
                example = f"{split.scheme}://h1:26379,h2:26379/mymaster/0"
                raise ConfigError(f"expected the name of a service as in {example}")
            return cls(_hosts(hosts, _SENTINEL_PORT), service=unquote(service), db=_database(db), **known)
        found = _hosts(hosts, _PORT)
        if len(found) > 1:
            raise ConfigError(f"{split.scheme}:// has one host; see redis+sentinel:// and redis+cluster://")
        return cls(found, db=_database(split.path.strip("/")), **known)

    @property
    def first(self) -> tuple[str, int]:
        return self.hosts[0] if self.hosts else ("", 0)

    @property
    def login(self) -> list[tuple[bytes | str, ...]]:
        """What a new connection says first."""
        commands: list[tuple[bytes | str, ...]] = []
        if self.username or self.password:
            commands.append((b"AUTH", *([self.username] if self.username else []), self.password or ""))
        if self.db:
            commands.append((b"SELECT", str(self.db)))
        return commands

    @property
    def sentinels(self) -> Address:
        """The same, for those who watch."""
        return replace(self, db=0, username=self.sentinel_username, password=self.sentinel_password)


class ParsedAddress(NamedTuple):
    """An address with what its options say; ``tls``: those of encryption, None without any."""

    address: Address
    prefix: str
    tls: Mapping[str, str] | None


def parse_address(split: SplitResult, options: Mapping[str, str]) -> ParsedAddress:
    """What one of the addresses of docs/redis.md says."""
    if split.fragment:
        raise ConfigError(
            "an address of a Redis has no #; special characters of a password are written as %23 and so on"
        )
    for names, may_have, reason in _RESTRICTED:
        if (wrong := [name for name in names if name in options]) and not may_have(split.scheme):
            raise ConfigError(f"{split.scheme}:// takes no {', '.join(wrong)}: {reason}")
    _check_tls(options)
    found = Address.of(split)
    address = replace(
        found,
        db=_database(options["db"]) if "db" in options else found.db,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
    )
    return ParsedAddress(address, options.get("prefix", "rl:"), options if split.scheme.startswith("rediss") else None)


def _check_tls(options: Mapping[str, str]) -> None:
    _one_of("ssl_cert_reqs", _CERT_REQS, options.get("ssl_cert_reqs", "required"))
    _one_of("ssl_check_hostname", _SWITCH, options.get("ssl_check_hostname", "true"))
    if "ssl_keyfile" in options and not options.get("ssl_certfile"):
        raise ConfigError("ssl_keyfile is the key of ssl_certfile, which is missing")


def tls_of(options: Mapping[str, str]) -> ssl.SSLContext:
    """How to encrypt. Read once, when the store is made: certificates are files, and a loop must not wait for them."""
    required = _CERT_REQS[options.get("ssl_cert_reqs", "required")]
    by_name = _SWITCH[options.get("ssl_check_hostname", "true")]
    with placed("ssl_ca_certs"):
        context = _trusting(options.get("ssl_ca_certs"))
    context.check_hostname = by_name and required is not ssl.CERT_NONE
    context.verify_mode = required
    if certificate := options.get("ssl_certfile"):
        with placed("ssl_certfile"):
            _shows(context, certificate, options.get("ssl_keyfile"))
    return context


def _trusting(authorities: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise ConfigError(f"expected a file of certificates in PEM; {authorities} is not: {error}") from None


def _shows(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise ConfigError(f"expected a certificate and its key in PEM; got {certificate}, {key}: {error}") from None


def _one_of(option: str, expected: Mapping[str, Any], text: str) -> None:
    if text not in expected:
        raise ConfigError(f"{option} is one of {', '.join(expected)}; got {text!r}")


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


def _database(text: str) -> int:
    """The number of a database; 0 when nothing is said."""
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigError("expected the number of a database as in redis://localhost:6379/0")
    return int(text or "0")
