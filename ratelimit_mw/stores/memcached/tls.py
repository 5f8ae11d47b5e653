"""The TLS options of store URLs: ``?ssl_ca_certs=/etc/ca.pem&ssl_certfile=...``. Knows no store."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from ...errors import ConfigError

TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")

_VALUES: Final = {"ssl_cert_reqs": ("required", "none"), "ssl_check_hostname": ("true", "false")}


def check_tls_options(options: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` for options that cannot be used. Reads no file."""
    for name, values in _VALUES.items():
        if name in options and options[name] not in values:
            raise ConfigError(f"{name} is one of {', '.join(values)}; got {options[name]!r}")
    if "ssl_keyfile" in options and not options.get("ssl_certfile"):
        raise ConfigError("ssl_keyfile is set without ssl_certfile. Set both")


def build_tls_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Build the context of all connections of a store. It reads files, so it is built once, off the event loop."""
    authorities, certificate, key = files = [options.get(name) for name in TLS_OPTIONS[:3]]
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
