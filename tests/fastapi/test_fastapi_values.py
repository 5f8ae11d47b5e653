"""Keys have path parameters of FastAPI by their annotations, and users by an attribute of a dependency's value."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any, NewType
from uuid import UUID

import pytest
from calls import ask
from fastapi import Body, Cookie, Depends, FastAPI, Form, Header, Path, Query, Request
from fastapi_apps import limited, statuses
from pydantic import BaseModel, BeforeValidator, ByteSize, RootModel, field_validator
from tables import each
from typing_extensions import TypedDict

from ratelimit_mw import FeatureTypeError, Rule
from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware

ID = "12345678-1234-5678-1234-567812345678"


class Plan(IntEnum):
    FREE = 7


class User(BaseModel):
    id: int
    requests: int


REQUESTS = iter(range(1_000_000))


async def get_current_user(x_user: Annotated[int, Header()] = 7) -> User:
    return User(id=x_user, requests=next(REQUESTS))


def item_of(item: int) -> int:
    return item


def by_parameter(name: str) -> Rule:
    return Rule(name="item", limits="1/minute", key=[f"path:{name}"])


@each(
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


def test_a_model_as_a_user_is_an_error_of_the_request() -> None:
    """Each change of a field would be a new key. No request is served without its limit."""
    app = limited(FastAPI())
    limit = RateLimit("2/minute", key=["user"], features={"user": get_current_user})
    app.get("/", dependencies=[Depends(limit)])(lambda: None)
    for _ in range(3):
        with pytest.raises(FeatureTypeError, match="'user' is of type User"):
            ask(app, "/")


# -- values outside the path ----------------------------------------------------------------------------

SEVEN = ["7", "07", "+7", " 7", "7.0", "0_7"]
Id = Annotated[int | None, Query(alias="item")]


class Account(BaseModel):
    item: int
    key: UUID | None = None
    owner: User | None = None


@dataclass
class Plain:
    item: int


class Typed(TypedDict):
    item: int


class Camel(BaseModel, alias_generator=lambda name: name.replace("the_", "")):
    the_item: int


Number = NewType("Number", int)
Serial = NewType("Serial", Number)


class Wide(BaseModel):
    x_item: int


class Whole(RootModel[int]): ...


class Order(BaseModel):
    item: Whole | None = None


def by(part: str) -> Rule:
    return Rule(name="item", limits="1/minute", key=[part])


def by_query(item: int) -> None: ...
def by_alias(number: Id = None) -> None: ...
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
def by_nested(account: Account) -> None: ...
def by_list(item: Annotated[list[int] | None, Query()] = None) -> None: ...
def by_dataclass(account: Plain) -> None: ...
def by_typed_dict(account: Typed) -> None: ...
def by_camel(account: Camel) -> None: ...
def by_new_type(item: Serial) -> None: ...
def by_root_model(order: Order) -> None: ...
def by_account_as_root(account: RootModel[Account]) -> None: ...


Sending = dict[str, Any]


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


@each(
    ("part", "view", "send", "more"),
    [
        ("query:item", by_query, in_query, []),
        ("query:item", by_alias, in_query, []),
        ("query:item", by_query_model, in_query, []),
        ("query:item", by_dependency, in_query, []),
        ("header:x-item", by_header, in_header, []),
        ("header:x-item", by_header_model, in_header, []),
        ("cookie:item", by_cookie, in_cookie, []),
        ("form:item", by_form, in_form, []),
        ("form:item", by_form_model, in_form, []),
        ("field:item", by_form, in_form, []),
        ("json:item", by_model, in_json, [7, 7.0]),
        ("field:item", by_model, in_json, [7, 7.0]),
        ("json:item", by_optional_model, in_json, [7, 7.0]),
        ("json:item", by_field, in_json, [7, 7.0]),
        ("json:account.item", by_two, in_account, [7, 7.0]),
        ("json:owner.id", by_nested, in_owner, [7, 7.0]),
        ("query:item", by_list, in_query, []),
        ("query:item", by_new_type, in_query, []),
        ("json:item", by_dataclass, in_json, [7, 7.0]),
        ("json:item", by_typed_dict, in_json, [7, 7.0]),
        ("json:item", by_camel, in_json, [7, 7.0]),
        ("json:item", by_root_model, in_json, [7, 7.0]),
        ("json:item", by_account_as_root, in_json, [7, 7.0]),
    ],
)
def test_a_number_has_one_count_wherever_a_client_sends_it(part: str, view: Any, send: Any, more: list[Any]) -> None:
    """FastAPI gives the view one value for all spellings, and another one for another number."""
    app = limited(FastAPI(), by(part))
    app.add_api_route("/", view, methods=["POST"])
    free = FastAPI()
    free.add_api_route("/", view, methods=["POST"])
    spellings = [text for text in SEVEN if send is not in_cookie or text.strip() == text] + more
    sent = [ask(app, method="POST", **send(text)).status_code for text in spellings]
    assert sent == [200] + [429] * (len(spellings) - 1)
    assert {ask(free, method="POST", **send(text)).status_code for text in spellings} == {200}
    assert ask(app, method="POST", **send("8")).status_code == 200


def test_what_is_no_number_shares_a_count_and_a_missing_one_is_missing() -> None:
    """FastAPI responds to the first with 422. A missing value, such as null, is not counted."""
    app = limited(FastAPI(), by("json:item"))
    app.add_api_route("/", by_model, methods=["POST"])
    values = ["seven", "7a", [7], 7.5]
    assert [ask(app, method="POST", **in_json(value)).status_code for value in values] == [422, 429, 429, 429]
    assert [ask(app, method="POST", **in_json(None)).status_code for _ in range(3)] == [422] * 3
    truths = [ask(app, method="POST", **in_json(value)).status_code for value in (True, 1, "01")]
    assert truths == [200, 429, 429]


def test_a_parameter_that_may_be_text_is_counted_as_text() -> None:
    """Numbers are other texts then, and no text is invalid. So is a parameter that a view reads from the request."""

    def either(item: int | str) -> None: ...
    def text(item: str) -> None: ...
    def untyped(request: Request) -> None: ...

    for view in (either, text, untyped):
        app = limited(FastAPI(), by("query:item"))
        app.add_api_route("/", view)
        assert statuses(app, "/?item=a", "/?item=b", "/?item=7", "/?item=07", "/?item=7") == [200] * 4 + [429]


def without_prefix(value: Any) -> Any:
    return value.removeprefix("acc-") if isinstance(value, str) else value


Prefixed = Annotated[int, BeforeValidator(without_prefix)]


class WithValidator(BaseModel):
    item: int
    other: int = 0

    _read = field_validator("item", mode="before")(without_prefix)


class Optionally(BaseModel):
    item: Prefixed | None = None


@each(
    ("part", "kind", "send"),
    [
        ("query:item", Prefixed, in_query),
        ("query:item", Annotated[Prefixed | None, Query()], in_query),
        ("query:item", Annotated[WithValidator, Query()], in_query),
        ("form:item", Annotated[WithValidator, Form()], in_form),
        ("json:item", WithValidator, in_json),
        ("json:item", Optionally, in_json),
    ],
)
def test_a_validator_before_the_conversion_makes_many_clients(part: str, kind: Any, send: Any) -> None:
    """What it reads is known to FastAPI only: two accounts share no count, and a number still has one."""

    def view(item: Any) -> None: ...

    view.__annotations__["item"] = kind
    app = limited(FastAPI(), by(part))
    app.add_api_route("/", view, methods=["POST"])
    sent = [ask(app, method="POST", **send(text)).status_code for text in ("acc-7", "acc-8", "acc-8", "7", "07", "8")]
    assert sent == [200, 200, 429, 200, 429, 200]


def test_a_type_with_a_conversion_of_its_own_makes_many_clients() -> None:
    """Pydantic reads units in a size."""

    def view(item: ByteSize) -> None: ...

    view.__annotations__["item"] = ByteSize
    app = limited(FastAPI(), by("query:item"))
    app.add_api_route("/", view)
    assert statuses(app, "/?item=1KB", "/?item=2KB", "/?item=2KB", "/?item=7", "/?item=07") == [200, 200, 429, 200, 429]


def test_long_numbers_are_not_rounded() -> None:
    """Decimal calculates with 28 digits, and keeps all."""

    def view(item: Decimal) -> None: ...

    view.__annotations__["item"] = Decimal
    app = limited(FastAPI(), by("query:item"))
    app.add_api_route("/", view)
    long = "1" * 40
    assert statuses(app, f"/?item={long}1", f"/?item={long}2", f"/?item={long}2.0") == [200, 200, 429]


def test_two_types_are_tried_in_their_order() -> None:
    """A value of the second type is one value, too."""

    def view(item: int | UUID) -> None: ...

    app = limited(FastAPI(), by("query:item"))
    app.add_api_route("/", view)
    assert statuses(app, "/?item=7", "/?item=07", f"/?item={ID}", f"/?item={ID.upper()}") == [200, 429, 200, 429]


def test_the_models_of_a_union_may_have_other_types() -> None:
    """Which of them FastAPI takes is not known, so the field is text."""

    class Named(BaseModel):
        item: str

    def view(account: Annotated[Account | Named, Body()]) -> None: ...

    view.__annotations__["account"] = Annotated[Account | Named, Body()]
    app = limited(FastAPI(), by("json:item"))
    app.add_api_route("/", view, methods=["POST"])
    assert [ask(app, method="POST", **in_json(value)).status_code for value in ("a", "b", "a")] == [200, 200, 429]


def test_a_type_for_type_checkers_only_is_text() -> None:
    """The fields of the class cannot be read, so each spelling has its own count."""

    @dataclass
    class Unknown:
        item: int

    def view(account: Unknown) -> None: ...

    view.__annotations__["account"] = Unknown
    app = limited(FastAPI(), by("json:item"))
    app.add_api_route("/", view, methods=["POST"])
    Unknown.__annotations__["item"] = "Nowhere"  # as below TYPE_CHECKING
    assert [ask(app, method="POST", **in_json(value)).status_code for value in ("7", "07", "7")] == [200, 200, 429]


def test_lists_and_costs_have_the_value_of_the_view() -> None:
    """A denied number is denied in all spellings."""
    settings: Any = {"rules": [], "lists": {"deny": {"query:item": ["7"]}}}
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, settings=settings)
    app.add_api_route("/", by_query)
    assert [ask(app, f"/?item={text}").status_code for text in ("7", "07", "%2B7", "8")] == [403, 403, 403, 200]
