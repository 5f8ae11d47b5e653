"""The OpenAPI description shows the limited operations and the form of a rejection."""

from __future__ import annotations

import asyncio
from typing import Any

from calls import ask
from fastapi import APIRouter, Depends, FastAPI
from fastapi_apps import limited, view
from lifespan import run_lifespan
from tables import each

from ratelimit_mw import Rule
from ratelimit_mw.fastapi import RateLimit, exempt, limit

X_HEADERS = {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}
DRAFT = {"RateLimit", "RateLimit-Policy"}


def schema_of(app: Any, path: str = "/openapi.json") -> dict[str, Any]:
    return ask(app, path).json()  # type: ignore[no-any-return]


def documented(app: Any) -> dict[str, Any]:
    """Return the documented 429 of ``/``."""
    return schema_of(app)["paths"]["/"]["get"]["responses"]["429"]  # type: ignore[no-any-return]


def app_of(**options: Any) -> FastAPI:
    """Return an application with one limited view."""
    app = FastAPI()
    app.get("/", **options)(limit("1/minute")(view))
    return app


def limited_operations(schema: dict[str, Any]) -> set[str]:
    """Return the operations that document a 429."""
    return {
        f"{method} {path}"
        for path, item in schema["paths"].items()
        for method, operation in item.items()
        if "429" in operation["responses"]
    }


def test_limited_operations_document_a_429() -> None:
    """Operations with a decorator, a dependency or a matching rule have a 429. Others have none."""
    router, app = APIRouter(prefix="/r"), FastAPI()
    router.add_api_route("/decorated/{id}", limit("5/minute")(view))
    router.add_api_route("/dependency", view, dependencies=[Depends(RateLimit("5/minute"))], methods=["PUT"])
    for method in ("GET", "POST"):
        router.add_api_route("/posted", limit("5/minute", match={"methods": ["POST"]})(view), methods=[method])
    router.add_api_route("/ruled/{id}", view)
    router.add_api_route("/exempt/{id}", exempt(limit("5/minute")(view)))
    router.add_api_route("/shadowed", limit("5/minute", mode="shadow")(view))
    router.add_api_route("/free", view)
    router.add_api_websocket_route("/free", limit("5/minute")(view))
    router.add_api_route("/hidden", limit("5/minute")(view), include_in_schema=False)
    app.include_router(router, prefix="/v1")
    limited(app, Rule(limits="9/minute", match={"path": ["/v1/r/ruled/*", "/v1/r/exempt/*"]}))
    assert limited_operations(schema_of(app)) == {
        "get /v1/r/decorated/{id}",
        "put /v1/r/dependency",
        "post /v1/r/posted",
        "get /v1/r/ruled/{id}",
    }


@each(
    ("families", "expected"),
    [
        (["x-ratelimit"], X_HEADERS),
        (["ratelimit"], DRAFT),
        (["x-ratelimit", "ratelimit"], X_HEADERS | DRAFT),
        ([], set()),
    ],
)
def test_the_documented_headers_are_those_of_the_response(families: list[str], expected: set[str]) -> None:
    app = limited(app_of(), headers=families)
    response = documented(app)
    assert set(response["headers"]) == expected | {"Retry-After"}
    rejected = [ask(app) for _ in range(2)][-1]
    assert {name.lower() for name in response["headers"]} <= set(rejected.headers)


def test_a_documented_429_of_the_application_stays() -> None:
    app = limited(app_of(responses={429: {"description": "Slow down"}}))
    assert documented(app) == {"description": "Slow down"}


def test_mounted_applications_describe_their_own_limits() -> None:
    """Each application documents its own operations under its own paths."""
    app, inner = FastAPI(), FastAPI()
    inner.get("/items/{id}")(limit("1/minute")(view))
    inner.get("/free")(view)
    app.get("/items/{id}")(view)
    app.mount("/inner", inner)
    limited(app)
    assert limited_operations(schema_of(app)) == set()
    assert limited_operations(schema_of(app, "/inner/openapi.json")) == {"get /items/{id}"}


def test_a_custom_openapi_function_is_kept() -> None:
    """The description of a replaced ``openapi`` function gains the limits."""
    app = app_of()
    described = app.openapi
    app.openapi = lambda: described() | {"x-own": True}  # type: ignore[method-assign]
    schema = schema_of(limited(app))
    assert (schema["x-own"], limited_operations(schema)) == (True, {"get /"})


@each("early", [False, True])
def test_the_limits_are_documented_after_the_start(early: bool) -> None:
    """The limits are there before any request, even when code calls ``openapi`` too early."""
    app, operations = limited(app_of()), list[set[str]]()
    assert not early or limited_operations(app.openapi()) == set()

    async def describe() -> None:
        operations.append(limited_operations(app.openapi()))

    asyncio.run(run_lifespan(app, [], describe))
    assert operations == [{"get /"}]


@each(("reset", "text"), [("delta", "Seconds until"), ("epoch", "in seconds since 1970")])
def test_the_description_says_what_the_numbers_are(reset: Any, text: str) -> None:
    """The reset follows the setting, and ``t`` of a rejection is the time to wait."""
    headers = documented(limited(app_of(), reset=reset))["headers"]
    assert text in headers["X-RateLimit-Reset"]["description"]
    assert "the seconds to wait (t)" in headers["RateLimit"]["description"]
