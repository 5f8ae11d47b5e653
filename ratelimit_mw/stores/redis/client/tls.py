"""Build the TLS context of a store with redis-py, once: certificates are files, and reading files blocks a loop."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from redis.asyncio import SSLConnection

from ....errors import ConfigError


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """The context for redis-py's ``ssl_*`` options."""
    checks_hostname = options.get("ssl_check_hostname", True) and options.get("ssl_cert_reqs") != "none"
    try:
        context: ssl.SSLContext = SSLConnection(**{**options, "ssl_check_hostname": checks_hostname}).ssl_context.get()
    except TypeError as error:
        raise ConfigError(f"this version of redis-py does not know all TLS options: {error}") from None
    except (OSError, ValueError) as error:
        files = ", ".join(
            f"{name}={value!r}" for name, value in options.items() if name.endswith(("s", "file", "path"))
        )
        raise ConfigError(f"cannot load the TLS options {files}: {error}. Expected files in PEM format") from None
    return context
