"""FastAPI views keep their signatures, and the middleware decides before FastAPI calls them."""

from __future__ import annotations  # so all annotations below are text, as in many applications

import importlib
from typing import Annotated, Any

import pytest
from calls import ask
from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi_apps import limited
from libraries import load_without
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.errors import MissingExtraError
from ratelimit_mw.fastapi import RateLimitMiddleware, limit


class Item(BaseModel):
    name: str
    price: float = 1.0


def current_user(x_user: Annotated[str | None, Header()] = None) -> str | None:
    return x_user


User = Annotated[str | None, Depends(current_user)]


def application() -> FastAPI:
    """Return an application whose views use the parameters that FastAPI injects, and no extra ones."""
    app = FastAPI()

    @app.get("/sync/{id}")
    @limit("2/minute")
    def sync_item(id: int, user: User, q: str | None = None) -> dict[str, Any]:  # noqa: A002 - a path parameter
        """An item."""
        return {"id": id, "user": user, "q": q}

    @app.get("/async/{id}")
    @limit("2/minute")
    async def async_item(id: int, user: User) -> dict[str, Any]:  # noqa: A002 - a path parameter
        return {"id": id, "user": user}

    @limit("2/minute")
    @app.get("/above/{id}")
    async def above(id: int, user: User) -> dict[str, Any]:  # noqa: A002 - a path parameter
        return {"id": id, "user": user}

    @app.post("/body")
    @limit("2/minute")
    async def body(item: Item, tasks: BackgroundTasks, response: Response, request: Request) -> Item:
        response.headers["x-own"] = request.method
        return item

    return app


@each("path", ["/sync/7", "/async/7", "/above/7"])
def test_views_with_text_annotations_are_limited(path: str) -> None:
    """``from __future__ import annotations``, ``Annotated`` and ``Depends`` work above and below the decorator."""
    app = limited(application())
    responses = [ask(app, path, headers={"x-user": "ann"}) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert {"id": 7, "user": "ann"}.items() <= responses[0].json().items()


def test_parameters_are_validated_as_before() -> None:
    """A decorated view keeps its parameters of all kinds, and its name, docstring and signature in OpenAPI."""
    app = limited(application())
    assert ask(app, "/sync/7?q=x").json() == {"id": 7, "user": None, "q": "x"}
    assert ask(app, "/sync/seven").status_code == 422
    response = ask(app, "/body", "POST", json={"name": "pen"})
    assert (response.json(), response.headers["x-own"]) == ({"name": "pen", "price": 1.0}, "POST")
    assert ask(app, "/body", "POST", json={}).status_code == 422
    assert ask(app, "/body", "POST", json={"name": "pen"}).status_code == 429
    operation = app.openapi()["paths"]["/sync/{id}"]["get"]
    assert (operation["summary"], operation["description"]) == ("Sync Item", "An item.")
    assert [parameter["name"] for parameter in operation["parameters"]] == ["id", "q", "x-user"]


@each("kind", [HTTPException, StarletteHTTPException])
def test_the_handler_for_http_errors_replaces_the_rejection(kind: type[Exception]) -> None:
    """A handler of your own for all HTTP errors makes the response."""
    app = FastAPI()
    app.add_api_route("/", limit("1/minute")(lambda: "fine"))

    @app.exception_handler(kind)
    async def shape(request: Request, error: HTTPException) -> Response:
        return Response(f"{error.status_code}: {error.detail[:11]}", error.status_code)

    limited(app)
    assert [ask(app).text for _ in range(2)] == ['"fine"', "429: rejected by"]


@pytest.mark.filterwarnings("ignore:.*root_path")  # deprecated in later versions of FastAPI
def test_the_root_path_of_an_application_is_no_part_of_the_route() -> None:
    """A middleware around FastAPI knows the root path that FastAPI has for itself."""
    app = FastAPI(root_path="/api")
    app.get("/login")(limit("3/minute", name="view")(lambda: "in"))
    outside = RateLimitMiddleware(app, limiter=Limiter([Rule(name="r", limits="2/minute", match={"path": "/login"})]))
    assert [ask(outside, path).status_code for path in ("/login", "/api/login", "/api/login")] == [200, 200, 429]


def test_fastapi_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without FastAPI, the error shows the command that installs it."""
    load_without(monkeypatch, "ratelimit_mw.fastapi", "fastapi.params")
    with pytest.raises(MissingExtraError, match=r'pip install "ratelimit-mw\[fastapi\]"'):
        importlib.import_module("ratelimit_mw.fastapi")
