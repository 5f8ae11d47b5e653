"""Connect and log in to a server of Redis, for threads or for the running event loop.

Certificates are files, and a credential provider may ask a cloud service. Neither may block an event loop.
"""

from __future__ import annotations

from typing import Any

import redis
from hiredis import Reader, pack_command

from ...runtime.blocking import run_once
from ..connecting import open_connection
from ..drivers import Driver
from ..servers import Server
from ..wire import MORE
from .address import Address
from .errors import Command


async def log_in(driver: Driver, address: Address, location: Server, deadline: float) -> Any:
    """Return a new connection to a server. The commands of the login are one round trip."""
    commands = await _authentication(driver, address, deadline)
    if address.db:
        commands.append(("SELECT", address.db))
    codec = Reader(replyError=redis.ResponseError, notEnoughData=MORE)
    connection = await open_connection(driver, location, address.tls, codec, deadline)
    try:
        frame = b"".join(map(pack_command, commands))
        for reply in await connection.send(frame, len(commands), deadline) if commands else ():
            if isinstance(reply, redis.ResponseError):
                raise reply
    except BaseException:
        connection.close()
        raise
    return connection


async def _authentication(driver: Driver, address: Address, deadline: float) -> list[Command]:
    """Return the command that logs in. A credential provider has a thread, so one that caches serves the next call."""
    if (provider := address.credential_provider) is not None:
        credentials = run_once(("credentials", id(provider)), provider.get_credentials)
        return [("AUTH", *await driver.result(credentials, deadline))]
    if not (address.username or address.password):
        return []
    return [("AUTH", *filter(None, [address.username]), address.password or "")]
