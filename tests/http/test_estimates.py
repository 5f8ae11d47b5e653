"""A cost from a feature of the request, in every framework: what a client may write in its body, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import calls
import flask
import flask_calls
import pytest
from django.urls import path
from django_calls import hello, project
from fastapi import FastAPI
from shared_store import SharedStore
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw import django as in_django
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.settings import Settings
from ratelimit_mw.starlette import RateLimitMiddleware, check, usage
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

WHO = {"ip": "192.0.2.7"}
JSON = {"content-type": "application/json"}
TOKENS = Rule(name="tokens", limits="1000/minute", cost="json:max_tokens|10", unit="tokens")
Post = Callable[[Limiter, bytes], int]


def limiter(*rules: Rule) -> Limiter:
    return Limiter(rules or [TOKENS], clock=ManualClock(1_000_000.0))


def left(rate: Limiter) -> int:
    return rate.peek(WHO, cost=0).decisions[0].remaining


# -- the frameworks -------------------------------------------------------------------------------------------


def post_asgi(rate: Limiter, body: bytes) -> int:
    app = RateLimitMiddleware(calls.OK, limiter=rate)
    return calls.ask(app, method="POST", content=body, headers=JSON).status_code


def post_fastapi(rate: Limiter, body: bytes) -> int:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=rate)
    app.add_api_route("/", lambda: "hello", methods=["POST"])
    return calls.ask(app, method="POST", content=body, headers=JSON).status_code


def post_wsgi(rate: Limiter, body: bytes) -> int:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b"hello"]

    return calls.ask_wsgi(WSGIMiddleware(app, limiter=rate), method="POST", content=body, headers=JSON).status_code


def post_flask(rate: Limiter, body: bytes) -> int:
    return flask_calls.ask(flask_calls.app_of(rate), method="POST", data=body, headers=JSON).status_code


def post_django(rate: Limiter, body: bytes) -> int:
    with project(rate, path("", hello)) as served:
        return int(served.ask("/", "POST", data=body, content_type="application/json").status_code)


POSTS = {name.removeprefix("post_"): post for name, post in globals().items() if name.startswith("post_")}
everywhere = pytest.mark.parametrize("post", POSTS.values(), ids=list(POSTS))


@everywhere
@pytest.mark.parametrize(
    ("body", "cost"),
    [
        (b'{"max_tokens": 150}', 150),
        (b'{"max_tokens": "150"}', 150),
        (b'{"max_tokens": 12.5}', 13),
        (b'{"max_tokens": 1000}', 1000),
        (b'{"max_tokens": 1001}', 1000),
        (b'{"max_tokens": 1e400}', 1000),
        (b'{"max_tokens": %s}' % (b"9" * 4000), 1000),
        (b'{"max_tokens": %s}' % (b"9" * 5000), 1000),
        (b'{"max_tokens": 1, "max_tokens": 900}', 1000),
        (b'{"max_tokens": [1]}', 1000),
        (b'{"max_tokens": 1', 1000),
        (b'{"max_tokens": 1, "prompt": "%s"}' % (b"x" * 70_000), 1000),
        (b'{"max_tokens": 0}', 10),
        (b'{"max_tokens": -5}', 10),
        (b'{"max_tokens": NaN}', 10),
        (b'{"max_tokens": true}', 10),
        (b'{"max_tokens": null}', 10),
        (b'{"max_tokens": "many"}', 10),
        (b"{}", 10),
        (b"[7]", 1000),
        (b"", 10),
    ],
)
def test_a_field_of_the_body_is_the_cost(post: Post, body: bytes, cost: int) -> None:
    """The first request passes whatever it says, and none costs nothing."""
    rate = limiter()
    assert post(rate, body) == 200
    assert left(rate) == 1000 - cost


@everywhere
@pytest.mark.parametrize("body", [b'{"max_tokens": 0}', b'{"max_tokens": 1000000}', b"{}", b"garbage"])
def test_no_estimate_passes_for_ever_or_never(post: Post, body: bytes) -> None:
    """Whatever the body says, some requests of a client pass, and then the limit rejects it."""
    rate = limiter(Rule(name="tokens", limits="30/minute", cost="json:max_tokens|10"))
    statuses = [post(rate, body) for _ in range(5)]
    assert (statuses[0], statuses[-1]) == (200, 429)


# -- limits on views -------------------------------------------------------------------------------------------

OPTIONS: Any = {"limits": "1000/minute", "cost": "json:max_tokens|10", "name": "tokens"}


async def aview(request: Request) -> JSONResponse:
    return JSONResponse(await request.json())


def view_asgi(rate: Limiter, body: bytes) -> int:
    app = Starlette(routes=[Route("/", in_starlette.limit(**OPTIONS)(aview), methods=["POST"])])
    app.add_middleware(RateLimitMiddleware, limiter=rate)
    return calls.ask(app, method="POST", content=body, headers=JSON).status_code


def view_fastapi(rate: Limiter, body: bytes) -> int:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=rate)
    app.post("/", dependencies=[in_fastapi.RateLimit(**OPTIONS)])(aview)
    return calls.ask(app, method="POST", content=body, headers=JSON).status_code


def view_flask(rate: Limiter, body: bytes) -> int:
    app = flask_calls.app_of(rate, {"/": in_flask.limit(**OPTIONS)(lambda: flask.request.json)})
    return flask_calls.ask(app, method="POST", data=body, headers=JSON).status_code


def view_django(rate: Limiter, body: bytes) -> int:
    with project(rate, path("", in_django.limit(**OPTIONS)(hello))) as served:
        return int(served.ask("/", "POST", data=body, content_type="application/json").status_code)


VIEWS = {name: view for name, view in globals().items() if name.startswith("view_")}


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
@pytest.mark.parametrize(("body", "cost"), [(b'{"max_tokens": 15}', 15), (b'{"max_tokens": 5000}', 1000), (b"{}", 10)])
def test_a_limit_on_a_view_reads_the_body(view: Post, body: bytes, cost: int) -> None:
    """A decorator or a dependency has the same cost, and the view receives the same body."""
    rate = Limiter([], clock=ManualClock(1_000_000.0))
    assert view(rate, body) == 200
    assert rate.decide(Plan(rate.rules.rules), WHO, 0, consume=False).decisions[0].remaining == 1000 - cost


# -- where the estimate is not needed --------------------------------------------------------------------------


def site(rate: Limiter) -> Starlette:
    async def look(request: Request) -> JSONResponse:
        return JSONResponse({rule: each["remaining"] for rule, each in (await usage(request)).items()})

    async def reset(request: Request) -> JSONResponse:
        await check.reset(request, "tokens")
        return JSONResponse("done")

    async def pages(request: Request) -> JSONResponse:
        verdict = await check(request, "pages", pages=int(request.query_params["pages"]))
        return JSONResponse(verdict.decisions[0].remaining)

    async def forgotten(request: Request) -> JSONResponse:
        with pytest.raises(ConfigError, match=r"check\('pages'\): the rule uses .* Pass pages=VALUE"):
            await check(request, "pages")
        return JSONResponse("done")

    async def write(request: Request) -> JSONResponse:
        return JSONResponse("done")

    views = {"/look": look, "/reset": reset, "/pages": pages, "/forgotten": forgotten}
    routes = [*(Route(where, view) for where, view in views.items()), Route("/write", write, methods=["POST"])]
    app = Starlette(routes=routes)
    app.add_middleware(RateLimitMiddleware, limiter=rate)
    return app


def test_a_look_and_a_reset_need_no_estimate() -> None:
    """They consume nothing, so the body of their own request is not read."""
    rule = Rule(name="tokens", limits="1000/minute", cost="json:max_tokens", match={"path": "/write"})
    app = site(limiter(rule))
    calls.ask(app, "/write", "POST", json={"max_tokens": 300})
    assert calls.ask(app, "/look").json() == {"tokens": 700}
    assert calls.ask(app, "/reset").json() == "done"
    assert calls.ask(app, "/look").json() == {"tokens": 1000}


def test_a_view_passes_the_estimate_to_check() -> None:
    """The cost is a feature that only the view knows."""
    app = site(limiter(Rule(name="pages", limits="100/hour", cost="pages", match={"view": ""})))
    assert calls.ask(app, "/pages?pages=30").json() == 70
    assert calls.ask(app, "/pages?pages=30").json() == 40
    assert calls.ask(app, "/pages?pages=41").status_code == 429
    assert calls.ask(app, "/forgotten").json() == "done"


def test_a_feature_that_nothing_provides_stops_the_start() -> None:
    """A misspelt feature would give each request the default cost."""
    with pytest.raises(ConfigError, match="rule 'tokens': cost: uses the feature 'tokns', but nothing provides it"):
        calls.limited(calls.OK, limiter(Rule(name="tokens", limits="9/minute", cost="tokns")))


def test_without_the_store_an_estimate_is_held_at_the_part_of_a_process() -> None:
    """A cost that fits the limit is not rejected forever, a fixed one neither. Slots are counted as they are."""
    store = SharedStore()
    rules = [
        Rule(name="tokens", limits="1000/minute", cost="tokens"),
        Rule(name="fixed", limits="100/minute; 4 concurrent", cost=3),
    ]
    rate = Limiter(rules, store, ManualClock(1_000_000.0), Settings(fleet_size=4))
    store.down = True
    verdict = rate.hit({**WHO, "tokens": 900})
    assert [(d.allowed, d.limit, d.remaining) for d in verdict.decisions] == [
        (True, 250, 250),
        (True, 25, 25),
        (False, 1, 1),
    ]
    assert rate.hit({**WHO, "tokens": 900}, cost=30).decisions[0].local
