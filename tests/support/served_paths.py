"""Served by real servers in ``test_where_requests_go.py``: one login view in every framework, limited by its path.

``lenient`` and ``wlenient`` stand for applications without known routes, which read a path in their own ways.
"""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import unquote

import django
import flask
from asgi_checker import App, Receive, Scope, Send
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

PLAIN_RULES: dict[str, Any] = {
    "rules": [{"name": "login", "match": {"path": "/login", "methods": ["POST"]}, "key": [], "limits": "5/hour"}]
}


def rules(view: str) -> dict[str, Any]:
    """Return rules for applications with routes, where the name of a view is known."""
    seven = {"name": "seven", "match": {"path": "/items/7"}, "key": [], "limits": "5/hour"}
    named = {"name": "view", "match": {"view": view}, "key": [], "limits": "5/hour"}
    return {"rules": [*PLAIN_RULES["rules"], seven, named]}


# -- Starlette and FastAPI -----------------------------------------------------------------------------------


async def login(request: Request) -> PlainTextResponse:
    return PlainTextResponse("login")


async def item(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"item {request.path_params['number']}")


starlette = Starlette(
    routes=[
        Route("/login", login, methods=["POST"]),
        Route("/items/{number:int}", item),
        Mount("/accounts", routes=[Route("/reset/{token}", login, name="reset")], name="accounts"),
    ]
)
starlette.add_middleware(RateLimitMiddleware, settings=rules("accounts:reset"))

accounts = FastAPI()
accounts.get("/reset/{token}", name="reset")(lambda token: "login")
router = APIRouter()
router.post("/login")(lambda: "login")


@router.get("/items/{number:int}")
def fastapi_item(number: int) -> str:
    return f"item {number}"


fastapi = FastAPI()
fastapi.include_router(router)
fastapi.mount("/accounts", accounts, name="accounts")
fastapi.add_middleware(RateLimitMiddleware, settings=rules("accounts:reset"))

# -- Flask ---------------------------------------------------------------------------------------------------

wflask = flask.Flask(__name__)
blueprint = flask.Blueprint("accounts", __name__, url_prefix="/accounts")
blueprint.add_url_rule("/reset/<token>", "reset", lambda token: "login")
wflask.add_url_rule("/login", "login", lambda: "login", methods=["POST"])
wflask.add_url_rule("/items/<int:number>", "item", lambda number: f"item {number}")
wflask.register_blueprint(blueprint)
RateLimiter(wflask, settings=rules("accounts.reset"))

# -- Django --------------------------------------------------------------------------------------------------


@csrf_exempt
def django_login(request: Any, **_: Any) -> HttpResponse:
    return HttpResponse("login")


class AccountURLs:
    app_name = "accounts"
    urlpatterns = (path("reset/<token>", django_login, name="reset"),)


urlpatterns = [
    re_path("^(?i:login)/?$", django_login),
    path("items/<int:number>", lambda request, number: HttpResponse(f"item {number}")),
    path("accounts/", django.urls.include(AccountURLs)),
]
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="for tests only",
    MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW=rules("accounts:reset"),
)
django.setup()
adjango, wdjango = get_asgi_application(), get_wsgi_application()

# -- applications without known routes -----------------------------------------------------------------------


def lenient_view(sent: str) -> tuple[int, bytes]:
    """Route a path as careless code does: text is dropped, cut, decoded again, and resolved."""
    for reading in (sent, unquote(sent), unquote(sent).replace("\\", "/")):
        tidy = "".join(char for char in reading if char.isprintable() and char not in "\ufffd")
        for text in (reading.strip(), reading.partition("\x00")[0], tidy):
            if posixpath.normpath(text) == "/login":
                return 200, b"login"
    return 404, b""


class Lenient:
    """A class, so that the middleware looks for its routes until the server starts."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            return
        status, body = lenient_view(scope["path"])
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})


def _wlenient(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    status, body = lenient_view(environ["PATH_INFO"].encode("latin-1").decode(errors="ignore"))
    start_response(f"{status} -", [])
    return [body]


lenient: App = RateLimitMiddleware(Lenient(), settings=PLAIN_RULES)
wlenient: Any = WSGIMiddleware(_wlenient, settings=PLAIN_RULES)
