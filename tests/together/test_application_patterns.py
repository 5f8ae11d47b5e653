"""Patterns of applications in each framework: a check of a valid form, a key set by a decorator, ``deduct_when``.

Each site has ``/post``, which checks after it has read its form, ``/account``, whose decorator finds the key, and
``/search``, for which a function of the response decides whether the request counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import flask
import pytest
from calls import ask as ask_asgi
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django_calls import project
from django_calls import still as limiter_of
from flask import Flask
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette_apps import application

from ratelimit_mw import RateLimitExceeded
from ratelimit_mw import django as in_django
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.flask import RateLimiter

SETTINGS: dict[str, Any] = {
    "rules": [
        {"name": "post", "key": ["thread", "ip"], "limits": "2/minute", "match": {"view": ""}},
        {"name": "account", "key": ["account"], "limits": "2/minute", "match": {"view": ""}},
        {"name": "empty", "limits": "2/minute", "match": {"path": "/search"}, "count_when": {"marked": True}},
    ]
}
Ask = Callable[..., Any]
"""Sends a request with a path and a header ``X-Account``. Returns the response."""


def search(word: str) -> dict[str, list[str]]:
    return {"found": [word] if word == "tea" else []}


@contextmanager
def in_flask_site() -> Iterator[Ask]:
    app = Flask("app")

    def with_account(view: Any) -> Any:
        @functools.wraps(view)
        def found() -> Any:
            flask.g.account = flask.request.headers["X-Account"]
            return view()

        return found

    @app.get("/post")
    def post() -> Any:
        if not flask.request.args["text"]:
            return "write a text", 400
        try:
            in_flask.check("post", thread=7)
        except RateLimitExceeded as error:
            return f"wait {error.verdict.retry_after:.0f} s", 422
        return "posted"

    @app.get("/account")
    @with_account
    def account() -> str:
        in_flask.check("account", account=flask.g.account)
        return "done"

    @app.get("/search")
    def find() -> Any:
        return search(flask.request.args["word"])

    RateLimiter(app, limiter=limiter_of(SETTINGS))

    @app.after_request
    def deduct_when_nothing_is_found(response: Any) -> Any:
        if response.is_json and not response.json.get("found", True):
            flask.g.ratelimit["empty"].count()
        return response

    client = app.test_client()
    yield lambda where, account="ann": client.get(where, headers={"X-Account": account})


def deduct_in_django(get_response: Any) -> Any:
    """A middleware inside the limits."""

    def respond(request: Any) -> Any:
        response = get_response(request)
        if response.content == b'{"found": []}':
            request.ratelimit["empty"].count()
        return response

    return respond


@contextmanager
def in_django_site() -> Iterator[Ask]:
    def with_account(view: Any) -> Any:
        @functools.wraps(view)
        def found(request: Any) -> Any:
            request.account = request.headers["X-Account"]
            return view(request)

        return found

    def post(request: Any) -> HttpResponse:
        if not request.GET["text"]:
            return HttpResponse("write a text", status=400)
        try:
            in_django.check(request, "post", thread=7)
        except RateLimitExceeded as error:
            return HttpResponse(f"wait {error.verdict.retry_after:.0f} s", status=422)
        return HttpResponse("posted")

    @with_account
    def account(request: Any) -> HttpResponse:
        in_django.check(request, "account", account=request.account)
        return HttpResponse("done")

    def find(request: Any) -> HttpResponse:
        return JsonResponse(search(request.GET["word"]))

    middleware = ["ratelimit_mw.django.RateLimitMiddleware", f"{__name__}.deduct_in_django"]
    urls = [path("post", post), path("account", account), path("search", find)]
    with project(limiter_of(SETTINGS), *urls, middleware=middleware) as served:
        yield lambda where, account="ann": served.ask(where, headers={"X-Account": account})


@contextmanager
def in_starlette_site() -> Iterator[Ask]:
    def with_account(view: Any) -> Any:
        @functools.wraps(view)
        async def found(request: Any) -> Any:
            request.state.account = request.headers["X-Account"]
            return await view(request)

        return found

    async def post(request: Any) -> Response:
        if not request.query_params["text"]:
            return Response("write a text", 400)
        try:
            await in_starlette.check(request, "post", thread=7)
        except RateLimitExceeded as error:
            return Response(f"wait {error.verdict.retry_after:.0f} s", 422)
        return Response("posted")

    @with_account
    async def account(request: Any) -> Response:
        await in_starlette.check(request, "account", account=request.state.account)
        return Response("done")

    async def find(request: Any) -> Response:
        response = JSONResponse(search(request.query_params["word"]))
        if response.body == b'{"found":[]}':
            request.state.ratelimit["empty"].count()
        return response

    app = application(
        [Route("/post", post), Route("/account", account), Route("/search", find)], limiter=limiter_of(SETTINGS)
    )
    yield lambda where, account="ann": ask_asgi(app, where, headers={"X-Account": account})


@pytest.fixture(params=[in_flask_site, in_django_site, in_starlette_site], ids=["flask", "django", "starlette"])
def ask(request: pytest.FixtureRequest) -> Iterator[Ask]:
    with request.param() as send:
        yield send


def test_only_a_valid_form_counts(ask: Ask) -> None:
    """The view checks after it has validated the form, and shows the rejection in its own response."""
    sent = [ask(f"/post?text={text}") for text in ("", "a", "", "b", "c")]
    assert [response.status_code for response in sent] == [400, 200, 400, 200, 422]
    assert sent[-1].headers["X-RateLimit-Remaining"] == "0"


def test_a_decorator_sets_the_key(ask: Ask) -> None:
    """A decorator of the application finds the account of a request, and the view passes it."""
    for account in ("ann", "bob"):
        assert [ask("/account", account).status_code for _ in range(3)] == [200, 200, 429]


def test_a_function_of_the_response_deducts(ask: Ask) -> None:
    """Requests count whose response shows that nothing is found. The headers show it."""
    sent = [ask(f"/search?word={word}") for word in ("tea", "x", "tea", "y", "tea")]
    assert [response.status_code for response in sent] == [200, 200, 200, 200, 429]
    assert [response.headers["X-RateLimit-Remaining"] for response in sent] == ["2", "1", "1", "0", "0"]
