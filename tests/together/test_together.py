"""FastAPI, Flask and Django share one store: a client, a route, a user and an email address are the same in each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, islice
from typing import Any

import pytest
from sites import NOW, SITES, Site, limited

from ratelimit_mw import Limiter, SettingsDict
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

SETTINGS: SettingsDict = {
    "trusted_proxies": ["192.0.2.7"],
    "email_field": "email",
    "rules": [
        {"name": "client", "match": {"path": "/page"}, "limits": "6/hour"},
        {"name": "item", "match": {"path": "/items/{number}"}, "key": ["endpoint", "user|ip"], "limits": "6/hour"},
        {
            "name": "login",
            "match": {"path": "/login", "methods": ["POST"]},
            "key": ["email"],
            "limits": "6/hour",
            "count_when": {"status": 401},
        },
        {"overrides": "report", "limits": "6/hour"},
    ],
}
VIEWS: Any = {
    "/page": 200,
    "/items/{number}": 200,
    "/login": 401,
    "/report": limited(200, "2/hour", name="report", key=["user"]),
}
ROUNDS = [True] * 6 + [False] * 3
"""Three times around the three applications, under a limit of six."""


def user_of(request: Any) -> Any:
    return request.headers.get("X-User")


@pytest.fixture
def sites() -> Iterator[list[Site]]:
    """The three applications with one store. Each has a limiter of its own, as in a process of its own."""
    store = MemoryStore()
    with ExitStack() as stack:
        limiters = [Limiter.from_settings(SETTINGS, ManualClock(NOW), store) for _ in range(3)]
        features = {"user": user_of}
        yield [
            stack.enter_context(SITES[name](limiter, VIEWS, features=features))
            for name, limiter in zip(("fastapi", "flask", "django"), limiters, strict=True)
        ]


def allowed(sites: list[Site], requests: list[dict[str, Any]]) -> list[bool]:
    """Send requests in turn, to each application in turn, and return which of them are allowed."""
    sent = zip(cycle(sites), islice(cycle(requests), len(ROUNDS)), strict=False)
    statuses = [site.call(**request).status_code for site, request in sent]
    assert set(statuses) <= {200, 401, 429}
    return [status != 429 for status in statuses]


def get(path: str, **headers: str) -> dict[str, Any]:
    return {"path": path, "headers": {name.replace("_", "-"): value for name, value in headers.items()}}


def test_applications_share_the_count_of_a_client(sites: list[Site]) -> None:
    """Six pages an hour are six for all applications, and each reports the remaining pages."""
    for client in ("192.0.2.1", "192.0.2.2"):
        request = get("/page", x_forwarded_for=client)
        responses = [site.call(**request) for site, _ in zip(cycle(sites), ROUNDS, strict=False)]
        assert [response.status_code == 200 for response in responses] == ROUNDS
        assert [response.headers["x-ratelimit-remaining"] for response in responses] == list("543210000")
        assert {response.headers["ratelimit-policy"] for response in responses} == {'"client";q=6;w=3600'}


def test_applications_share_the_counts_of_routes_and_users(sites: list[Site]) -> None:
    """``/items/{number}`` and ``/items/<number>`` are one endpoint. A user has any IP address."""
    assert allowed(sites, [get(f"/items/{number}", x_forwarded_for="192.0.2.3") for number in range(9)]) == ROUNDS
    of_user = [get("/items/1", x_user="7", x_forwarded_for=f"192.0.2.{100 + number}") for number in range(9)]
    assert allowed(sites, of_user) == ROUNDS
    assert allowed(sites, [get("/items/1", x_user="8")]) == ROUNDS


def test_applications_share_the_failed_logins_of_an_email(sites: list[Site]) -> None:
    """From JSON and forms, in any spelling."""
    bodies: list[dict[str, Any]] = [
        {"json": {"email": "Ann@Example.com"}},
        {"data": {"email": " ann@example.com"}},
        {"data": {"email": "ANN@example.COM"}},
    ]
    assert allowed(sites, [{"method": "POST", "path": "/login", **body} for body in bodies]) == ROUNDS


def test_decorators_with_one_name_share_a_count(sites: list[Site]) -> None:
    """The settings override the three decorators named ``report`` with one limit, which has one count."""
    assert allowed(sites, [get("/report", x_user="9")]) == ROUNDS
