"""Starlette, FastAPI and a plain ASGI application that report differences."""

from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Cookie, FastAPI, Header, Query, Request
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.starlette import RateLimitMiddleware as StarletteMiddleware

from .echo import each_alone_async, report, settings, templates_of, totals
from .paths import paths_by_hand
from .readings import by_hand, in_starlette, merged
from .words import TOTALS

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
TEMPLATES = ["/login", "/items/{id}", "/files/{rest:path}", "/{rest:path}"]
THING = "/api/things/{name}"


def rule_path(template: str) -> str:
    """The pattern of the rule for a route."""
    return "/files/**" if template.startswith("/files") else template


def endpoint(template: str) -> str:
    return template.replace(":path", "")


async def readings_of(request: Any, template: str) -> dict[str, list[Any]]:
    readings = await in_starlette(request)
    readings["path"] = [request.scope["path"]]
    readings["endpoint"] = [endpoint(template)]
    if "{id}" in template:
        readings["path:id"] = [request.path_params["id"]]
    return readings


def starlette_view(template: str) -> Any:
    async def view(request: Any) -> Response:
        if request.url.path == TOTALS:
            return PlainTextResponse(totals())
        return Response(headers=report([rule_path(template)], request.method, await readings_of(request, template)))

    return view


_things = Mount("/api", routes=[Route("/things/{name}", starlette_view(THING), methods=METHODS)])
_starlette = Starlette(routes=[_things, *(Route(t, starlette_view(t), methods=METHODS) for t in TEMPLATES)])
_starlette.add_middleware(StarletteMiddleware, settings=settings())
starlette = each_alone_async(_starlette)


def fastapi_view(template: str) -> Any:
    async def view(
        request: Request,
        q: Annotated[str | None, Query()] = None,
        sid: Annotated[str | None, Cookie()] = None,
        x_key: Annotated[str | None, Header()] = None,
    ) -> Response:
        if request.scope["path"] == TOTALS:
            return PlainTextResponse(totals())
        readings = await readings_of(request, template)
        declared = {"query:q": [q], "cookie:sid": [sid], "header:x-key": [x_key]}
        readings = merged(readings.items(), declared.items())
        return Response(headers=report([rule_path(template)], request.method, readings))

    return view


_fastapi = FastAPI(openapi_url=None)
_router = APIRouter(prefix="/api")
_router.add_api_route("/things/{name}", fastapi_view(THING), methods=METHODS, response_class=Response)
_fastapi.include_router(_router)
for _template in TEMPLATES:
    _fastapi.add_api_route(_template, fastapi_view(_template), methods=METHODS, response_class=Response)
_fastapi.add_middleware(StarletteMiddleware, settings=settings())
fastapi = each_alone_async(_fastapi)


async def _plain(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    if scope["path"] == TOTALS:
        await PlainTextResponse(totals())(scope, receive, send)
        return
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    hand = by_hand(headers, scope["query_string"].decode("latin-1"))
    hand["host"] = headers.get("host", [])[-1:]
    request = Request(scope, receive)
    readings = merged((await in_starlette(request)).items(), hand.items())
    raw = unquote_to_bytes(scope.get("raw_path", b"").partition(b"?")[0])
    paths = paths_by_hand(scope["path"].encode("utf-8", "surrogateescape")) | paths_by_hand(raw)
    await Response(headers=report(templates_of(paths), request.method, readings))(scope, receive, send)


plain = each_alone_async(RateLimitMiddleware(_plain, settings=settings(routes=False)))
