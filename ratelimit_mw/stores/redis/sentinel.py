"""Which server is the primary now, by redis-py's Sentinel; asked whenever a new connection is made."""

from __future__ import annotations

import time
from typing import Any

from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from .address import Address

__all__ = ["aprimary", "primary"]


def primary(address: Address, deadline: float) -> tuple[str, int]:
    """Host and port of the primary. A sentinel that is silent leaves time for the others."""
    patience = max(0.001, (deadline - time.monotonic()) / (len(address.hosts) + 1))
    sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
        address.hosts, sentinel_kwargs=_options(patience, Retry(NoBackoff(), 0))
    )
    try:
        host, port = sentinel.discover_master(address.service)
        return str(host), int(port)
    finally:
        for client in sentinel.sentinels:
            client.close()


async def aprimary(address: Address, patience: float) -> tuple[str, int]:
    """The same on an event loop."""
    options = _options(patience / (len(address.hosts) + 1), AsyncRetry(NoBackoff(), 0))
    sentinel: Any = AsyncSentinel(  # type: ignore[no-untyped-call]
        address.hosts, sentinel_kwargs=options
    )
    try:
        host, port = await sentinel.discover_master(address.service)
        return str(host), int(port)
    finally:
        for client in sentinel.sentinels:
            await client.aclose()


def _options(patience: float, retry: Any) -> dict[str, Any]:
    return {"socket_timeout": patience, "socket_connect_timeout": patience, "retry": retry, "protocol": 2}
