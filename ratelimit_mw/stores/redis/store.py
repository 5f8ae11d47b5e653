"""``RedisStore``: states in a Redis or a Valkey. One script call decides all hits of a request.

The time of the server decides unless the caller gives a time. Each blocking call has a connection of its own; requests
of one event loop share calls. Nothing is sent twice, except after NOSCRIPT and the redirects of a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redis.credentials import CredentialProvider

from ...decision import Correction, Decision, Hit
from ...errors import ConfigError
from ..base import Facts, Store, seconds_of
from ..blocking import forms, run_blocking
from ..per_loop import PerLoop
from ..unmade import UnmadeCorrections
from ..url import parse_url_of, redacted_url
from ..ways import EventLoop, Threads, forget_transports
from .address import Address, add_remap
from .application import blocking_router, bridging_router, loop_router
from .batch import Batches
from .call import HIT, PEEK, Operation, have_lua, key_name
from .errors import NotRunError
from .login import tls_context
from .request import RedisRequest
from .router import Router
from .slot_map import slot_of

if TYPE_CHECKING:
    import redis
    import redis.asyncio


class RedisStore(Store):
    """Keep states in a Redis that all processes share.

    Args:
        url: A store URL such as ``redis://localhost:6379/0``.
            docs/reference/stores/redis.md lists the schemes and options.
        prefix: The start of every key, default ``rl:``.
        timeout_us: The time budget of a call in microseconds.
        client: A client of the application instead of a URL. Blocking calls go through it.
        aclient: The same for async calls, on the event loop of that client.
        credential_provider: A credential provider of redis-py instead of a login in the URL.
        remap: Where to reach the servers of a Cluster or of Sentinel that announce other addresses, for example
            ``{"10.0.0.1:6379": "localhost:7000"}``. docs/reference/stores/redis.md explains it.

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
        remap: Mapping[str, str] | None = None,
    ) -> None:
        if (url is None) == (client is None and aclient is None):
            raise ConfigError("expected either a URL, or client= and aclient=")
        if url is None and credential_provider is not None:
            raise ConfigError("credential_provider= needs a URL. A client has its own login")
        if not (credential_provider is None or hasattr(credential_provider, "get_credentials_async")):
            kind = type(credential_provider).__name__  # its value may be a password
            raise ConfigError(f"expected a redis.CredentialProvider; got {kind}", "credential_provider")
        if getattr(type(credential_provider), "get_credentials", None) is CredentialProvider.get_credentials:
            raise ConfigError("it has no get_credentials. Define it: a thread calls it", "credential_provider")
        self._timeout = seconds_of(timeout_us)
        self.lost_refunds = 0
        """How many refunds between the slots of a rejected or failed request were not made, or are not known to be."""
        self._way = Threads(self._timeout)
        self._loops = PerLoop(self._open_loop)
        self._unmade = UnmadeCorrections(self._correct_again)
        self._open_router: Callable[[EventLoop], Router] | None = None
        address = parse_url_of(url, Address, "redis://localhost:6379/0") if isinstance(url, str) else url
        if remap is not None:
            address = add_remap(address, remap)
        self._prefix = (address or Address()).prefix if prefix is None else prefix
        self._is_cluster = address is not None and address.cluster
        if isinstance(url, str):
            self.name = redacted_url(url)
        if address is None:
            self._use_clients(client, aclient)
        else:
            self._use_servers(address, credential_provider)

    def _use_clients(self, client: redis.Redis | None, aclient: redis.asyncio.Redis | None) -> None:
        if client is not None:
            self._threads = blocking_router(client, self._way)
        if aclient is not None:
            bridge = bridging_router(aclient, self._loops.values, self._way)
            self._threads = bridge if client is None else self._threads
            self._open_router = lambda way: loop_router(aclient, way)
        (self.name, _) = self._threads.map.primaries[0]

    def _use_servers(self, address: Address, provider: CredentialProvider | None) -> None:
        if provider is not None and (address.username or address.password):
            raise ConfigError("expected either a login in the URL or credential_provider=, not both")
        tls = None if address.tls_options is None else tls_context(address.tls_options)
        self._address = address = replace(address, credential_provider=provider, tls=tls)
        self._threads = Router(address, self._way)
        self._open_router = lambda way: Router(address, way)

    # Not a form of ``RedisRequest.apply``: most requests are one call, and the form takes a twentieth of its time.
    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return run_blocking(self._apply(self._threads, hits, now, consume))

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        way = self._loops.values.get(asyncio.get_running_loop()) or self._loops.get()
        return await self._apply(way, hits, now, consume)

    correct, acorrect = forms(RedisRequest.correct, Store.correct)
    forget, aforget = forms(RedisRequest.forget, Store.forget)
    read_record, aread_record = forms(RedisRequest.read_record, Store.read_record)
    write_record, awrite_record = forms(RedisRequest.write_record, Store.write_record)
    list_keys, alist_keys = forms(RedisRequest.list_keys, Store.list_keys)
    start, astart = forms(RedisRequest.start, Store.start)
    ping, aping = forms(RedisRequest.ping, Store.ping)

    def facts(self) -> Iterator[Facts]:
        return self._threads.facts()

    def close(self) -> None:
        """Make the corrections that are left, and close idle connections. A client of the application stays open."""
        self._unmade.close()
        self._threads.close()

    async def aclose(self) -> None:
        await self._unmade.aclose()  # a thread may need the client of this loop
        way = self._loops.values.pop(asyncio.get_running_loop(), None)
        if way is not None:
            way.router.close()
            await forget_transports()
        self.close()

    def _apply(
        self, way: Router | Batches, hits: Sequence[Hit], now: int | None, consume: bool
    ) -> Awaitable[list[Decision]]:
        if (len(hits) == 1 or not self._is_cluster) and hits and have_lua(hits):
            names = [key_name(self._prefix, hit[1]) for hit in hits]
            slot = slot_of(names[0]) if self._is_cluster else 0
            return way.ask(Operation(HIT if consume else PEEK, hits, names, slot, now), way.clock.now + self._timeout)
        request = self._begin(way)
        return self._keeping(request, request.apply(hits, now, consume))

    def _run(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Return the result of an operation of a request."""
        request = self._begin(self._threads)
        return run_blocking(self._keeping(request, getattr(request, operation)(*arguments, **options)))

    async def _arun(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Async form of ``_run``."""
        request = self._begin(self._loops.get())
        return await self._keeping(request, getattr(request, operation)(*arguments, **options))

    async def _keeping(self, request: RedisRequest, operation: Awaitable[Any]) -> Any:
        try:
            return await operation
        finally:
            self._unmade.keep(request.left, request.now)

    def _begin(self, way: Router | Batches) -> RedisRequest:
        return RedisRequest(way, self._prefix, self._place, self._timeout, self._count_lost)

    def _open_loop(self) -> Batches:
        if self._open_router is None:
            raise ConfigError("this RedisStore cannot make async calls. Pass aclient= as well, or a URL")
        return Batches(self._open_router(EventLoop(self._timeout)))

    def _correct_again(self, changes: Sequence[Correction], now: int | None) -> Sequence[Correction]:
        left: list[Correction] = []
        for change in changes:
            request = self._begin(self._threads)
            try:
                run_blocking(request.correct([change], now))
            except NotRunError:
                request.left = [change]
            left += request.left
        return left

    def _count_lost(self, refunds: int) -> None:
        self.lost_refunds += refunds

    def _place(self, key: str) -> tuple[bytes, int]:
        """Return the name of a key in Redis and its slot, 0 without a cluster."""
        name = key_name(self._prefix, key)
        return name, slot_of(name) if self._is_cluster else 0


def open_address(parsed: Address, timeout_us: int) -> RedisStore:
    return RedisStore(parsed, timeout_us=timeout_us)
