"""The dashboard as an ASGI application: its mount, its access and its limiter."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from ratelimit_mw import ConfigError, Limiter, MissingMiddlewareError, Rule
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


async def is_staff_async(request: Request) -> bool:
    return request.headers.get("x-staff") == "yes"


def is_staff(request: Request) -> bool:
    return request.headers.get("x-staff") == "yes"


@pytest.mark.parametrize("allow", [is_staff, is_staff_async])
def test_a_function_of_the_request_opens_the_page(allow: Callable[[Request], Any]) -> None:
    """It may be async, and it closes the page for this machine, too."""
    app = site(dashboard(limiter(), allow=allow))
    assert get(app).status_code == 403
    assert get(app, **{"X-Staff": "yes"}).status_code == 200


@pytest.mark.parametrize("answer", [None, 0, "", False])
def test_an_empty_answer_keeps_the_page_closed(answer: Any) -> None:
    """A function may return what ``user and user.is_staff`` returns."""
    assert get(site(dashboard(limiter(), allow=lambda _: answer))).status_code == 403


@pytest.mark.parametrize("answer", [1, "no", object()])
def test_another_answer_is_an_error(answer: Any) -> None:
    """A response or a text must not open the page."""
    with pytest.raises(ConfigError, match="expected True or False"):
        get(site(dashboard(limiter(), allow=lambda _: answer)))


def test_the_limiter_of_the_middleware_is_shown() -> None:
    """Without a limiter, the page needs a middleware."""
    with pytest.raises(MissingMiddlewareError):
        get(site(dashboard()))
    app = site(dashboard())
    app.add_middleware(RateLimitMiddleware, settings={"rules": [{"name": "mine", "limits": "9/minute"}]})
    assert "9/minute" in get(app).text


@pytest.mark.parametrize("root", ["", "/prefix"])
def test_the_page_works_in_a_mounted_application(root: str) -> None:
    """The root path of the server comes before those of the mounts."""
    inner, outer = FastAPI(), FastAPI()
    inner.mount("/ratelimit", dashboard(limiter()))
    outer.mount("/inner", inner)
    for path in ("/", "/data.json", "/static/icon.svg"):
        assert get(outer, f"{root}/inner/ratelimit{path}", root=root).status_code == 200, path


def test_the_path_of_the_request_may_lack_the_root_path() -> None:
    """A proxy has removed its prefix, which the server knows."""
    for path in ("/", "/data.json", "/static/icon.svg"):
        assert get(site(dashboard(limiter())), f"/ratelimit{path}", root="/prefix").status_code == 200, path


def test_a_websocket_is_closed() -> None:
    """The page has none."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(dashboard(limiter())({"type": "websocket"}, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


async def receive() -> Any:
    return {"type": "websocket.connect"}


def test_a_missing_library_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised when the application starts."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    templates.cache_clear()
    with pytest.raises(ImportError, match=r"ratelimit-mw\[dashboard\]"):
        dashboard(limiter())


@pytest.mark.parametrize("arguments", [{"limiter": "api"}, {"allow": True}])
def test_wrong_arguments_are_errors(arguments: dict[str, Any]) -> None:
    """They name the argument."""
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        dashboard(**arguments)


@pytest.mark.parametrize(("path", "outcomes"), [("/", ["allowed"]), ("/other", [])])
def test_a_rule_that_names_the_page_counts_it(path: str, outcomes: list[str]) -> None:
    """Without a rule of its own, the page sends no event."""
    events: list[Any] = []
    limiter = Limiter([Rule(name="page", match={"path": path}, limits="9/day")], observers=[events.append])
    app = RateLimitMiddleware(dashboard(limiter), limiter=limiter)
    assert get(app, "/").status_code == 200
    assert [event.outcome for event in events] == outcomes
