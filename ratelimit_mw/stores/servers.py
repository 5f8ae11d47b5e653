"""The servers of a store, as its URL names them: hosts and ports, the login, and TLS.

No message shows a text that may be a password.
"""

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from ..errors import ConfigError
from ..runtime.regularfile import Identity, identity_of

_HOST: Final = re.compile(r"(\[[^\]]+\]|[^:\[\]>*,@\s]+)(?::([0-9]+))?")
_CHOICES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ssl_cert_reqs": {"required": "required", "none": "none"},
    "ssl_check_hostname": {"true": True, "false": False},
}
_TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
TLS_OPTIONS: Final = (*_TLS_FILES, *_CHOICES)


class Server(NamedTuple):
    """Where a server is: a host and a port, or the path of a Unix socket and 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_servers(text: str, port: int) -> tuple[Server, ...]:
    """Parse ``h1:6379,h2,[::1]:6379``. The port is that of a host without one."""
    servers = []
    for part in text.split(","):
        match = _HOST.fullmatch(part)
        if not match or not 0 < int(match[2] or 1) < 65536:
            expected = f'servers such as "10.0.0.1:{port},10.0.0.2": NAME or NAME:PORT, with ports up to 65535'
            raise ConfigError(f"expected {expected}", "host")
        servers.append(Server(unquote(match[1]).strip("[]"), int(match[2] or port)))
    return tuple(servers)


def split_login(netloc: str) -> tuple[str, str, str]:
    """Return the user name, the password and the hosts in the part of a URL before its path."""
    login, _, hosts = netloc.rpartition("@")
    name, _, password = login.partition(":")
    return unquote(name), unquote(password), hosts


def parse_tls(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the options for TLS that are among these."""
    values: dict[str, Any] = {name: options[name] for name in TLS_OPTIONS if name in options}
    for name in values.keys() & _CHOICES:
        if values[name] not in _CHOICES[name]:
            raise ConfigError(f"{name} is one of {', '.join(_CHOICES[name])}; got {values[name]!r}")
        values[name] = _CHOICES[name][values[name]]
    return values


class TlsFiles:
    """The context of the connections of a store. It is built again when its files have changed, as in a rotation.

    Raises:
        ConfigError: A file cannot be loaded. Later, files that cannot be loaded leave the context as it is.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._identities = self._identify()
        self._context = _tls_context(options)

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection. This reads files, so not on the event loop."""
        if (identities := self._identify()) != self._identities:
            with suppress(ConfigError):
                self._context = _tls_context(self._options)
                self._identities = identities
        return self._context

    def _identify(self) -> list[Identity | None]:
        return [identity_of(Path(self._options[name])) for name in _TLS_FILES if name in self._options]


def _tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    requirement = options.get("ssl_cert_reqs", "required")
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        key = options.get("ssl_keyfile")
        if certificate := options.get("ssl_certfile") or key:
            context.load_cert_chain(certificate, key, password="")  # no question on a terminal
    except (OSError, ValueError) as error:
        files = ", ".join(f"{name}={options[name]!r}" for name in _TLS_FILES if name in options)
        expected = "Expected files in PEM format, the key without a password"
        raise ConfigError(f"cannot load the TLS options {files}: {error}. {expected}") from None
    context.check_hostname = requirement != "none" and options.get("ssl_check_hostname", True)
    context.verify_mode = ssl.VerifyMode[f"CERT_{requirement.upper()}"]
    return context
