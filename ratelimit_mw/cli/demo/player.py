"""Sends requests to a server over HTTP and counts the responses by kind of client."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from http import HTTPStatus
from typing import Final

import httpx

from ...keys.ip import ip_key
from .traffic import DemoRequest

_CONNECTIONS: Final = 32
_TIMEOUT: Final = 10.0
_MAX_RETRY: Final = 3


@dataclass
class KindCount:
    """The requests of one kind of client. ``policies`` are the limits that rejected."""

    requests: int = 0
    rejections: int = 0
    clients: set[str] = field(default_factory=set)
    policies: set[str] = field(default_factory=set)


@dataclass
class Playback:
    """Counts by kind of client, requests without a response, and one rejection with the response to a second try."""

    kinds: dict[str, KindCount] = field(default_factory=lambda: defaultdict(KindCount))
    rejections: int = 0
    failures: int = 0
    seconds: float = 0.0
    sample: tuple[DemoRequest, httpx.Response] | None = None
    retry_response: httpx.Response | None = None


async def play(url: str, requests: list[DemoRequest], progress: Callable[[Playback], None]) -> Playback:
    """Send the requests in order, each at its time, over 32 connections. Call ``progress`` after each response."""
    playback, pending = Playback(), iter(requests)
    limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
    # Without trust_env=False the requests could go to a proxy that the environment names.
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=_TIMEOUT, trust_env=False) as client:
        started = time.monotonic()

        async def work() -> None:
            for request in pending:
                await asyncio.sleep(max(0.0, request.at - (time.monotonic() - started)))
                try:
                    _count(playback, request, await _send(client, request))
                except (httpx.HTTPError, httpx.InvalidURL):
                    playback.failures += 1
                progress(playback)

        await asyncio.gather(*(work() for _ in range(_CONNECTIONS)))
        playback.seconds = time.monotonic() - started
        with suppress(httpx.HTTPError):
            await _retry_sample(client, playback)
    return playback


async def _retry_sample(client: httpx.AsyncClient, playback: Playback) -> None:
    """Send the sample again after its ``Retry-After``. Its client may have used up its limit since: then once more."""
    for _ in range(2):
        if playback.sample is None or (wait := int(playback.sample[1].headers["retry-after"])) > _MAX_RETRY:
            return
        await asyncio.sleep(wait)
        playback.retry_response = await _send(client, playback.sample[0])
        if playback.retry_response.status_code != HTTPStatus.TOO_MANY_REQUESTS:
            return
        playback.sample = playback.sample[0], playback.retry_response


async def _send(client: httpx.AsyncClient, request: DemoRequest) -> httpx.Response:
    headers = {"x-forwarded-for": _client_ip(request.client)}
    if request.body is not None:
        headers["content-type"] = "application/json"
    # As a target and not as a URL: "/a/../b" and "//host/" are sent unchanged, and nothing leaves this machine.
    target = {"target": request.target.encode("ascii")}
    return await client.request(request.method, "/", headers=headers, content=request.body, extensions=target)


def _count(playback: Playback, request: DemoRequest, response: httpx.Response) -> None:
    count = playback.kinds[request.kind]
    count.requests += 1
    count.clients.add(request.client)
    if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        count.rejections += 1
        playback.rejections += 1
        if response.content:  # a response to HEAD has none
            count.policies.update(json.loads(response.content)["violated-policies"])
        # A GET is the better sample: the application answers it with 200 afterwards.
        if playback.sample is None or (playback.sample[0].method != "GET" and request.method == "GET"):
            playback.sample = request, response


@lru_cache(65_536)
def _client_ip(client: str) -> str:
    """Return the client's IP address. A host name in a log gets a private IP address of its own."""
    digest = blake2b(client.encode("utf-8", "surrogatepass"), digest_size=7).hexdigest()
    return ip_key(client, 128) or f"fd{digest[:2]}:{digest[2:6]}:{digest[6:10]}:{digest[10:]}::1"
