"""The store URL of Memcached: ``memcached://user:password@h1:11211,h2:11211?prefix=rl:``, and its TLS options.

No message shows a part of the URL that may hold a password.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError

_PORT: Final = 11211
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]]+)(?::(\d{1,5}))?")
_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_TLS_VALUES: Final = {"ssl_cert_reqs": ("required", "none"), "ssl_check_hostname": ("true", "false")}
OPTIONS: Final = ("prefix", *_TLS_OPTIONS)


def takes(scheme: str, option: str) -> bool:
    return scheme == "memcacheds" or option not in _TLS_OPTIONS


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


def login_command(username: str, password: str) -> bytes:
    """Return the first command of a connection; empty without a login."""
    if bool(username) != bool(password):
        raise ConfigError("a login needs a user name and a password, as in memcached://user:password@h1:11211")
    if any(not character.isprintable() or character.isspace() for character in username + password):
        raise ConfigError("the user name and the password of Memcached cannot contain spaces or control characters")
    credentials = f"{username} {password}".encode()
    # A server without -Y takes the command for a write, and keeps nothing because of the expiry.
    return b"set login 0 -1 %d\r\n%b\r\n" % (len(credentials), credentials) if username else b""


@dataclass(frozen=True)
class MemcachedAddress:
    """The parts of a store URL. ``tls`` has the options of ``memcacheds://``."""

    servers: tuple[MemcachedServer, ...]
    prefix: str
    username: str = field(repr=False)
    password: str = field(repr=False)
    tls: Mapping[str, str] | None


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
    is_encrypted = split.scheme == "memcacheds"
    tls = {name: value for name, value in options.items() if name in _TLS_OPTIONS}
    if tls and not is_encrypted:
        raise ConfigError(f"{split.scheme}:// has no option {', '.join(tls)}. Use memcacheds:// for TLS")
    for name, values in _TLS_VALUES.items():
        if name in tls and tls[name] not in values:
            raise ConfigError(f"{name} is one of {', '.join(values)}; got {tls[name]!r}")
    if "ssl_keyfile" in tls and not tls.get("ssl_certfile"):
        raise ConfigError("ssl_keyfile is set without ssl_certfile. Set both")
    login, _, hosts = split.netloc.rpartition("@")
    username, _, password = login.partition(":")
    username, password = unquote(username), unquote(password)
    login_command(username, password)
    servers = parse_servers(unquote(split.path) if is_local else hosts)
    return MemcachedAddress(servers, options.get("prefix", "rl:"), username, password, tls if is_encrypted else None)


def build_tls_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Build the context of all connections of a store. It reads files, so it is built once, off the event loop."""
    authorities, certificate, key = files = [options.get(name) for name in _TLS_OPTIONS[:3]]
    is_checked = options.get("ssl_cert_reqs") != "none"
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        raise ConfigError(f"expected PEM files; got {', '.join(filter(None, files))}: {error}") from None
    context.check_hostname = is_checked and options.get("ssl_check_hostname") != "false"
    context.verify_mode = ssl.CERT_REQUIRED if is_checked else ssl.CERT_NONE
    return context
