"""Keys have path parameters of FastAPI by their annotations, and users by an attribute of a dependency's value."""

from __future__ import annotations

from decimal import Decimal
from enum import IntEnum
from typing import Annotated
from uuid import UUID

import pytest
from calls import ask
from fastapi import Depends, FastAPI, Header, Path
from fastapi_apps import limited, statuses
from pydantic import BaseModel

from ratelimit_mw import ConfigError, FeatureTypeError, Rule
from ratelimit_mw.fastapi import RateLimit

ID = "12345678-1234-5678-1234-567812345678"


class Plan(IntEnum):
    FREE = 7


class User(BaseModel):
    id: int
    requests: int


REQUESTS = iter(range(1_000_000))


async def get_current_user(x_user: Annotated[int, Header()] = 7) -> User:
    return User(id=x_user, requests=next(REQUESTS))


def untyped_user() -> object:
    return User(id=7, requests=next(REQUESTS))


def item_of(item: int) -> int:
    return item


def by_parameter(name: str) -> Rule:
    return Rule(name="item", limits="1/minute", key=[f"path:{name}"])


@pytest.mark.parametrize(
    ("annotation", "spellings"),
    [
        (int, ["7", "007", "+7", "%207", "7.0", "0_7"]),
        (Annotated[int, Path(ge=1)], ["7", "07"]),
        (UUID, [ID, ID.upper(), ID.replace("-", "")]),
        (float, ["7", "7.0", "7.00", "70e-1"]),
        (float, ["0.0", "-0.0"]),
        (Decimal, ["7", "7.0", "7.00"]),
        (Plan, ["7", "007", "+7"]),
        (bool, ["true", "1", "T", "on", "yes", "Y"]),
        (bool, ["false", "0", "f", "off", "no", "n"]),
        (str, ["seven", "SEVEN", "seven%20", "s%C3%A9ven"]),
    ],
)
def test_a_parameter_has_one_count_for_all_its_spellings(annotation: type, spellings: list[str]) -> None:
    """FastAPI gives the view one value for all of them."""

    def view(item: annotation) -> str:  # type: ignore[valid-type]
        return ""

    view.__annotations__["item"] = annotation
    app = limited(FastAPI(), by_parameter("item"))
    app.add_api_route("/items/{item}", view)
    paths = [f"/items/{spelling}" for spelling in spellings]
    assert statuses(app, *paths) == [200] + [429] * (len(paths) - 1)
    assert {ask(limited_less(annotation, view), path).status_code for path in paths} == {200}


def limited_less(annotation: type, view: object) -> FastAPI:
    """Return the application without limits: it serves every spelling."""
    app = FastAPI()
    app.add_api_route("/items/{item}", view)  # type: ignore[arg-type]
    return app


def test_a_parameter_that_is_no_number_is_invalid() -> None:
    """FastAPI responds with 422 to all of them, and they share one count."""
    app = limited(FastAPI(), by_parameter("item"))
    app.get("/items/{item}", dependencies=[Depends(item_of)])(lambda: None)
    assert statuses(app, "/items/a", "/items/b", "/items/7", "/items/07") == [422, 429, 200, 429]


def test_a_truth_value_that_is_none_is_invalid() -> None:
    """FastAPI responds with 422 to all of them."""
    app = limited(FastAPI(), by_parameter("item"))

    @app.get("/items/{item}")
    def view(item: bool) -> None: ...

    assert statuses(app, "/items/2", "/items/maybe", "/items/on") == [422, 429, 200]


def test_a_user_is_counted_by_an_attribute() -> None:
    """The model changes with each request. Its id does not."""
    app = limited(FastAPI())
    limit = RateLimit("2/minute", key=["user.id"], features={"user": get_current_user})
    app.get("/", dependencies=[Depends(limit)])(lambda: None)
    assert statuses(app, *["/"] * 6) == [200] * 2 + [429] * 4
    assert statuses(app, "/", headers=[(b"x-user", b"8")]) == [200]


def test_a_model_as_a_user_is_an_error_at_the_start() -> None:
    """Each change of a field would be a new key."""
    with pytest.raises(ConfigError, match=r"features\['user'\].*'user' is of type User.*'user.id'"):
        RateLimit("2/minute", key=["user"], features={"user": get_current_user})
    with pytest.raises(ConfigError, match="'user' is of type User"):
        RateLimit("2/minute", key=["user"], features={"user": Depends(User)})


def test_a_model_without_an_annotation_is_an_error_of_the_request() -> None:
    """No request is served without its limit."""
    app = limited(FastAPI())
    limit = RateLimit("2/minute", key=["user"], features={"user": untyped_user})
    app.get("/", dependencies=[Depends(limit)])(lambda: None)
    for _ in range(3):
        with pytest.raises(FeatureTypeError, match="'user' is of type User"):
            ask(app, "/")
