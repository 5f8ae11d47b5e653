"""Rules by endpoint, view and path parameters, and values of features that need a stable text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sites import CLIENT, Build, only, routed
from tables import each

from ratelimit_mw import ConfigError, Rule


@only({"starlette", "fastapi", "flask"})  # Django leaves methods to the view
@each("match", [{"endpoint": "/items/{item}"}, {"view": "items-item"}])
def test_a_405_counts_under_the_template_of_its_path(site: Build, match: Any) -> None:
    """As a request that reaches the view does, with the parameters of the path."""
    served = site(Rule(limits="1/minute", match=match, key=["endpoint", "path:item"]), {"/items/{item}": 200})
    asked = [("TRACE", 7), ("PUT", 7), ("GET", 7), ("GET", 8), ("TRACE", 8)]
    statuses = [served.call(method, f"/items/{item}").status_code for method, item in asked]
    assert statuses == [405, 429, 429, 200, 429]
    assert served.call("TRACE", "/nowhere").status_code == 404


@routed
def test_a_rule_names_a_view(site: Build) -> None:
    """It holds for all paths of the view, and for no other."""
    rule = Rule(limits="1/minute", key=[], match={"view": "items-item"})
    served = site(rule, {"/items/{item}": 200, "/other": 200})
    assert [served.call(path=path).status_code for path in ("/items/1", "/items/2", "/other")] == [200, 429, 200]


@routed
def test_an_endpoint_is_the_template_of_its_route(site: Build) -> None:
    """All paths of a route share a count, and so do all paths without a route."""
    served = site(Rule(limits="1/minute", key=["endpoint"]), {"/items/{item}": 200, "/other": 200})
    paths = ("/items/1", "/items/2", "/other", "/nowhere", "/.env")
    assert [served.call(path=path).status_code for path in paths] == [200, 429, 200, 404, 429]
    assert served.left(endpoint="/items/{item}") == [0]


@routed
def test_a_parameter_of_a_path_is_a_feature(site: Build) -> None:
    """In all routes that have it. A route without it is not limited."""
    served = site(Rule(limits="1/minute", key=["path:item"]), {"/a/{item}": 200, "/b/{item}": 200, "/c/{other}": 200})
    paths = ("/a/1", "/a/2", "/b/1", "/c/1", "/c/1")
    assert [served.call(path=path).status_code for path in paths] == [200, 200, 429, 200, 200]


@routed
def test_a_stated_type_has_one_count(site: Build) -> None:
    """The route takes any text, and the rule says what the application makes of it."""
    served = site(Rule(limits="1/minute", key=["path:item as int"]), {"/items/{item}": 200})
    asked = ("7", "007", "+7", "7.0", "x", "y", "8")
    statuses = [served.call(path=f"/items/{item}").status_code for item in asked]
    assert statuses == [200, 429, 429, 429, 200, 429, 200]


# -- functions of features and of limits -----------------------------------------------------------------------


class Person:
    """A user as frameworks keep it."""

    def __init__(self, visits: int) -> None:
        self.id = "ann"
        self.visits = visits


VISITS = iter(range(1_000_000))
Read = Callable[[Any], Any]


def anyone(request: Any) -> Any:
    return Person(next(VISITS))


async def awaited(request: Any) -> Person:
    return Person(next(VISITS))


@each("read", [anyone, awaited])
def test_a_user_has_one_count_whatever_changes(site: Build, read: Read) -> None:
    """The key names the attribute that identifies a user. Plain WSGI awaits no function."""
    if read is not awaited or site.name != "wsgi":
        served = site(Rule(limits="1/minute", key=["user.id"]), features={"user": read})
        assert served.statuses(6) == [200] + [429] * 5


def test_an_attribute_of_a_text_is_an_error_at_the_start(site: Build) -> None:
    """The error says what to write."""
    with pytest.raises(ConfigError, match=r"uses 'user.id', but the built-in feature 'user' is a text\. Write 'user'"):
        raise site(Rule(limits="1/minute", key=["user.id"])).call().extensions["error"]


def test_an_unstable_value_is_never_served(site: Build) -> None:
    """Each request is an error: it is never served without its limit."""
    assert site(Rule(limits="1/minute", key=["user"]), features={"user": anyone}).statuses(3) == [500] * 3


def limits_of(ip: str) -> str:
    return "2/minute" if ip in (CLIENT, "ann") else "5/minute"


async def alimits_of(ip: str) -> str:
    return limits_of(ip)


@each("limits", [limits_of, alimits_of])
def test_functions_limit_requests(place: Build, limits: Any) -> None:
    """Sync and async, in blocking and async applications."""
    served = place({"limits": limits, "key": ["ip"], "name": "login"}, 200)
    responses = [served.call() for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert [response.headers["x-ratelimit-limit"] for response in responses] == ["2"] * 3


def failing(ip: str) -> str:
    raise KeyError(ip)


def test_a_function_that_fails_rejects_requests(place: Build) -> None:
    """The limit does not go missing, and the client learns that the server is at fault."""
    response = place({"limits": failing, "key": ["ip"], "name": "login"}, 200).call()
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
