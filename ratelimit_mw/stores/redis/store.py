"""``RedisStore``: states in a Redis or a Valkey. One script call decides all hits of a request.

The time of the server decides unless the caller gives a time. Each blocking call has a connection of its own; requests
of one event loop share calls. Nothing is sent twice, except after NOSCRIPT and the redirects of a cluster.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from redis.crc import key_slot
from redis.credentials import CredentialProvider

from ...decision import Decision, Hit
from ...errors import ConfigError
from ...runtime import forksafe
from ...runtime.blocking import forms, run_blocking
from ..base import Facts, Store
from ..calls import CallStore
from ..drivers import Driver
from ..servers import TlsFiles
from ..url import parse_url_of, redacted_url
from .address import Address, Remap
from .application import application_router
from .call import HIT, PEEK, Operation, have_lua, key_name
from .request import RedisRequest
from .router import Router

if TYPE_CHECKING:
    import redis
    import redis.asyncio


class RedisStore(CallStore):
    """Keep states in a Redis that all processes share.

    Args:
        url: A store URL such as ``redis://localhost:6379/0``.
            docs/reference/stores/redis.md lists the schemes and options.
        prefix: The start of every key, default ``rl:``.
        timeout_us: The time budget of a call in microseconds.
        client: A client of the application instead of a URL. Blocking calls go through it.
        aclient: The same for async calls, on the event loop of that client.
        credential_provider: A credential provider of redis-py instead of a login in the URL.
        remap: Returns where to reach the server of a Cluster or of Sentinel that announces a host and a port, such as
            ``lambda announced: ("localhost", announced[1])``.

    Raises:
        ConfigError: The URL, an option or a client cannot be used. An async call without ``url`` and ``aclient``, or
            a blocking call without ``url`` and ``client``, raises it too.

    Example:
        >>> store = RedisStore("redis://localhost:6379/0?prefix=shop:")
    """

    def __init__(
        self,
        url: str | Address | None = None,
        prefix: str | None = None,
        timeout_us: int = 50_000,
        *,
        client: redis.Redis | None = None,
        aclient: redis.asyncio.Redis | None = None,
        credential_provider: CredentialProvider | None = None,
        remap: Remap | None = None,
    ) -> None:
        if (url is None) == (client is None and aclient is None):
            raise ConfigError("expected either a URL, or client= and aclient=")
        if url is None and credential_provider is not None:
            raise ConfigError("credential_provider= needs a URL. A client has its own login")
        address = parse_url_of(url, Address, "redis://localhost:6379/0") if isinstance(url, str) else url
        if remap is not None and not (address is not None and (address.cluster or address.service)):
            raise ConfigError("needs a URL that starts with redis+cluster:// or redis+sentinel://", "remap")
        if address is not None:
            address = _with_access(replace(address, remap=remap), credential_provider)
        self.prefix = (address or Address()).prefix if prefix is None else prefix
        self._is_cluster = address is not None and address.cluster
        self._address, self._client, self._aclient = address, client, aclient
        super().__init__(timeout_us)
        self.lost_refunds = 0
        """How many refunds between the slots of a rejected or failed request were not made, or are not known to be."""
        self.name = redacted_url(url) if isinstance(url, str) else self.name
        if address is None:
            (self.name, _) = self._thread_driver.connections.map.primaries[0]

    def _connect(self, driver: Driver) -> Router:
        if self._address is None:
            return application_router(self._client, self._aclient, driver, self._loop_drivers.values)
        return Router(self._address, driver)

    # Most requests are one call, and a ``RedisRequest`` takes a twentieth of its time.
    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if os.getpid() != forksafe.process:  # without a call for each request
            forksafe.check_process()
        if not self._is_one_call(hits):
            return super().apply(hits, now, consume)
        return run_blocking(self._ask(self._thread_driver, hits, now, consume))

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not self._is_one_call(hits):
            return await super().aapply(hits, now, consume)
        driver = self._loop_drivers.values.get(asyncio.get_running_loop()) or self._loop_drivers.get()
        return await self._ask(driver, hits, now, consume)

    list_keys, alist_keys = forms(Store.list_keys)

    def facts(self) -> Iterator[Facts]:
        return self._thread_driver.connections.facts()  # type: ignore[no-any-return]

    def _is_one_call(self, hits: Sequence[Hit]) -> bool:
        return (len(hits) == 1 or not self._is_cluster) and bool(hits) and have_lua(hits)

    def _ask(self, driver: Driver, hits: Sequence[Hit], now: int | None, consume: bool) -> Awaitable[list[Decision]]:
        names = [key_name(self.prefix, hit[1]) for hit in hits]
        operation = Operation(HIT if consume else PEEK, hits, names, key_slot(names[0]) if self._is_cluster else 0, now)
        return driver.connections.ask(operation, driver.clock.now + self._seconds)  # type: ignore[no-any-return]

    def _begin(self, driver: Driver, seconds: float) -> RedisRequest:
        return RedisRequest(self, driver, seconds)

    def _locate_key(self, key: str) -> tuple[bytes, int]:
        """Return the name of a key in Redis and its slot, 0 without a cluster."""
        name = key_name(self.prefix, key)
        return name, key_slot(name) if self._is_cluster else 0


def _with_access(address: Address, provider: CredentialProvider | None) -> Address:
    """Return an address with its encryption, and with a credential provider."""
    if provider is not None and (address.username or address.password):
        raise ConfigError("expected either a login in the URL or credential_provider=, not both")
    tls = None if address.tls_options is None else TlsFiles(address.tls_options)
    return replace(address, credential_provider=provider, tls=tls)


def open_address(parsed: Address, timeout_us: int) -> RedisStore:
    return RedisStore(parsed, timeout_us=timeout_us)
