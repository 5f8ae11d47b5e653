"""The dashboard as an ASGI application: its mount, its access and its limiter."""

import asyncio
import sys
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from tables import expect_error

from ratelimit_mw import Event, Limiter, MissingMiddlewareError, Rule
from ratelimit_mw.dashboard import dashboard
from ratelimit_mw.dashboard.page import templates
from ratelimit_mw.http.token import start_token
from ratelimit_mw.starlette import RateLimitMiddleware


def limiter() -> Limiter:
    return Limiter([Rule(name="api", limits="2/minute")])


def get(app: Any, path: str = "/ratelimit/", root: str = "", **headers: str) -> httpx.Response:
    """Send a request with the password of this process."""
    headers = {"authorization": f"Bearer {start_token()}", **headers}

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, root_path=root, client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(send())


def site(page: Any) -> Starlette:
    return Starlette(routes=[Mount("/ratelimit", page)])


async def is_staff(request: Request) -> bool:
    return request.headers.get("x-staff") == "yes"


def test_only_true_of_your_function_opens_the_page() -> None:
    """It may be async, and may return what ``user and user.is_staff`` returns. A response or a text is an error."""
    app = site(dashboard(limiter(), allow=is_staff))
    assert [get(app).status_code, get(app, **{"X-Staff": "yes"}).status_code] == [403, 200]
    for answer in (None, 0, "", False):
        assert get(site(dashboard(limiter(), allow=lambda _, answer=answer: answer))).status_code == 403, answer
    for wrong in (1, "no", object()):
        expect_error("expected True or False", get, site(dashboard(limiter(), allow=lambda _, answer=wrong: answer)))


def test_the_limiter_of_the_middleware_is_shown() -> None:
    """Without a limiter, the page needs a middleware. Its requests have events only where a rule decides them."""
    with pytest.raises(MissingMiddlewareError):
        get(site(dashboard()))
    for match, events in ({}, 0), ({"path": "/ratelimit/**"}, 1):
        app, seen = site(dashboard()), list[Event]()
        rules = {"rules": [{"name": "mine", "limits": "9/minute", "match": match}]}
        app.add_middleware(RateLimitMiddleware, settings=rules, observers=[seen.append])
        assert ("9/minute" in get(app).text, len(seen)) == (True, events)


def test_the_page_works_in_a_mounted_application() -> None:
    """The root path of the server comes before those of the mounts. A proxy may have removed it from the path."""
    inner, outer = FastAPI(), FastAPI()
    inner.mount("/ratelimit", dashboard(limiter()))
    outer.mount("/inner", inner)
    alone = site(dashboard(limiter()))
    for path in ("/", "/data.json", "/static/icon.svg"):
        assert get(outer, f"/inner/ratelimit{path}").status_code == 200, path
        assert get(outer, f"/prefix/inner/ratelimit{path}", root="/prefix").status_code == 200, path
        assert get(alone, f"/ratelimit{path}", root="/prefix").status_code == 200, path


def test_a_websocket_is_closed() -> None:
    """The page has none."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(dashboard(limiter())({"type": "websocket"}, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


async def receive() -> Any:
    return {"type": "websocket.connect"}


def test_wrong_arguments_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """They name the argument. A missing library is an error of the start, too, which names the extra."""
    for arguments in ({"limiter": "api"}, {"allow": True}, {"writes": 1}):
        expect_error(next(iter(arguments)), dashboard, **arguments)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    templates.cache_clear()
    with pytest.raises(ImportError, match=r"ratelimit-mw\[dashboard\]"):
        dashboard(limiter())
