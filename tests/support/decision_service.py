"""The decision service in this process, and the requests that gateways send to it."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from folders import ROOT

from ratelimit_mw import Limiter
from ratelimit_mw.cli.serve.app import DecisionService
from ratelimit_mw.testing import ManualClock

GATEWAY_FILES = ROOT / "examples" / "gateways"
PROGRAM = Path(sys.executable).parent / "ratelimit-mw"
LOCAL = "http://127.0.0.1:8429"
API = {"name": "api", "limits": "3/minute"}
TOKEN = "correct-horse-battery"
WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}"}
MAIL = {"name": "mail", "key": ["email"], "limits": "2/hour", "match": {"view": ""}}
CLIENT = {"rule": "api", "features": {"ip": "192.0.2.7"}}
BANNING = {**API, "ban": {"after": 10, "within": "10m", "for": "1h"}}
ADMIN: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/v1/keys", {}),
    ("GET", "/v1/report", {}),
    ("GET", "/v1/top", {}),
    ("POST", "/v1/reset", {"json": CLIENT}),
    ("GET", "/v1/bans", {}),
    ("POST", "/v1/ban", {"json": CLIENT}),
    ("POST", "/v1/unban", {"json": CLIENT}),
    ("GET", "/v1/overrides", {}),
    ("POST", "/v1/override/set", {"json": {**CLIENT, "limits": "9/minute"}}),
    ("POST", "/v1/override/remove", {"json": CLIENT}),
]
"""The requests of the admin API."""
CHECK: tuple[str, str, dict[str, Any]] = ("POST", "/v1/check", {"json": {"features": {"ip": "192.0.2.7"}}})


class Asked:
    """A service with these rules. ``ask`` sends one request from ``peer``, as an admin unless ``headers`` change."""

    def __init__(self, *rules: Mapping[str, Any], service: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.clock = ManualClock(1_000_000.0)
        self.peer = "127.0.0.1"
        settings = {"trusted_proxies": ["127.0.0.1"], "rules": list(rules), **settings}
        self.limiter = Limiter.from_settings(settings, clock=self.clock)
        self.service = DecisionService(self.limiter, **{"token": TOKEN, **(service or {})})
        self.headers = {"authorization": f"Bearer {TOKEN}"}

    def ask(self, method: str, path: str, base: str = LOCAL, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.service, client=(self.peer, 1234))
            async with httpx.AsyncClient(transport=transport, base_url=base, headers=self.headers) as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def check(self, status: int = 200, **question: Any) -> dict[str, Any]:
        response = self.ask("POST", "/v1/check", json=question)
        assert response.status_code == status, response.text
        content: dict[str, Any] = response.json()
        return content

    def nginx(self, method: str = "GET", uri: str = "/", client: str = "192.0.2.7", **headers: Any) -> httpx.Response:
        """Ask as nginx does with examples/gateways/nginx.conf."""
        original = {"x-original-method": method, "x-original-uri": uri, "x-forwarded-for": client}
        return self.ask("GET", "/auth", headers={**original, **with_hyphens(headers)})

    def forward(self, method: str = "GET", uri: str = "/", client: str = "192.0.2.7", **headers: Any) -> httpx.Response:
        """Ask as Traefik and Caddy do: these are all their headers besides those of the client."""
        original = {"x-forwarded-method": method, "x-forwarded-uri": uri, "x-forwarded-for": client}
        proxied = {"x-forwarded-proto": "http", "x-forwarded-host": "shop.example"}
        return self.ask("GET", "/auth", headers={**original, **proxied, **with_hyphens(headers)})


def token_options(folder: Path) -> tuple[str, str]:
    """Write the token to a file that only its owner can read. Return the options of the service."""
    file = folder / "admin-token"
    file.touch(mode=0o600)
    file.write_text(TOKEN)
    return "--admin-token-file", str(file)


def with_hyphens(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return headers by their names. Those of ``raw`` stay as they are."""
    raw = headers.get("raw", {})
    return {name.replace("_", "-"): value for name, value in headers.items() if name != "raw"} | raw
