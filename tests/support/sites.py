"""The same site in each framework, called in process: the tests of ``tests/frameworks/`` state each behaviour once.

    def test_only_failed_logins_count(site: Build) -> None:
        served = site([Rule(limits="3/minute", count_when={"status": 401})], {"/login": wrong})
        assert served.statuses(4, "POST", "/login") == [401, 401, 401, 429]

A view is one ``async def`` for all frameworks. It takes a ``Call`` and returns a ``Reply``, a status or a text. In a
sync framework it runs without an event loop, so it awaits only what ``Call`` and ``Site`` offer. A view that always
gives one answer is that answer: ``{"/login": 401}``. Paths may have parameters: ``/items/{number}``.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_to_bytes
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import flask
import httpx
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path as django_path
from django_calls import project
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ratelimit_mw import Limiter, Rule, Verdict, load_settings
from ratelimit_mw import asgi as of_asgi
from ratelimit_mw import django as of_django
from ratelimit_mw import fastapi as of_fastapi
from ratelimit_mw import flask as of_flask
from ratelimit_mw import starlette as of_starlette
from ratelimit_mw import wsgi as of_wsgi
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.testing import ManualClock

from rest_framework.views import APIView  # isort: skip
from ratelimit_mw.django.drf import Throttle  # isort: skip

CLIENT = "192.0.2.7"
NOW = 1_000_000.0
URL = "http://testserver"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


@dataclass
class Reply:
    """What a view responds. An async iterator of bytes as the body streams."""

    status: int = 200
    body: str | AsyncIterator[bytes] = "hello"
    headers: Sequence[tuple[str, str]] = ()

    @property
    def streams(self) -> bool:
        return not isinstance(self.body, str)

    async def parts(self, method: str) -> AsyncIterator[bytes]:
        """Yield the body as bytes: none for a HEAD request."""
        if isinstance(self.body, str):
            if method != "HEAD":
                yield self.body.encode()
            return
        async for part in self.body:
            yield part


async def act(call: Call) -> Reply:
    """Do what the query says, such as ``/?status=401&stream``.

    ``cost=4`` settles the cost, ``mark`` counts the request for the rule ``login``, and ``fail`` raises an error.
    ``stream`` streams, and ``late`` marks in the middle of the stream. ``used=150`` is the header ``X-Tokens-Used``.
    """
    query = call.query
    if "mark" in query:
        call.verdict["login"].count()
    if "cost" in query:
        for rule in call.verdict.rules:
            call.verdict[rule].settle(int(query["cost"]))
    if "fail" in query:
        raise ZeroDivisionError

    async def parts() -> AsyncIterator[bytes]:
        yield b"hello"
        if "late" in query:
            call.verdict["login"].count()
        yield b"bye"

    headers = [("X-Tokens-Used", query["used"]), ("X-Other", "kept")] if "used" in query else []
    return Reply(int(query.get("status", 200)), parts() if {"stream", "late"} & query.keys() else "hello", headers)


class Bound:
    """``check`` or ``usage`` of a framework for one request. It is awaited in a sync framework, too."""

    def __init__(self, function: Any, *request: Any) -> None:
        self._function, self._request = function, request

    async def __call__(self, *arguments: Any, **features: Any) -> Any:
        found = self._function(*self._request, *arguments, **features)
        return await found if inspect.isawaitable(found) else found

    def __getattr__(self, name: str) -> Any:
        return Bound(getattr(self._function, name), *self._request)


@dataclass
class Call:
    """One request, as its view sees it."""

    site: Site
    native: Any
    """The request of the framework: a scope, an environ or its object."""
    shown: Callable[[], Verdict]
    path: str
    query: Mapping[str, str]
    parameters: Mapping[str, str] = field(default_factory=dict)
    check: Any = None
    """``await call.check("rule", feature="value")``, and ``check.reset``."""
    usage: Any = None
    body: Callable[[], Any] = bytes

    @property
    def verdict(self) -> Verdict:
        """The verdict that the framework shows now, with the checks of the view."""
        return self.shown()

    async def read(self) -> bytes:
        """Return the body of the request."""
        found = self.body()
        return await found if inspect.isawaitable(found) else found  # type: ignore[no-any-return]

    async def meet(self) -> None:
        """Wait until each other call of ``at_once`` has come here or has its response."""
        await self.site.meet()


View = Callable[[Call], Awaitable["Reply | int | str"]] | Reply | int | str
Replying = Callable[[Any], Coroutine[Any, Any, Reply]]


@dataclass
class Marked:
    """A view with decorators, which plain ASGI and WSGI do not have."""

    view: Any
    marks: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]


def limited(view: View | Marked, *limits: Any, **options: Any) -> Marked:
    """Return the view with the decorator ``limit`` of the framework."""
    inner = view if isinstance(view, Marked) else Marked(view, ())
    return Marked(inner.view, (*inner.marks, ("limit", limits, options)))


def exempt(view: View | Marked, *rules: str) -> Marked:
    """Return the view with the decorator ``exempt`` of the framework."""
    inner = view if isinstance(view, Marked) else Marked(view, ())
    return Marked(inner.view, (*inner.marks, ("exempt", rules, {})))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in which nothing waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a view in a sync framework has awaited an event loop")


def blocking(parts: Any) -> Iterator[bytes]:
    """Iterate an async iterator in which nothing waits for an event loop."""
    try:
        while True:
            yield run(parts.__anext__())
    except StopAsyncIteration:
        return
    finally:
        run(parts.aclose())


class Site:
    """An application with limits. Each framework has a subclass.

    Args:
        rules: Rules, one rule, settings as a dictionary, a limiter, or the path of a file, which the middleware reads.
        views: The views by path, or the view of ``/``. One view has several paths: ``{"/a /b": 200}``.
        store: The store of the limiter.
        observers: The observers of the limiter.
        outer: The limiter or the options of another middleware, around this one.
        between: Builds middleware of the protocol between both.
        **options: Options of the middleware, such as ``features``, ``rejection`` and ``headers``.
    """

    of: Any
    """The module of the framework: ``ratelimit_mw.flask``. It has ``limit``, ``exempt`` and ``check``."""

    def __init__(
        self,
        rules: Any = (),
        views: Mapping[str, View | Marked] | View | Marked = 200,
        *,
        store: Any = "memory://",
        observers: Sequence[Any] = (),
        outer: Limiter | dict[str, Any] | None = None,
        between: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        self.clock = ManualClock(NOW)
        if isinstance(rules, dict):
            rules = Limiter.from_settings(load_settings(rules), clock=self.clock, observers=observers)
        elif not isinstance(rules, Limiter | Path):
            listed = [rules] if isinstance(rules, Rule) else rules
            rules = Limiter(listed, store, self.clock, observers=observers)
        self.limits = {"settings" if isinstance(rules, Path) else "limiter": rules}
        self.limiter, self.options = rules, options
        self.views = views if isinstance(views, dict) else {"/": views}
        self._expected = self._met = 0
        self._changed = threading.Condition()
        with ExitStack() as self.stack:
            if isinstance(rules, Limiter):
                self.stack.callback(rules.close)
            self.app = self.build()
            if outer is not None:
                self.app = self.inside(outer if isinstance(outer, dict) else {"limiter": outer}, between)
            self.stack = self.stack.pop_all()  # a site that cannot be built leaves nothing open

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    # -- what a test calls -------------------------------------------------------------------------------------

    def call(self, method: str = "GET", path: str = "/", client: str | None = CLIENT, **request: Any) -> httpx.Response:
        """Send a request of httpx (``headers``, ``json``, ``params``...), and return when all of it has ended.

        ``response.extensions["error"]`` is the error that reached the server; the response is then a 500. ``seen`` is
        a function that is called with each part of the body that the client has received.
        """
        raise NotImplementedError

    async def acall(
        self, method: str = "GET", path: str = "/", client: str | None = CLIENT, **request: Any
    ) -> httpx.Response:
        """Send a request inside another one: ``await call.site.acall(...)`` in a view."""
        raise NotImplementedError

    def statuses(self, times: int, method: str = "GET", path: str = "/", **request: Any) -> list[int]:
        """Send the same request several times, one after another."""
        return [self.call(method, path, **request).status_code for _ in range(times)]

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run what a view awaits, outside a request."""
        raise NotImplementedError

    def at_once(self, times: int, method: str = "GET", path: str = "/", **request: Any) -> list[int]:
        """Send requests at the same time, in threads or on one event loop, and return the sorted statuses."""
        self._expected, self._met = times, 0
        return sorted(response.status_code for response in self._at_once(times, (method, path), request))

    def left(self, **features: str) -> list[int]:
        """Return what is left of each limit of each rule, those of decorators included, for a client."""
        plan = Plan(self.limiter.rules.rules)
        verdict = self.limiter.decide(plan, {"ip": CLIENT, **features}, 0, consume=False)
        return [each.remaining for each in verdict.decisions]

    def start(self) -> None:
        """Raise the error that stops the start of the application, or each request."""
        if (error := self.call().extensions["error"]) is not None:
            raise error

    # -- what an adapter says ----------------------------------------------------------------------------------

    def build(self) -> Any:
        """Return the ASGI or WSGI application."""
        raise NotImplementedError

    def inside(self, outer: dict[str, Any], between: Any) -> Any:
        """Return the application inside another middleware."""
        raise NotImplementedError

    def see(self, native: Any) -> Call:
        """Return a request of the framework as a ``Call``."""
        raise NotImplementedError

    def _at_once(self, times: int, line: tuple[str, str], request: dict[str, Any]) -> Sequence[httpx.Response]:
        raise NotImplementedError

    async def meet(self) -> None:
        raise NotImplementedError

    def endpoints(self, make: Callable[[Replying], Any]) -> dict[str, Any]:
        """Return the views as functions of the framework with their decorators, by path.

        ``make`` receives an async function of a request of the framework, which returns the ``Reply``.
        """
        found = {}
        for paths, view in self.views.items():
            marked = view if isinstance(view, Marked) else Marked(view, ())
            endpoint = make(self._replying(marked.view, paths))
            for name, arguments, options in marked.marks:
                endpoint = self.mark(endpoint, name, arguments, options)
            found |= dict.fromkeys(paths.split(), endpoint)
        return found

    def mark(self, endpoint: Any, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return a view with the decorator of this name."""
        return getattr(self.of, name)(*arguments, **options)(endpoint)

    def _replying(self, view: Any, template: str) -> Replying:
        async def reply(native: Any) -> Reply:
            if not callable(view):
                return reply_of(view)
            call = self.see(native)
            matched = next(filter(None, (pattern_of(path).fullmatch(call.path) for path in template.split())), None)
            call.parameters = matched.groupdict() if matched else {}
            return reply_of(await view(call))

        return reply

    def replying_at(self, path: str) -> Replying:
        """Return the view of a path, where no framework finds it."""
        for template, reply in self._replies.items():
            if pattern_of(template).fullmatch(path):
                return reply
        return self._replying(404, path)


def pattern_of(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template))


def name_of(template: str) -> str:
    """Return the name of a route: ``items-number`` for ``/items/{number}``."""
    return "-".join(re.findall(r"\w+", template)) or "home"


def reply_of(found: Reply | int | str) -> Reply:
    return found if isinstance(found, Reply) else Reply(found) if isinstance(found, int) else Reply(body=found)


# -- the protocols ---------------------------------------------------------------------------------------------


class ASGISite(Site):
    """A site behind ASGI, on an event loop of its own. Also the site of a plain application."""

    of = of_asgi

    def build(self) -> Any:
        self._replies = self.endpoints(lambda reply: reply)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            reply = await self.replying_at(scope["path"])(scope | {"receive": receive})
            headers = [(name.lower().encode(), value.encode()) for name, value in reply.headers]
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            async for part in reply.parts(scope["method"]):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body"})

        return of_asgi.RateLimitMiddleware(app, **self.limits, **self.options)

    def inside(self, outer: dict[str, Any], between: Any) -> Any:
        if not hasattr(self.app, "add_middleware"):
            return of_asgi.RateLimitMiddleware(between(self.app) if between else self.app, **outer)
        if between:
            self.app.add_middleware(between)
        self.app.add_middleware(of_asgi.RateLimitMiddleware, **outer)
        return self.app

    def see(self, native: Any) -> Call:
        return self.see_scope(native, Request(native, native.get("receive")))

    def see_scope(self, scope: Any, request: Any) -> Call:
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        found = Call(self, request, lambda: scope["state"]["ratelimit"], scope["path"], query)
        found.check, found.usage = Bound(of_starlette.check, request), Bound(of_starlette.usage, request)
        found.body = request.body
        return found

    @cached_property
    def loop(self) -> asyncio.Runner:
        return self.stack.enter_context(asyncio.Runner())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(coroutine)

    def call(self, method: str = "GET", path: str = "/", client: str | None = CLIENT, **request: Any) -> httpx.Response:
        return self._at_once(1, (method, path), {"client": client, **request})[0]

    def _at_once(self, times: int, line: tuple[str, str], request: dict[str, Any]) -> Sequence[httpx.Response]:
        async def scenario() -> Sequence[httpx.Response]:
            found = await asyncio.gather(*(self._counted(*line, **request) for _ in range(times)))
            while later := asyncio.all_tasks() - {asyncio.current_task()}:  # a cost that is settled afterwards
                await asyncio.wait(later)
            return found

        return self.loop.run(scenario())

    async def _counted(self, *line: str, **request: Any) -> httpx.Response:
        try:
            return await self.acall(*line, **request)
        finally:
            self._met += 1

    async def meet(self) -> None:
        self._met += 1
        while self._met < self._expected:
            await asyncio.sleep(0)

    async def acall(
        self, method: str = "GET", path: str = "/", client: str | None = CLIENT, seen: Any = None, **request: Any
    ) -> httpx.Response:
        sent = httpx.Request(method, URL + path, **request)
        has_ended, waiting = asyncio.Event(), [sent.read()]
        starts: list[Any] = []
        body = bytearray()

        async def receive() -> Any:
            if waiting:
                return {"type": "http.request", "body": waiting.pop(), "more_body": False}
            await has_ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                assert all(type(text) is bytes for header in message.get("headers", ()) for text in header)
                starts.append(message)
            else:
                body.extend(message.get("body", b""))
                _ = seen and seen(message.get("body", b""))

        error: Exception | None = None
        try:
            await self.app({**scope_of(sent, client), "method": method}, receive, send)
        except Exception as raised:
            error = raised
        has_ended.set()
        start = starts[0] if starts else {"status": 500, "headers": ()}
        return response_of(start["status"], start.get("headers", ()), body, error)


class WSGISite(Site):
    """A site behind WSGI, with a validator on the side of the server. Also the site of a plain application."""

    of = of_wsgi

    def build(self) -> Any:
        self._replies = self.endpoints(lambda reply: reply)

        def app(environ: Any, start_response: Any) -> Any:
            reply = run(self.replying_at(environ["PATH_INFO"])(environ))
            start_response(f"{reply.status} Status", [("Content-Type", "text/plain"), *reply.headers])
            parts = reply.parts(environ["REQUEST_METHOD"])
            return blocking(parts) if reply.streams else [*blocking(parts)]

        return of_wsgi.RateLimitMiddleware(validator(app), **self.limits, **self.options)

    def inside(self, outer: dict[str, Any], between: Any) -> Any:
        return of_wsgi.RateLimitMiddleware(between(self.app) if between else self.app, **outer)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return run(coroutine)

    def see(self, native: Any) -> Call:
        def body() -> bytes:
            return native["wsgi.input"].read(int(native.get("CONTENT_LENGTH") or 0))  # type: ignore[no-any-return]

        check = Bound(of_wsgi.check, native)
        return self.see_environ(native, lambda: native["ratelimit_mw.verdict"], native, check, body=body)

    def see_environ(self, environ: Any, shown: Callable[[], Verdict], native: Any, check: Bound, **more: Any) -> Call:
        path = environ["PATH_INFO"].encode("latin-1").decode()
        query = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        return Call(self, native, shown, path, query, check=check, **more)

    def _at_once(self, times: int, line: tuple[str, str], request: dict[str, Any]) -> Sequence[httpx.Response]:
        begin = threading.Barrier(times)

        def counted(_: int) -> httpx.Response:
            begin.wait()
            try:
                return self.call(*line, **request)
            finally:
                self._count()

        with ThreadPoolExecutor(times) as pool:
            return list(pool.map(counted, range(times)))

    def _count(self) -> None:
        with self._changed:
            self._met += 1
            self._changed.notify_all()

    async def meet(self) -> None:
        self._count()
        with self._changed:
            self._changed.wait_for(lambda: self._met >= self._expected)

    async def acall(
        self, method: str = "GET", path: str = "/", client: str | None = CLIENT, **request: Any
    ) -> httpx.Response:
        return self.call(method, path, **request)

    def call(
        self, method: str = "GET", path: str = "/", client: str | None = CLIENT, seen: Any = None, **request: Any
    ) -> httpx.Response:
        started: list[tuple[str, list[tuple[str, str]]]] = []
        received, error = bytearray(), None

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            started[:] = [(status, headers)]
            return received.extend

        parts: Any = ()
        try:
            environ = environ_of(httpx.Request(method, URL + path, **request), client)
            parts = validator(self.app)({**environ, "REQUEST_METHOD": method}, start_response)
            for part in parts:
                received.extend(part)
                _ = seen and seen(part)
        except Exception as raised:
            error = raised
        finally:
            getattr(parts, "close", lambda: None)()
        status, headers = started[0] if started else ("500", [])
        return response_of(int(status[:3]), headers, received, error)


def scope_of(request: httpx.Request, client: str | None) -> dict[str, Any]:
    path = request.url.raw_path.partition(b"?")[0]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path.decode()),
        "raw_path": path,
        "query_string": request.url.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": client and (client, 1234),
        "server": ("testserver", 80),
    }


def environ_of(request: httpx.Request, client: str | None) -> dict[str, Any]:
    path, body = request.url.raw_path.partition(b"?")[0], request.read()
    environ = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in request.headers.items()}
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if (value := environ.pop(f"HTTP_{name}", None)) is not None:
            environ[name] = value
    environ |= {"REMOTE_ADDR": client or "", "QUERY_STRING": request.url.query.decode()}
    environ |= {"PATH_INFO": unquote_to_bytes(path).decode("latin-1"), "SCRIPT_NAME": "", "SERVER_PROTOCOL": "HTTP/1.1"}
    found: dict[str, Any] = {**environ, "wsgi.input": io.BytesIO(body)}
    setup_testing_defaults(found)
    return found


def response_of(status: int, headers: Any, body: bytes | bytearray, error: Exception | None) -> httpx.Response:
    return httpx.Response(status, headers=list(headers), content=bytes(body), extensions={"error": error})


# -- the frameworks --------------------------------------------------------------------------------------------


class StarletteSite(ASGISite):
    """Starlette, with async views."""

    of: Any = of_starlette

    def build(self) -> Any:
        app = self.application(self.endpoints(self._endpoint))
        app.add_middleware(self.of.RateLimitMiddleware, **self.limits, **self.options)
        return app

    def application(self, endpoints: dict[str, Any]) -> Any:
        routes = [Route(path, endpoint, methods=METHODS, name=name_of(path)) for path, endpoint in endpoints.items()]
        return Starlette(routes=routes)

    def see(self, native: Any) -> Call:
        return self.see_scope(native.scope, native)

    @staticmethod
    def _endpoint(replying: Replying) -> Any:
        async def endpoint(request: Request) -> Response:
            reply = await replying(request)
            form = StreamingResponse(reply.body) if reply.streams else Response(reply.body)
            form.status_code = reply.status
            for name, value in reply.headers:
                form.headers.append(name, value)
            return form

        return endpoint


class FastAPISite(StarletteSite):
    """FastAPI, with async views."""

    of = of_fastapi

    def application(self, endpoints: dict[str, Any]) -> Any:
        app = FastAPI()
        for path, endpoint in endpoints.items():
            dependencies = getattr(endpoint, "dependencies", ())
            more = {"dependencies": dependencies, "response_model": None, "name": name_of(path)}
            app.add_api_route(path, endpoint, methods=METHODS, **more)
        return app


class DependencySite(FastAPISite):
    """FastAPI, whose views have a dependency ``RateLimit`` instead of the decorator ``limit``."""

    def mark(self, endpoint: Any, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name != "limit":
            return super().mark(endpoint, name, arguments, options)
        dependency = Depends(of_fastapi.RateLimit(*arguments, **options))
        endpoint.dependencies = [*getattr(endpoint, "dependencies", ()), dependency]
        return endpoint


class FlaskSite(WSGISite):
    """Flask. A view streams in the context of its request."""

    of = of_flask

    def build(self) -> Any:
        app, names = flask.Flask("site"), dict[int, str]()
        for path, endpoint in self.endpoints(self._endpoint).items():
            rule, name = path.replace("{", "<").replace("}", ">"), names.setdefault(id(endpoint), name_of(path))
            app.add_url_rule(rule, name, endpoint, methods=METHODS)
        of_flask.RateLimiter(app, **self.limits, **self.options)
        self.flask = app
        return app.wsgi_app

    def start(self) -> None:
        of_flask.RateLimiter().check(self.flask)

    def see(self, native: Any) -> Call:
        more = {"usage": Bound(of_flask.usage), "body": native.get_data}
        return self.see_environ(native.environ, lambda: flask.g.ratelimit, native, Bound(of_flask.check), **more)

    @staticmethod
    def _endpoint(replying: Replying) -> Any:
        def endpoint(**_: Any) -> flask.Response:
            reply = run(replying(flask.request))
            body = flask.stream_with_context(blocking(reply.body)) if reply.streams else reply.body
            return flask.Response(body, reply.status, list(reply.headers))

        return endpoint


class Project:
    """A Django project. One is open at a time."""

    of = of_django
    stack: ExitStack

    def serve(self: Any, handler: Any, endpoint: Any) -> Any:
        options = self.options
        django = {name: options.pop(name) for name in [*options] if name.isupper() or name == "middleware"}
        urls = [
            django_path(path[1:].replace("{", "<").replace("}", ">"), view, name=name_of(path))
            for path, view in self.endpoints(endpoint).items()
        ]
        self.stack.enter_context(project({**self.limits, **options}, *urls, **django))
        return handler()


def django_response(reply: Reply, body: Any) -> Any:
    kind = StreamingHttpResponse if reply.streams else HttpResponse
    response = kind(body, status=reply.status)
    for name, value in reply.headers:
        response[name] = value
    return response


class DjangoSite(Project, WSGISite):
    """Django behind WSGI, with sync views. Options in capitals are settings of Django."""

    def build(self) -> Any:
        return self.serve(WSGIHandler, self.view)

    def view(self, replying: Replying) -> Any:
        def view(request: Any, **_: Any) -> Any:
            reply = run(replying(request))
            return django_response(reply, blocking(reply.body) if reply.streams else reply.body)

        return view

    def see(self, native: Any) -> Call:
        more = {"usage": Bound(of_django.usage, native), "body": lambda: native.body}
        return self.see_environ(native.META, lambda: native.ratelimit, native, Bound(of_django.check, native), **more)


class RestSite(DjangoSite):
    """Django REST framework with a throttle, for rules with ``match={"scope": "login"}``."""

    def view(self, replying: Replying) -> Any:
        inner = super().view(replying)

        class View(APIView):  # type: ignore[misc] # REST framework has no types
            throttle_classes, throttle_scope = (Throttle,), "login"
            authentication_classes = permission_classes = ()

            def get(self, request: Any, **options: Any) -> Any:
                return inner(request._request, **options)

            head = post = get

        return View.as_view()


class AsyncDjangoSite(Project, ASGISite):
    """Django behind ASGI, with async views."""

    def build(self) -> Any:
        site = self

        class Handler(ASGIHandler):  # type: ignore[misc] # Django has no types
            """Close the body of a request at the end of the test: Django does not, when a stream fails."""

            async def read_body(self, receive: Any) -> Any:
                return site.stack.enter_context(await super().read_body(receive))

        def make(replying: Replying) -> Any:
            async def view(request: Any, **_: Any) -> Any:
                reply = await replying(request)
                return django_response(reply, reply.body)

            return view

        return self.serve(Handler, make)

    def see(self, native: Any) -> Call:
        found = Call(self, native, lambda: native.ratelimit, native.path, native.GET.dict())
        found.check, found.usage = Bound(of_django.acheck, native), Bound(of_django.ausage, native)
        found.body = lambda: native.body
        return found


SITES: dict[str, type[Site]] = {
    "asgi": ASGISite,
    "wsgi": WSGISite,
    "starlette": StarletteSite,
    "fastapi": FastAPISite,
    "flask": FlaskSite,
    "django": DjangoSite,
    "async django": AsyncDjangoSite,
}
PLAIN, BY_ASGI = {"asgi", "wsgi"}, {"asgi", "starlette", "fastapi", "async django"}
DECORATED: dict[str, type[Site]] = {name: kind for name, kind in SITES.items() if name not in PLAIN}
DECORATED |= {"dependencies": DependencySite}
"""The sites whose views have limits of their own."""


@dataclass
class Build:
    """The fixture ``site``: it builds sites of one framework, and closes them at the end of the test."""

    name: str
    """A key of ``SITES``."""
    kind: Callable[..., Site]
    stack: ExitStack

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.stack.enter_context(self.kind(*arguments, **options))


def _by_settings(kind: type[Site], rule: dict[str, Any], view: View, **options: Any) -> Site:
    if kind is RestSite:
        rule = {**rule, "match": {"scope": "login"}}
    return kind(Rule(**rule), view, **options)


def _by_view(kind: type[Site], rule: dict[str, Any], view: View, **options: Any) -> Site:
    return kind([], limited(view, **rule), **options)


PLACES: dict[str, Callable[..., Site]] = {
    **{f"{name} by settings": partial(_by_settings, kind) for name, kind in SITES.items()},
    **{f"{name} by view": partial(_by_view, kind) for name, kind in SITES.items() if name not in PLAIN},
    "fastapi by dependency": partial(_by_view, DependencySite),
    "rest framework": partial(_by_settings, RestSite),
}
"""Where a rule may stand. The fixture ``place`` builds each with the options of a rule and the view of ``/``."""


def only(names: Iterable[str]) -> pytest.MarkDecorator:
    """Return a mark for tests of these frameworks: ``@only(BY_ASGI)``."""
    return pytest.mark.parametrize("site", [name for name in SITES if name in names], indirect=True)


routed = only(SITES.keys() - PLAIN)
"""A mark for tests that need views with decorators."""
