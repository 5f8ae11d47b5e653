"""Keys have values by the annotations of FastAPI's parameters, and users by an attribute of a dependency's value."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any, NewType
from urllib.parse import quote
from uuid import UUID

from calls import aask, ask
from fastapi import Body, Cookie, Depends, FastAPI, Form, Header, Path, Query, Request
from fastapi_apps import limited, statuses
from pydantic import BaseModel, BeforeValidator, ByteSize, field_validator
from tables import each

from ratelimit_mw import Rule
from ratelimit_mw.fastapi import RateLimitMiddleware, check

ID = "12345678-1234-5678-1234-567812345678"
SEVEN = ["7", "07", "+7", " 7", "7.0", "0_7"]
ONE, TWO = "1" * 41, "1" * 40 + "2"
Sending = dict[str, Any]


def in_path(value: Any) -> Sending:
    return {"path": f"/items/{quote(str(value))}"}


def in_query(value: Any) -> Sending:
    return {"params": {"item": value}}


def in_header(value: Any) -> Sending:
    return {"headers": {"x-item": str(value)}}


def in_cookie(value: Any) -> Sending:
    return {"headers": {"cookie": f"item={value}"}}


def in_form(value: Any) -> Sending:
    return {"data": {"item": value}}


def in_json(value: Any) -> Sending:
    return {"json": {"item": value}}


def in_account(value: Any) -> Sending:
    return {"json": {"account": {"item": value}, "item": "any text"}}


def in_owner(value: Any) -> Sending:
    return {"json": {"item": 1, "owner": {"id": value, "requests": 1}}}


def serve(part: str, view: Any, has_limits: bool = True) -> FastAPI:
    """Return an application with a limit of one request for each value of a part."""
    app = FastAPI()
    app.add_api_route("/items/{item}" if part.startswith("path:") else "/", view, methods=["POST"])
    return limited(app, *[Rule(name="item", limits="1/minute", key=[part])] * has_limits)


def send_all(app: FastAPI, requests: list[Sending]) -> list[int]:
    async def statuses_of() -> list[int]:
        return [(await aask(app, method="POST", **request)).status_code for request in requests]

    return asyncio.run(statuses_of())


class Plan(IntEnum):
    FREE = 7


class User(BaseModel):
    id: int
    requests: int


class Account(BaseModel):
    item: int
    key: UUID | None = None
    owner: User | None = None


class Named(BaseModel):
    item: str


class Camel(BaseModel, alias_generator=lambda name: name.replace("the_", "")):
    the_item: int


Serial = NewType("Serial", NewType("Number", int))


class Wide(BaseModel):
    x_item: int


def without_prefix(value: Any) -> Any:
    return value.removeprefix("acc-") if isinstance(value, str) else value


Prefixed = Annotated[int, BeforeValidator(without_prefix)]


class WithValidator(BaseModel):
    item: int
    other: int = 0

    _read = field_validator("item", mode="before")(without_prefix)


class Optionally(BaseModel):
    item: Prefixed | None = None


# -- one value for all spellings -------------------------------------------------------------------------------


def by_query(item: int) -> None: ...
def by_alias(number: Annotated[int | None, Query(alias="item")] = None) -> None: ...
def by_query_model(every: Annotated[Account, Query()]) -> None: ...
def by_header(x_item: Annotated[int, Header()]) -> None: ...
def by_header_model(every: Annotated[Wide, Header()]) -> None: ...
def by_cookie(item: Annotated[int, Cookie()]) -> None: ...
def by_dependency(query: Annotated[None, Depends(by_query)]) -> None: ...
def by_form(item: Annotated[int, Form()]) -> None: ...
def by_form_model(every: Annotated[Account, Form()]) -> None: ...
def by_model(account: Account) -> None: ...
def by_optional_model(account: Account | None = None) -> None: ...
def by_field(item: Annotated[int, Body(embed=True)]) -> None: ...
def by_two(account: Account, item: Annotated[str, Body()] = "") -> None: ...
def by_list(item: Annotated[list[int] | None, Query()] = None) -> None: ...
def by_camel(account: Camel) -> None: ...
def by_new_type(item: Serial) -> None: ...
def untyped(request: Request) -> None: ...


@each(
    ("part", "view", "send"),
    [
        ("path:item", by_dependency, in_path),
        ("query:item", by_query, in_query),
        ("query:item", by_alias, in_query),
        ("query:item", by_query_model, in_query),
        ("query:item", by_dependency, in_query),
        ("query:item", by_list, in_query),
        ("query:item", by_new_type, in_query),
        ("header:x-item", by_header, in_header),
        ("header:x-item", by_header_model, in_header),
        ("cookie:item", by_cookie, in_cookie),
        ("form:item", by_form, in_form),
        ("form:item", by_form_model, in_form),
        ("field:item", by_form, in_form),
        ("json:item", by_model, in_json),
        ("field:item", by_model, in_json),
        ("json:item", by_optional_model, in_json),
        ("json:item", by_field, in_json),
        ("json:account.item", by_two, in_account),
        ("json:owner.id", by_model, in_owner),
        ("json:item", by_camel, in_json),
    ],
)
def test_a_number_has_one_count_wherever_a_client_sends_it(part: str, view: Any, send: Any) -> None:
    """FastAPI gives the view one value for all spellings, and another one for another number."""
    numbers = [7, 7.0] if part.startswith("json:") else []
    spellings = [send(text) for text in [*SEVEN, *numbers] if send is not in_cookie or text == str(text).strip()]
    assert send_all(serve(part, view), [*spellings, send("8")]) == [200] + [429] * (len(spellings) - 1) + [200]
    assert {*send_all(serve(part, view, has_limits=False), spellings)} == {200}


@each(
    ("kind", "spellings"),
    [
        (Annotated[int, Path(ge=1)], ["7", "07"]),
        (UUID, [ID, ID.upper(), ID.replace("-", "")]),
        (float, ["7", "7.0", "7.00", "70e-1"]),
        (float, ["0.0", "-0.0"]),
        (Decimal, ["7", "7.0", "7.00"]),
        (Plan, ["7", "007", "+7"]),
        (bool, ["true", "1", "T", "on", "yes", "Y"]),
        (bool, ["false", "0", "f", "off", "no", "n"]),
        (str, ["seven", "SEVEN", "seven ", "s\u00e9ven"]),
    ],
)
def test_a_parameter_has_one_count_for_all_its_spellings(kind: Any, spellings: list[str]) -> None:
    """FastAPI gives the view one value for all of them."""
    view = view_of(kind)
    requests = [in_path(spelling) for spelling in spellings]
    assert send_all(serve("path:item", view), requests) == [200] + [429] * (len(requests) - 1)
    assert {*send_all(serve("path:item", view, has_limits=False), requests)} == {200}


def view_of(kind: Any) -> Any:
    """Return a view with one parameter of this type."""

    def view(item: Any) -> None: ...

    view.__annotations__["item"] = kind
    return view


NUMBERS = ["acc-7", "acc-8", "acc-8", "7", "07", "8"]
ACCOUNTS: Any = (NUMBERS, [200, 200, 429, 429, 429, 429])
APART: Any = (NUMBERS, [200, 200, 429, 200, 429, 200])
TEXTS: Any = (["a", "b", "7", "07", "7"], [200] * 4 + [429])


@each(
    ("part", "view", "send", "table"),
    [
        # FastAPI responds to what is no number with 422, and all of it shares one count. A missing value has none.
        ("path:item", view_of(int), in_path, (["a", "b", "7", "07"], [422, 429, 200, 429])),
        ("path:item", view_of(bool), in_path, (["2", "maybe", "on"], [422, 429, 200])),
        ("json:item", by_model, in_json, (["seven", "7a", [7], 7.5], [422, 429, 429, 429])),
        ("json:item", by_model, in_json, ([None, None, None], [422] * 3)),
        ("json:item", by_model, in_json, ([True, 1, "01"], [200, 429, 429])),
        # A parameter that may be text is counted as text, and so is one that a view reads from the request.
        ("query:item", view_of(int | str), in_query, TEXTS),
        ("query:item", view_of(str), in_query, TEXTS),
        ("query:item", untyped, in_query, TEXTS),
        # A validator may read the text before it is converted. That of a model is not called, so all texts are apart.
        ("query:item", view_of(Prefixed), in_query, ACCOUNTS),
        ("query:item", view_of(Annotated[Prefixed | None, Query()]), in_query, ACCOUNTS),
        ("query:item", view_of(Annotated[WithValidator, Query()]), in_query, APART),
        ("form:item", view_of(Annotated[WithValidator, Form()]), in_form, APART),
        ("json:item", view_of(WithValidator), in_json, APART),
        ("json:item", view_of(Optionally), in_json, ACCOUNTS),
        # Pydantic reads units in a size. Decimal keeps all digits. Two types are tried in their order.
        ("query:item", view_of(ByteSize), in_query, (["1KB", "2KB", "2KB", "7", "07"], [200, 200, 429, 200, 429])),
        ("query:item", view_of(Decimal), in_query, ([ONE, TWO, f"{TWO}.0"], [200, 200, 429])),
        ("query:item", view_of(int | UUID), in_query, (["7", "07", ID, ID.upper()], [200, 429, 200, 429])),
        # Which model of a union FastAPI takes is not known.
        ("json:item", view_of(Annotated[Account | Named, Body()]), in_json, (["a", "b", "a"], [200, 200, 429])),
    ],
)
def test_values_have_the_counts_that_the_view_can_tell_apart(part: str, view: Any, send: Any, table: Any) -> None:
    """No two values of the view share a count, and no client has two."""
    values, expected = table
    assert send_all(serve(part, view), [send(value) for value in values]) == expected


def test_lists_and_costs_have_the_value_of_the_view() -> None:
    """A denied number is denied in all spellings."""
    settings: Any = {"rules": [], "lists": {"deny": {"query:item": ["7"]}}}
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, settings=settings)
    app.add_api_route("/", by_query)
    assert [ask(app, f"/?item={text}").status_code for text in ("7", "07", "%2B7", "8")] == [403, 403, 403, 200]


# -- users -----------------------------------------------------------------------------------------------------

REQUESTS = iter(range(1_000_000))


async def get_current_user(x_user: Annotated[int, Header()] = 7) -> User:
    return User(id=x_user, requests=next(REQUESTS))


def test_a_user_is_counted_by_an_attribute() -> None:
    """The model changes with each request. Its id does not."""

    async def by_user(request: Request, user: Any = Depends(get_current_user)) -> None:  # noqa: B008
        await check(request, "users", user=user)

    app = limited(FastAPI(), Rule(name="users", limits="2/minute", key=["user.id"], match={"view": ""}))
    app.get("/", dependencies=[Depends(by_user)])(lambda: None)
    assert statuses(app, *["/"] * 6) == [200] * 2 + [429] * 4
    assert statuses(app, "/", headers=[(b"x-user", b"8")]) == [200]
