"""Connect and log in to a server of Redis, for threads or for the running event loop.

Certificates are files, and a credential provider may ask a cloud service. Neither may block an event loop.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

import redis
from hiredis import Reader, pack_command
from redis.asyncio import SSLConnection

from ...errors import ConfigError
from ..blocking import run_once
from ..ways import Place, Way, open_connection
from ..wire import MORE
from .address import Address
from .errors import Command
from .slot_map import Location


async def log_in(way: Way, address: Address, location: Location, deadline: float) -> Any:
    """Return a new connection to a server. The commands of the login are one round trip."""
    commands = [*await _authentication(way, address, deadline), *_settings(address)]
    codec = Reader(replyError=redis.ResponseError, notEnoughData=MORE)
    connection = await open_connection(way, Place(*location, address.tls, address.path), codec, deadline)
    try:
        frame = b"".join(map(pack_command, commands))
        for reply in await connection.send(frame, len(commands), deadline) if commands else ():
            if isinstance(reply, redis.ResponseError):
                raise reply
    except BaseException:
        connection.close()
        raise
    return connection


async def _authentication(way: Way, address: Address, deadline: float) -> list[Command]:
    """Return the command that logs in. A credential provider has a thread, so one that caches serves the next call."""
    if (provider := address.credential_provider) is not None:
        credentials = run_once(("credentials", id(provider)), provider.get_credentials)
        return [("AUTH", *await way.result(credentials, deadline))]
    if not (address.username or address.password):
        return []
    return [("AUTH", *filter(None, [address.username]), address.password or "")]


def _settings(address: Address) -> list[Command]:
    """Return the commands of the other options."""
    commands: list[Command] = [("CLIENT", "SETNAME", address.client_name)] if address.client_name else []
    return [*commands, ("SELECT", address.db)] if address.db else commands


_TLS_FILES: Final = ("s", "file", "path")


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the context for redis-py's ``ssl_*`` options."""
    checks_hostname = options.get("ssl_check_hostname", True) and options.get("ssl_cert_reqs") != "none"
    try:
        context: ssl.SSLContext = SSLConnection(**{**options, "ssl_check_hostname": checks_hostname}).ssl_context.get()
    except TypeError as error:
        raise ConfigError(f"this version of redis-py does not know all TLS options: {error}") from None
    except (OSError, ValueError) as error:
        files = ", ".join(f"{name}={value!r}" for name, value in options.items() if name.endswith(_TLS_FILES))
        raise ConfigError(f"cannot load the TLS options {files}: {error}. Expected files in PEM format") from None
    return context
