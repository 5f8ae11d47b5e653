"""``RedisStore``: states in a Redis or a Valkey. One script call decides all hits of a request.

The time of the server decides unless the caller gives a time. Each blocking call has a connection of its own; requests
of one event loop share calls. Nothing is sent twice, except after NOSCRIPT and the redirects of a cluster.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...decision import Correction, Decision, Hit
from ...errors import ConfigError
from ..base import LOOKED_AT, Facts, KeyPage, numbers_in
from ..blocking import run_blocking
from ..budget import STARTING, LoopClock, ThreadClock
from ..per_loop import PerLoop
from ..twins import TwinStore, Work
from ..unmade import Leave, UnmadeCorrections
from ..url import check_store_url, redacted_url
from .address import Address, add_remap
from .batch import Batcher, NodeBatchers
from .call import HIT, PEEK, SWAP, Call, Operation, have_lua, key_name, swap_arguments, text_of
from .client.application import ApplicationClient, AsyncApplicationClient, LoopBridge
from .client.cluster import Cluster, slot_of
from .client.errors import as_store_error
from .client.login import tls_context
from .client.server import Caller, Server, Target
from .client.transport import blocking_transport, loop_transport
from .script import Script
from .steps import SteppedRequest

if TYPE_CHECKING:
    import redis
    import redis.asyncio
    from redis.credentials import CredentialProvider

_SPECIAL: Final = re.compile(r"[*?\[\]\\^-]")
"""The characters with a meaning in the pattern of SCAN."""


class RedisStore(TwinStore):
    """Keep states in a Redis that all processes share.

    Args:
        url: A store URL such as ``redis://localhost:6379/0``. docs/redis.md lists the schemes and options.
        prefix: The start of every key, default ``rl:``.
        timeout_us: The time budget of a call in microseconds.
        client: A client of the application instead of a URL. Blocking calls go through it.
        aclient: The same for async calls, on the event loop of that client.
        credential_provider: A credential provider of redis-py instead of a login in the URL.
        remap: Where to reach the servers of a Cluster or of Sentinel that announce other addresses, for example
            ``{"10.0.0.1:6379": "localhost:7000"}``. docs/redis.md explains it.

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
        if type(timeout_us) is not int or timeout_us < 1:
            raise ConfigError(f"timeout_us: expected a whole number of microseconds from 1; got {timeout_us!r}")
        if (url is None) == (client is None and aclient is None):
            raise ConfigError("expected either a URL, or client= and aclient=")
        if url is None and credential_provider is not None:
            raise ConfigError("credential_provider= needs a URL. A client has its own login")
        if not (credential_provider is None or hasattr(credential_provider, "get_credentials_async")):
            kind = type(credential_provider).__name__  # its value may be a password
            raise ConfigError(f"expected a redis.CredentialProvider; got {kind}", "credential_provider")
        self._timeout = timeout_us / 1_000_000
        self.lost_refunds = 0
        """How many refunds between the slots of a rejected or failed request were not made, or are not known to be."""
        self._clock = ThreadClock(self._timeout)
        self._callers = PerLoop(self._open_caller)
        self._unmade = UnmadeCorrections(self._correct_again)
        self._open_async: Callable[[LoopClock], Target] | None = None
        address = _parse(url) if isinstance(url, str) else url
        if remap is not None:
            address = add_remap(address, remap)
        self._prefix = (address or Address()).prefix if prefix is None else prefix
        self._name = partial(key_name, self._prefix)
        self._is_cluster = address is not None and address.cluster
        if isinstance(url, str):
            self.name = redacted_url(url)
        if address is None:
            self._use_clients(client, aclient)
        else:
            self._use_servers(address, credential_provider)

    def _use_clients(self, client: redis.Redis | None, aclient: redis.asyncio.Redis | None) -> None:
        targets: list[Target] = []
        if client is not None:
            targets.append(ApplicationClient(client, self._clock))
        if aclient is not None:
            targets.append(LoopBridge(AsyncApplicationClient(aclient), self._callers.values, self._clock))
            self._open_async = lambda clock: AsyncApplicationClient(aclient, clock)
        self.name = targets[0].name
        self._blocking = Caller(targets[0], self._clock)

    def _use_servers(self, address: Address, provider: CredentialProvider | None) -> None:
        if provider is not None and (address.username or address.password):
            raise ConfigError("expected either a login in the URL or credential_provider=, not both")
        tls = None if address.tls_options is None else tls_context(address.tls_options)
        self._address = address = replace(address, credential_provider=provider, tls=tls)
        target = Cluster if address.cluster else Server
        self._blocking = Caller(target(address, blocking_transport(self._clock)), self._clock)
        self._open_async = lambda clock: target(address, loop_transport(clock))

    def _run(self, work: Work, *arguments: Any) -> Any:
        return run_blocking(work(self._blocking, *arguments))

    async def _arun(self, work: Work, *arguments: Any) -> Any:
        return await work(self._callers.get(), *arguments)

    # Without ``_run`` and ``_arun``, whose calls take a twentieth of the time of a request.
    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return run_blocking(self._apply(self._blocking, hits, now, consume))

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        caller = self._callers.values.get(asyncio.get_running_loop()) or self._callers.get()
        return await self._apply(caller, hits, now, consume)

    def list_keys(self, prefix: str, place: str = "") -> KeyPage:
        return self._run(self._list_keys, prefix, place)  # type: ignore[no-any-return]

    async def alist_keys(self, prefix: str, place: str = "") -> KeyPage:
        return await self._arun(self._list_keys, prefix, place)  # type: ignore[no-any-return]

    def start(self) -> None:
        self._run(self._ping, STARTING)

    async def astart(self) -> None:
        await self._arun(self._ping, STARTING)

    def facts(self) -> Iterator[Facts]:
        return self._blocking.target.facts()

    def close(self) -> None:
        """Make the corrections that are left, and close idle connections. A client of the application stays open."""
        self._unmade.close()
        self._blocking.target.close()

    async def aclose(self) -> None:
        await self._unmade.aclose()  # a thread may need the client of this loop
        caller = self._callers.values.pop(asyncio.get_running_loop(), None)
        if caller is not None:
            caller.target.close()
            await asyncio.sleep(0)  # lets the loop close the transports
        self.close()

    def _apply(self, caller: Caller, hits: Sequence[Hit], now: int | None, consume: bool) -> Awaitable[list[Decision]]:
        if self._fits_one_call(hits):
            names = [self._name(hit[1]) for hit in hits]
            slot = slot_of(names[0]) if self._is_cluster else 0
            operation = Operation(HIT if consume else PEEK, hits, names, slot, now)
            return caller.ask(operation, caller.clock.now + self._timeout)
        return self._steps(caller, now).apply(hits, consume)

    def _fits_one_call(self, hits: Sequence[Hit]) -> bool:
        return (len(hits) == 1 or not self._is_cluster) and bool(hits) and have_lua(hits)

    async def _correct(self, caller: Caller, changes: Sequence[Correction], now: int | None) -> list[int]:
        return await self._steps(caller, now).correct(changes)

    async def _forget(self, caller: Caller, keys: Sequence[str]) -> None:
        await self._steps(caller).forget(keys)

    async def _ping(self, caller: Caller, least: float = 0.0) -> None:
        """Raise ``StoreError`` unless every server of the store takes a write now."""
        deadline = caller.clock.now + max(self._timeout, least)
        for key in await self._probe_keys(caller, deadline):
            # A server that is full, loading or a replica replies to PING, but takes no hit.
            await caller.ask(self._on_key(b"SET", key, b"", b"PX", 1), deadline)

    async def _probe_keys(self, caller: Caller, deadline: float) -> list[str]:
        """Return a key on each server that has states."""
        try:
            return await caller.target.probe_keys(lambda key: self._place(key)[1], deadline)
        except Exception as error:
            raise as_store_error(error) from error

    async def _list_keys(self, caller: Caller, prefix: str, place: str) -> KeyPage:
        """List with SCAN, one server after the other."""
        number, cursor = numbers_in(place)
        deadline = caller.clock.now + self._timeout
        servers = await self._probe_keys(caller, deadline)
        if number >= len(servers):
            return KeyPage([], None)
        pattern = _SPECIAL.sub(r"\\\g<0>", self._name(prefix).decode()) + "*"
        slot = self._place(servers[number])[1]
        scan = Call(b"SCAN", (), (), slot, cursor, b"MATCH", pattern, b"COUNT", LOOKED_AT)
        following, names = await caller.ask(scan, deadline)
        cursor = int(following)
        place = f"{number}:{cursor}" if cursor else f"{number + 1}:0"
        is_last = not cursor and number + 1 == len(servers)
        return KeyPage([text_of(self._prefix, name) for name in names], None if is_last else place)

    async def _read_record(self, caller: Caller, key: str) -> bytes | None:
        read = self._on_key(b"GET", key)
        return await caller.ask(read, caller.clock.now + self._timeout)  # type: ignore[no-any-return]

    async def _write_record(self, caller: Caller, key: str, data: bytes | None, before: bytes | None) -> bool:
        write = self._on_key(SWAP, key, *swap_arguments(before, data))
        write.has_text = True  # a write without a reply is then made, too, by a server that lacks the script
        return bool(await caller.ask(write, caller.clock.now + self._timeout) == 1)

    def _open_caller(self) -> Caller:
        if self._open_async is None:
            raise ConfigError("this RedisStore cannot make async calls. Pass aclient= as well, or a URL")
        clock = LoopClock(self._timeout)
        target = self._open_async(clock)
        if isinstance(target, Cluster):
            return NodeBatchers(target, clock)
        return Batcher(target, clock)

    def _steps(self, caller: Caller, now: int | None = None, leave: Leave | None = None) -> SteppedRequest:
        leave = leave or self._unmade.keep
        return SteppedRequest(caller, self._place, now, self._timeout, self._count_lost, leave)

    def _correct_again(self, changes: Sequence[Correction], now: int | None) -> list[Correction]:
        left: list[Correction] = []
        request = self._steps(self._blocking, now, lambda unmade, _: left.extend(unmade))
        run_blocking(request.correct(changes))
        return left

    def _count_lost(self, refunds: int) -> None:
        self.lost_refunds += refunds

    def _place(self, key: str) -> tuple[bytes, int]:
        """Return the name of a key in Redis and its slot, 0 without a cluster."""
        name = self._name(key)
        return name, slot_of(name) if self._is_cluster else 0

    def _on_key(self, verb: bytes | Script, key: str, *arguments: Any) -> Call:
        name, slot = self._place(key)
        return Call(verb, [key], [name], slot, *arguments)


def _parse(url: str) -> Address:
    split, address = check_store_url(url)
    if not isinstance(address, Address):
        raise ConfigError(
            f"expected a URL such as redis://localhost:6379/0; got {split.scheme}://. Use open_store(url)"
        )
    return address


def open_address(parsed: Address, timeout_us: int) -> RedisStore:
    return RedisStore(parsed, timeout_us=timeout_us)
