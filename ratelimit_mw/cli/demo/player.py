"""Plays requests at a server over HTTP, and notes what came back. Knows nothing of terminals.

Which rules looked at a request and which rejected it is read from the answers, as any client could.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from http import HTTPStatus
from typing import Final, NamedTuple

import httpx

from ...http.client_ip import ip_key
from .traffic import Request

__all__ = ["Outcome", "Played", "Sample", "play"]

_AT_ONCE: Final = 32
_LONGEST: Final = 300.0  # seconds; what is not asked by then is left out, and the report says so
_TIMEOUT: Final = 10.0
_LONGEST_RETRY: Final = 3.0
_FORM: Final = b"demo=1"

_NAMES = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Outcome(NamedTuple):
    """What came of a request ``at`` seconds from the start: by which policies it was looked at, by which rejected."""

    request: Request
    at: float
    status: int
    looked: tuple[str, ...]
    rejected: tuple[str, ...]

    @property
    def is_rejected(self) -> bool:
        return self.status == HTTPStatus.TOO_MANY_REQUESTS


@dataclass
class Sample:
    """A rejection as it was sent, and what the same request was answered after the wait it asked for."""

    request: Request
    response: str
    wait: int
    then: str = ""


@dataclass
class Played:
    """Everything that came of playing."""

    planned: int
    outcomes: list[Outcome] = field(default_factory=list)
    unanswered: int = 0
    seconds: float = 0.0
    sample: Sample | None = None

    @property
    def left_out(self) -> int:
        return self.planned - len(self.outcomes) - self.unanswered


async def play(
    address: str, requests: list[Request], alive: Callable[[], bool], told: Callable[[Outcome], None]
) -> Played:
    """Play the requests in their order, each when its time has come, so many at once as a server is glad to take.

    ``told`` hears of each outcome. Ends early when the server is no longer ``alive``.
    """
    played = Played(len(requests))
    limits = httpx.Limits(max_connections=_AT_ONCE, max_keepalive_connections=_AT_ONCE)
    # trust_env: no proxy of the machine's has any business here.
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=_TIMEOUT, trust_env=False) as client:
        player = _Player(client, played, alive, told)
        waiting = iter(requests)
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(player.work(waiting))
        played.seconds = player.now()
        await player.try_again(played.sample)
    return played


class _Player:
    def __init__(
        self, client: httpx.AsyncClient, played: Played, alive: Callable[[], bool], told: Callable[[Outcome], None]
    ) -> None:
        self._client = client
        self._played = played
        self._alive = alive
        self._told = told
        self._start = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._start

    async def work(self, waiting: Iterator[Request]) -> None:
        for request in waiting:
            if (wait := request.at - self.now()) > 0:
                await asyncio.sleep(wait)
            try:
                self._note(request, await self._send(request))
            except (httpx.HTTPError, httpx.InvalidURL):
                self._played.unanswered += 1
                if not self._alive():
                    return
            if self.now() > _LONGEST:
                return

    async def try_again(self, sample: Sample | None) -> None:
        """Do as the rejection says: wait, then ask again."""
        if sample is None or not 0 < sample.wait <= _LONGEST_RETRY or not self._alive():
            return
        await asyncio.sleep(sample.wait)
        with suppress(httpx.HTTPError):
            sample.then = _status(await self._send(sample.request))

    async def _send(self, request: Request) -> httpx.Response:
        headers = {"x-forwarded-for": _forwarded(request.client)}
        body = None
        if request.credentials is not None:
            headers["authorization"] = f"Basic {b64encode(request.credentials.encode()).decode()}"
        elif request.method == "POST":
            headers["content-type"] = "application/x-www-form-urlencoded"
            body = _FORM
        # As a target and not as a URL: "/a/../b" and "//host/" are played as they are, and nothing leaves this machine.
        target = {"target": request.target.encode("ascii")}
        return await self._client.request(request.method, "/", headers=headers, content=body, extensions=target)

    def _keep(self, request: Request, response: httpx.Response) -> None:
        """The first rejection as a sample; best of a GET, which the application answers alike every time."""
        kept = self._played.sample
        if kept is None or (kept.request.method != "GET" and request.method == "GET"):
            wait = response.headers.get("retry-after", "")
            self._played.sample = Sample(request, _as_sent(response), int(wait) if wait.isdigit() else 0)

    def _note(self, request: Request, response: httpx.Response) -> None:
        looked = _names(response.headers.get("ratelimit-policy", ""))
        rejected = _rejecting(response) if response.status_code == HTTPStatus.TOO_MANY_REQUESTS else ()
        outcome = Outcome(request, self.now(), response.status_code, looked, rejected)
        self._played.outcomes.append(outcome)
        if outcome.is_rejected:
            self._keep(request, response)
        self._told(outcome)


def _rejecting(response: httpx.Response) -> tuple[str, ...]:
    """The policies that rejected, from the problem in the body, or, as HEAD has none, from the header."""
    if response.content:
        return tuple(json.loads(response.content)["violated-policies"])
    return _names(response.headers.get("ratelimit", ""))


@lru_cache(1024)
def _names(items: str) -> tuple[str, ...]:
    """The names of the items of a structured field such as ``"login";r=0;t=42``."""
    return tuple(_NAMES.findall(items))


@lru_cache(65_536)
def _forwarded(client: str) -> str:
    """The client's address. A log may hold names instead: each gets an address of its own, of a private network."""
    digest = blake2b(client.encode("utf-8", "surrogatepass"), digest_size=7).hexdigest()
    return ip_key(client, 128) or f"fd{digest[:2]}:{digest[2:6]}:{digest[6:10]}:{digest[10:]}::1"


def _status(response: httpx.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}"


def _as_sent(response: httpx.Response) -> str:
    """The response byte for byte: status line, headers, body."""
    lines = [f"{response.http_version} {_status(response)}".encode()]
    lines += [name + b": " + value for name, value in response.headers.raw]
    return b"\n".join([*lines, b"", response.content]).decode("utf-8", "replace")
