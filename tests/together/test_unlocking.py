"""From "a customer says he is blocked" to unlocked: two commands, beside a real application in another process."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run, start
from http_servers import served_port, status
from redis_handles import address
from servers import Server

APP = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from ratelimit_mw.starlette import RateLimitMiddleware, limit

@limit("2/day", name="orders", key=["header:x-customer"])
async def order(request):
    return PlainTextResponse("ok")

app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""
SETTINGS = """
store = "{store}"
store_timeout = "10s"
rejection_cache = 0
trusted_proxies = ["127.0.0.1"]

[[rules]]
name = "site"
key = ["ip"]
limits = ["3/hour", "100/day"]
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["lmdb", pytest.param("redis", marks=pytest.mark.thorough)])
def test_two_commands_unlock_a_customer(
    store: str, tmp_path: Path, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command shows rule, wait and the second command. The next request of the customer is allowed."""
    url = f"lmdb://{tmp_path}/db" if store == "lmdb" else address(redis_server, f"?prefix={tmp_path.name}:")
    (tmp_path / "ratelimit.toml").write_text(SETTINGS.format(store=url))
    (tmp_path / "shop.py").write_text(APP)
    ip, customer = "X-Forwarded-For: 192.0.2.7", "X-Customer: 1042"
    monkeypatch.chdir(tmp_path)
    with served_port(tmp_path / "log", "uvicorn shop:app --no-proxy-headers --workers 1", tmp_path) as port:
        for _ in range(2):
            assert status(port, "POST /orders", ip, customer) == 200
        assert status(port, "POST /orders", ip, customer) == 429

        # The rule of a decorator: the command needs the application.
        found = start("inspect", "--app", "shop:app", "--feature", "header:x-customer=1042")
        assert "0 of 2" in found.stdout
        assert "rejected until 2" in found.stdout
        assert start("reset", "--app", "shop:app", *rejected_in(found.stdout)).returncode == 0
        assert status(port, "POST /orders", ip, customer) == 200

        # The rule of the file.
        while status(port, "GET /", ip) != 429:
            pass
        found = run("inspect", "ratelimit.toml", "--feature", "ip=192.0.2.7")
        words = rejected_in(found.stdout)
        assert words == ["site", "ip=192.0.2.7"]
        assert "3 of 3" in run("reset", "ratelimit.toml", *words).stdout
        assert status(port, "GET /", ip) == 404
        assert run("reset", "ratelimit.toml", *words).exit_code == 0
        assert run("reset", "ratelimit.toml", *words).exit_code == 1


def rejected_in(table: str) -> list[str]:
    """Return the rule and the client of the row that is rejected."""
    [row] = [line for line in table.splitlines() if "rejected until" in line]
    return row.split()[:2]
