"""The recipe of ``token-budgets.md`` with 60 streams, two workers, a real Redis and clients that hang up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
import redis
from folders import page_of
from http_servers import served_port
from redis_handles import address
from servers import HOST, Server, wait_for

from ratelimit_mw import Limiter

USERS = [f"user-{number}" for number in range(30)]
_BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE = 300.0  # seconds for all of it, on a machine that does other work

# The model ends when the file exists. The innermost middleware notes what runs while the slot of a stream is held.
SERVED = """
import asyncio, os, pathlib
import redis
from starlette.middleware import Middleware
import chat

db = redis.Redis(port=REDIS_PORT, decode_responses=True)
used = {}

async def generate(asked):
    while not pathlib.Path("finish").exists():
        used[asked.prompt] += 1
        yield "word "
        await asyncio.sleep(0.2)

class Watch:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["path"] != "/v1/chat":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        user, stream = headers[b"authorization"].decode(), headers[b"x-stream"].decode()
        used[stream] = 0
        db.hincrby("admitted", user)
        if db.hincrby("streams", user) > 2:
            db.hincrby("exceeded", user)
        try:
            await self.app(scope, receive, send)
        finally:
            db.hincrby("used", user, used.pop(stream))
            db.hincrby("streams", user, -1)

class Users(dict):
    def get(self, name):
        return name or None

chat.USERS = Users()
chat.generate = generate
chat.api.user_middleware.append(Middleware(Watch))
chat.api.add_api_route("/worker", os.getpid)
"""


def write_recipe(folder: Path, server: Server) -> None:
    """Write the programs of the page, with quotas that do not expire during the test, and a patient store."""
    blocks = dict(_BLOCK.findall(page_of("token-budgets").read_text()))
    settings = blocks["ratelimit.toml"]
    for before, after in {
        "${REDIS_URL}": address(server),
        '"1s"': '"60s"',
        "60/minute": "10000/year",
        "100000/minute": "100000000/year",
        "token-bucket": "fixed-window",
        '"10m"': '"10h"',
    }.items():
        assert before in settings
        settings = settings.replace(before, after)
    (folder / "ratelimit.toml").write_text(settings)
    (folder / "chat.py").write_text(blocks["chat.py"])
    (folder / "served.py").write_text(SERVED.replace("REDIS_PORT", str(server.port)))


@pytest.fixture
def port(tmp_path: Path, own_server: Server, server: redis.Redis) -> Iterator[int]:
    """Two workers that serve the recipe."""
    write_recipe(tmp_path, own_server)
    command = "uvicorn --workers 2 --timeout-graceful-shutdown 5 served:chat.api"
    with served_port(tmp_path / "output", command, tmp_path) as port:
        asyncio.run(both_workers(port))
        yield port


async def both_workers(port: int) -> None:
    workers = set[bytes]()
    async with asyncio.timeout(PATIENCE):
        while len(workers) < 2:
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"GET /worker HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            workers.add((await reader.read()).rpartition(b"\r\n\r\n")[2])
            writer.close()


class Stream:
    """One request of a user for a stream."""

    def __init__(self, port: int, user: str, name: str) -> None:
        self._port = port
        self.user = user
        body = json.dumps({"prompt": f"{user}/{name}", "max_tokens": 500})
        self._request = (
            f"POST /v1/chat HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {user}\r\n"
            f"X-Stream: {user}/{name}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    async def start(self) -> int:
        """Send the request, and return the status. An allowed stream has begun."""
        self.reader, self.writer = await asyncio.open_connection(HOST, self._port)
        self.writer.write(self._request)
        status = int((await self.reader.readuntil(b"\r\n")).split()[1])
        if status == 200:
            await self.reader.readuntil(b"word ")
        else:
            self.writer.close()
        return status

    async def start_when_free(self) -> None:
        while await self.start() == 429:
            await asyncio.sleep(0.5)

    async def leave_at_once(self) -> None:
        _, writer = await asyncio.open_connection(HOST, self._port)
        writer.write(self._request)
        writer.close()

    def hang_up(self) -> None:
        """Close the connection, in half of the streams with a reset."""
        if self.user.endswith(("1", "3", "5", "7", "9")):
            self.writer.transport.abort()
        else:
            self.writer.close()

    async def finish(self) -> None:
        await self.reader.read()
        self.writer.close()


async def serve_users(port: int, folder: Path) -> None:
    """Hold two streams of each user, let the clients of half of them hang up, fill their slots again, and end."""
    streams = {user: [Stream(port, user, str(number)) for number in range(3)] for user in USERS}
    statuses = await asyncio.gather(*(stream.start() for stream in chain(*streams.values())))
    held = [stream for stream, status in zip(chain(*streams.values()), statuses, strict=True) if status == 200]
    assert sorted(statuses) == [200] * 60 + [429] * 30
    assert sorted(stream.user for stream in held) == sorted(USERS * 2)
    left, kept = held[::2], held[1::2]
    for stream in left:
        stream.hang_up()
    await asyncio.gather(*(Stream(port, user, "gone").leave_at_once() for user in USERS))
    again = [Stream(port, stream.user, "again") for stream in left]
    await asyncio.gather(*(stream.start_when_free() for stream in again))
    (folder / "finish").touch()
    await asyncio.gather(*(stream.finish() for stream in (*kept, *again)))


def counts(db: redis.Redis, name: str) -> dict[str, int]:
    """Return the numbers by user that are not zero."""
    return {user.decode().removeprefix("Bearer "): int(count) for user, count in db.hgetall(name).items() if int(count)}  # type: ignore[union-attr]


def consumed(limiter: Limiter) -> Callable[[str], dict[str, int]]:
    """Return a function that returns what is consumed of each rule, for the users of whom anything is."""

    def of(rule: str) -> dict[str, int]:
        numbers = {}
        for user in USERS:
            verdict = limiter.peek({"user": user, "path": "/v1/chat", "method": "POST"}, cost=0)
            (decision,) = (decision for decision in verdict.decisions if decision.rule == rule)
            numbers[user] = decision.limit - decision.remaining
        return {user: number for user, number in numbers.items() if number}

    return of


@pytest.mark.slow
def test_streams_keep_to_the_three_limits(port: int, tmp_path: Path, own_server: Server, server: redis.Redis) -> None:
    """No user has three streams. In the end all slots are free, and the counts are those of the application."""
    asyncio.run(asyncio.wait_for(serve_users(port, tmp_path), PATIENCE))
    limiter = Limiter.from_settings(tmp_path / "ratelimit.toml")
    with contextlib.closing(limiter):
        of = consumed(limiter)

        def is_settled() -> bool:
            has_ended = not (counts(server, "streams") or of("streams"))
            return has_ended and [of("tokens"), of("requests")] == [counts(server, n) for n in ("used", "admitted")]

        wait_for(is_settled, "all slots to be free and all tokens to be settled", PATIENCE)
        assert counts(server, "exceeded") == {}
        assert min(counts(server, "used").values()) >= 3
    assert "ERROR" not in (tmp_path / "output").read_text()
