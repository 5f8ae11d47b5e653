"""One small application in each framework, whose views decide rules by name, call limited helpers and raise."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fastapi
import flask
import flask_calls
from calls import ask
from django.http import HttpResponse
from django.urls import re_path
from django_calls import project
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ratelimit_mw import Limiter, RateLimitExceeded, Rule
from ratelimit_mw import django as in_django
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.testing import ManualClock

RULES = [
    Rule(name="site", limits="100/minute"),
    Rule(name="post", limits="2/minute", key=["thread", "ip"], match={"view": ""}),
    Rule(name="mail", limits="2/minute", key=["email"], match={"view": ""}),
    Rule(name="failed", limits="2/minute", match={"view": ""}, count_when={"status": 401}),
    Rule(name="busy", limits="1 concurrent", match={"view": ""}),
]


def limiter() -> Limiter:
    return Limiter(RULES, clock=ManualClock(1_000_000.0))


own = Limiter([Rule(name="own", limits="1/hour")], clock=ManualClock(1_000_000.0))


def raise_own() -> None:
    """Raise a rejection of a limiter that no middleware knows."""
    own.hit({"ip": "192.0.2.7"})
    own.hit({"ip": "192.0.2.7"}).raise_for_limit()


Answer = tuple[int, str]


class Blocking:
    """The blocking ``check`` of a framework, with the form of the async one."""

    def __init__(self, check: Any, *request: Any) -> None:
        self._check = check
        self._request = request

    async def __call__(self, _: Any, *arguments: Any, **features: Any) -> Any:
        return self._check(*self._request, *arguments, **features)

    def __getattr__(self, name: str) -> Any:
        return Blocking(getattr(self._check, name), *self._request)


def blocking(module: Any, *request: Any) -> Any:
    return SimpleNamespace(check=Blocking(module.check, *request), usage=Blocking(module.usage, *request))


ASYNC_DJANGO = SimpleNamespace(check=in_django.acheck, usage=in_django.ausage)


def run(calls: Any, path: str, query: Any, helper: Callable[[], object]) -> Answer:
    """Do what the path says in a view that is not async."""

    async def ahelper() -> None:
        helper()

    try:
        arun(calls, None, path, query, ahelper).send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("nothing here waits")


async def arun(calls: Any, request: Any, path: str, query: Any, helper: Callable[[], Any]) -> Answer:
    """Do what the path says, and return status and text."""
    features = {name: query[name] for name in ("thread", "email") if name in query}
    rule, rules = query.get("rule", "post"), filter(None, query.get("rules", "").split(","))
    status = int(query.get("status", "200"))
    try:
        match path.rpartition("/")[2]:
            case "check":
                return status, str((await calls.check(request, rule, **features)).decisions[0].remaining)
            case "peek":
                return status, str((await calls.check.peek(request, rule, **features)).allowed)
            case "reset":
                _ = "status" in query and await calls.check(request, rule, **features)
                await calls.check.reset(request, rule, **features)
            case "usage":
                return status, json.dumps(await calls.usage(request, *rules, **features))
            case "settle":
                await calls.check(request, rule, **features)
                await calls.check.settle(request, rule, 0)
            case "helper":
                await helper()
            case "raise":
                raise_own()
    except RateLimitExceeded as error:
        if "catch" not in query:
            raise
        return status, f"caught {error.verdict.rejected_by[0].rule}"
    return status, "done"


class Site:
    """An application that is asked several times."""

    def __init__(self, limiter: Limiter, **options: Any) -> None:
        self.limiter = limiter
        self.options = options
        self.helper = self.new_helper()
        self.app = self.build()

    def new_helper(self) -> Any:
        return in_flask.limit("2/minute", name="helper", unrouted=True)(lambda: None)

    def build(self) -> Any:
        raise NotImplementedError

    def ask(self, path: str) -> Any:
        """Return the response, with ``status_code``, ``text`` and ``headers``."""
        raise NotImplementedError


class InFlask(Site):
    def build(self) -> Any:
        def view(action: str) -> Any:
            status, text = run(blocking(in_flask), action, flask.request.args, self.helper)
            return text, status

        return flask_calls.app_of(self.limiter, {"/<action>": view}, **self.options)

    def ask(self, path: str) -> Any:
        return flask_calls.ask(self.app, path)


class InDjango(Site):
    def build(self) -> Any:
        def view(request: Any) -> HttpResponse:
            status, text = run(
                blocking(in_django, request),
                request.path,
                request.GET,
                self.helper,
            )
            return HttpResponse(text, status=status)

        return view

    def ask(self, path: str) -> Any:
        source = {"limiter": self.limiter, **self.options}
        with project(source, re_path("", self.app), is_async=isinstance(self, InAsyncDjango)) as served:
            response = served.ask(path)
        response.text = response.content.decode()
        return response


class InAsyncDjango(InDjango):
    def new_helper(self) -> Any:
        return async_helper()

    def build(self) -> Any:
        async def view(request: Any) -> HttpResponse:
            status, text = await arun(ASYNC_DJANGO, request, request.path, request.GET, self.helper)
            return HttpResponse(text, status=status)

        return view


class InStarlette(Site):
    mounted = False

    def new_helper(self) -> Any:
        return async_helper()

    def build(self) -> Any:
        async def view(request: Request) -> PlainTextResponse:
            query = request.query_params
            status, text = await arun(in_starlette, request, request.url.path, query, self.helper)
            return PlainTextResponse(text, status)

        routes: list[Any] = [Route("/{action}", view)]
        app = Starlette(routes=[Mount("/", Starlette(routes=routes))] if self.mounted else routes)
        app.add_middleware(in_starlette.RateLimitMiddleware, limiter=self.limiter, **self.options)
        return app

    def ask(self, path: str) -> Any:
        return ask(self.app, path)


class InMounted(InStarlette):
    mounted = True


class InFastAPI(InStarlette):
    def build(self) -> Any:
        app = fastapi.FastAPI()
        app.add_middleware(in_fastapi.RateLimitMiddleware, limiter=self.limiter, **self.options)

        @app.get("/{action}")
        async def view(request: fastapi.Request) -> Any:
            query = request.query_params
            status, text = await arun(in_fastapi, request, request.url.path, query, self.helper)
            return fastapi.responses.PlainTextResponse(text, status)

        return app


def async_helper() -> Any:
    async def helper() -> None:
        pass

    return in_starlette.limit("2/minute", name="helper", unrouted=True)(helper)


SITES = {
    "flask": InFlask,
    "django": InDjango,
    "async django": InAsyncDjango,
    "starlette": InStarlette,
    "mounted": InMounted,
    "fastapi": InFastAPI,
}
