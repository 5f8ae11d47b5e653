"""One application in every framework whose path says its outcome, for the tests of ``count_when`` and ``cost_from``.

``/200`` responds with this status. ``/200/mark`` marks the request for the rule ``login`` before the response starts,
``/200/late`` in the middle of its body. ``/200/raise`` raises an error after the mark, ``/200/fail`` without one, and
``/200/stream`` streams. ``/200/used=150`` has the header ``X-Tokens-Used: 150``, and
``/200/stream=150`` streams with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import calls
import flask
import flask_calls
import httpx
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path as django_path
from django_calls import project
from fastapi import Depends, FastAPI
from fastapi.responses import Response as FastResponse
from fastapi.responses import StreamingResponse as FastStream
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ratelimit_mw import Limiter, Verdict
from ratelimit_mw import django as of_django
from ratelimit_mw import flask as of_flask
from ratelimit_mw import starlette as of_starlette
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

from rest_framework.views import APIView  # isort: skip
from ratelimit_mw.django.drf import Throttle  # isort: skip

Ask = Callable[[Limiter, dict[str, Any], str, str], Any]
PATH = "/{status}/{how}"


def act(verdict: Verdict, how: str) -> None:
    """Do what a path says before the response starts."""
    if how in ("mark", "raise"):
        verdict["login"].count()
    if how in ("raise", "fail"):
        raise ZeroDivisionError


def parts(verdict: Verdict, how: str) -> Iterator[bytes]:
    yield b"hello"
    if how == "late":
        verdict["login"].count()
    yield b"bye"


async def aparts(verdict: Verdict, how: str) -> AsyncIterator[bytes]:
    for part in parts(verdict, how):
        yield part


def streams(how: str) -> bool:
    return how.partition("=")[0] in ("late", "stream")


def headers(how: str) -> dict[str, str]:
    """Return the headers of the response: one line for each text between commas."""
    _, equals, used = how.partition("=")
    return {"X-Tokens-Used": used, "X-Other": "kept"} if equals else {}


def split(path: str) -> tuple[int, str]:
    """Return the status and the word of a path."""
    _, status, how = path.split("/")
    return int(status), how


# -- the frameworks -------------------------------------------------------------------------------------------


def raw(how: str) -> Iterator[tuple[bytes, bytes]]:
    """Return the headers as an ASGI application may send them: an iterable that is read once."""
    return ((name.lower().encode(), value.encode()) for name, value in headers(how).items())


def asgi_app(limiter: Limiter, _: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        status, how = split(scope["path"])
        verdict = scope["state"]["ratelimit"]
        act(verdict, how)
        await send({"type": "http.response.start", "status": status, "headers": raw(how)})
        body = b"" if scope["method"] == "HEAD" else b"".join(parts(verdict, how))
        await send({"type": "http.response.body", "body": body})

    return RateLimitMiddleware(app, limiter=limiter)


def starlette_app(limiter: Limiter, marks: Any) -> Any:
    async def view(request: Request) -> Response:
        status, how = split(request.url.path)
        act(request.state.ratelimit, how)
        if streams(how):
            return StreamingResponse(aparts(request.state.ratelimit, how), status, headers(how))
        return Response("hello", status, headers(how))

    marked = of_starlette.limit(**marks)(view) if marks else view
    app = Starlette(routes=[Route(PATH, marked, methods=["GET", "HEAD", "POST"])])
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    return app


def fastapi_app(limiter: Limiter, marks: Any, dependency: bool = False, late: bool = False) -> Any:
    options = {**marks, "features": {"user": lambda: "ann"}, "key": ["user"]} if late else marks
    dependencies = [Depends(RateLimit(**options))] if dependency else []
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=limiter)

    @app.api_route(PATH, methods=["GET", "HEAD", "POST"], dependencies=dependencies)
    def view(request: Request, status: int, how: str) -> Any:
        act(request.state.ratelimit, how)
        if streams(how):
            return FastStream(parts(request.state.ratelimit, how), status, headers(how))
        return FastResponse("hello", status, headers(how))

    return app


def wsgi_app(limiter: Limiter, _: Any) -> Any:
    def app(environ: Any, start_response: Any) -> Any:
        status, how = split(environ["PATH_INFO"])
        verdict = environ["ratelimit_mw.verdict"]
        act(verdict, how)
        start_response(f"{status} Some", list(headers(how).items()))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else parts(verdict, how)

    return WSGIMiddleware(app, limiter=limiter)


def flask_app(limiter: Limiter, marks: Any) -> Any:
    def view(status: int, how: str) -> Any:
        verdict = flask.g.ratelimit
        act(verdict, how)
        return flask.Response(parts(verdict, how) if streams(how) else "hello", status, headers(how))

    marked = of_flask.limit(**marks)(view) if marks else view
    return flask_calls.app_of(limiter, {"/<int:status>/<how>": marked})


def django_view(request: Any, status: int, how: str) -> Any:
    act(request.ratelimit, how)
    if streams(how):
        return StreamingHttpResponse(parts(request.ratelimit, how), status=status, headers=headers(how))
    return HttpResponse("hello", status=status, headers=headers(how))


async def adjango_view(request: Any, status: int, how: str) -> Any:
    act(request.ratelimit, how)
    if streams(how):
        return StreamingHttpResponse(aparts(request.ratelimit, how), status=status, headers=headers(how))
    return HttpResponse("hello", status=status, headers=headers(how))


class RestView(APIView):  # type: ignore[misc] # REST framework has no types
    throttle_classes = (Throttle,)
    throttle_scope = "login"
    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Any, **options: Any) -> Any:
        return django_view(request._request, **options)

    head = post = get


# -- requests -------------------------------------------------------------------------------------------------


def ask_asgi(build: Callable[..., Any], **options: Any) -> Ask:
    def ask(limiter: Limiter, marks: dict[str, Any], path: str, method: str) -> Any:
        app = build(limiter, marks, **options)

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=app, client=(calls.CLIENT, 1234), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=calls.URL) as session:
                return await session.request(method, path)

        return asyncio.run(send())

    return ask


def ask_wsgi(limiter: Limiter, marks: dict[str, Any], path: str, method: str) -> Any:
    try:
        return calls.ask_wsgi(wsgi_app(limiter, marks), path, method)
    except ZeroDivisionError:
        return SimpleNamespace(status_code=500, headers={})


def ask_flask(limiter: Limiter, marks: dict[str, Any], path: str, method: str) -> Any:
    app = flask_app(limiter, marks)
    app.testing = False
    with app.test_client().open(path, method=method, environ_base={"REMOTE_ADDR": calls.CLIENT}) as response:
        response.get_data()
        return response


def ask_django(is_async: bool, is_rest: bool = False) -> Ask:
    def ask(limiter: Limiter, marks: dict[str, Any], path: str, method: str) -> Any:
        view: Any = adjango_view if is_async else django_view
        view = RestView.as_view() if is_rest else of_django.limit(**marks)(view) if marks else view
        with ExitStack() as stack:
            served = stack.enter_context(project(limiter, django_path("<int:status>/<how>", view), is_async=is_async))
            if not is_async:
                response = served.ask(path, method)
                b"".join(response.streaming_content) if response.streaming else None
                response.close()
                return response

            async def send() -> Any:
                response = await served.aask(path, method)
                if response.streaming:
                    async for _ in response.streaming_content:
                        pass
                response.close()
                await limiter.aclose()  # waits for a cost that is charged after the end
                return response

            return asyncio.run(send())

    return ask


BY_SETTINGS: dict[str, Ask] = {
    "asgi": ask_asgi(asgi_app),
    "starlette": ask_asgi(starlette_app),
    "fastapi": ask_asgi(fastapi_app),
    "wsgi": ask_wsgi,
    "flask": ask_flask,
    "django": ask_django(is_async=False),
    "async-django": ask_django(is_async=True),
}
BY_VIEW: dict[str, Ask] = {
    "starlette": BY_SETTINGS["starlette"],
    "fastapi": ask_asgi(fastapi_app, dependency=True),
    "fastapi-late": ask_asgi(fastapi_app, dependency=True, late=True),
    "flask": BY_SETTINGS["flask"],
    "django": BY_SETTINGS["django"],
    "async-django": BY_SETTINGS["async-django"],
}
"""The rule is that of a decorator or a dependency."""

REST: Ask = ask_django(is_async=False, is_rest=True)
