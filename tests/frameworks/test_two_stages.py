"""Two middlewares with one limiter: the outer one counts by IP address, the inner one by user."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpResponse
from django_calls import MIDDLEWARE
from sites import SITES, Call
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware

from ratelimit_mw import Limiter, wsgi

SETTINGS: Any = {
    "rules": [
        {"name": "attempts", "limits": "5/hour", "match": {"methods": "POST"}},
        {"name": "api", "limits": "3/hour", "key": ["user|ip"]},
        {"name": "plans", "limits": "30/hour", "per": {"user": {"bob": "20/hour"}}},
    ],
}
TRIED: list[str] = []
Ask = Callable[..., Any]


def user_of(header: str | None) -> str | None:
    """Return the user of an ``Authorization`` header, "" for a wrong password, None without a header."""
    if not header:
        return None
    name, _, password = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
    TRIED.append(password)
    return name if password == "right" else ""


def login(name: str, password: str = "right") -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


class Backend(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> Any:
        user = user_of(conn.headers.get("authorization"))
        if user == "":
            raise AuthenticationError("wrong password")
        return user and (AuthCredentials(), SimpleUser(user))


class Authenticates:
    """A WSGI middleware that sets ``REMOTE_USER``."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        user = user_of(environ.get("HTTP_AUTHORIZATION"))
        if user == "":
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [b""]
        return self.app({**environ, **({"REMOTE_USER": user} if user else {})}, start_response)


async def shown(call: Call) -> str:
    return " ".join(call.verdict.rules)


def authenticates(get_response: Any) -> Any:
    """Django middleware that sets ``request.user``, and rejects wrong passwords."""

    class User:
        is_authenticated = True

        def __init__(self, pk: str) -> None:
            self.pk = pk

    def sign_in(request: Any) -> HttpResponse | None:
        user = user_of(request.headers.get("authorization"))
        if user:
            request.user = User(user)
        return HttpResponse(status=400) if user == "" else None

    if iscoroutinefunction(get_response):

        async def acall(request: Any) -> Any:
            return sign_in(request) or await get_response(request)

        return markcoroutinefunction(acall)
    return lambda request: sign_in(request) or get_response(request)


authenticates.sync_capable = authenticates.async_capable = True  # type: ignore[attr-defined]


BETWEEN: dict[str, Any] = {
    **dict.fromkeys(("asgi", "starlette", "fastapi"), partial(AuthenticationMiddleware, backend=Backend())),
    **dict.fromkeys(("wsgi", "flask"), Authenticates),
}


@pytest.fixture(params=SITES)
def served(request: pytest.FixtureRequest) -> Iterator[Ask]:
    TRIED.clear()
    limiter = Limiter.from_settings(SETTINGS)
    options: dict[str, Any] = {"middleware": [*MIDDLEWARE, f"{__name__}.authenticates", *MIDDLEWARE]}
    if request.param in BETWEEN:
        options = {"outer": {"limiter": limiter, "before_user": True}, "between": BETWEEN[request.param]}
    with SITES[request.param](limiter, shown, **options) as site:
        yield lambda method, headers: site.call(method, headers=headers)


@pytest.mark.slow
def test_failed_logins_are_limited_by_ip(served: Ask) -> None:
    """Authentication rejects before the inner middleware, so the outer one counts: of 500 passwords, 5 are tried."""
    statuses = [served("POST", login("ann", f"guess {number}")).status_code for number in range(500)]
    assert statuses == [400] * 5 + [429] * 495
    assert len(TRIED) == 5


def test_users_behind_one_address_have_their_own_limits(served: Ask) -> None:
    """The outer middleware does not count "user|ip" by IP address. Requests without a user share that count."""
    assert [served("GET", login("ann")).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert [served("GET", login("bob")).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert [served("GET", {}).status_code for _ in range(4)] == [200, 200, 200, 429]


def test_headers_and_verdict_show_both_stages(served: Ask) -> None:
    """An allowed request shows the rules of both; a rejection shows those that reject."""
    response = served("POST", login("bob"))
    assert sorted(response.text.split()) == ["api", "attempts", "plans"]
    policy = response.headers["ratelimit-policy"].split(", ")
    assert policy == ['"attempts";q=5;w=3600', '"api";q=3;w=3600', '"plans";q=20;w=3600']
    assert (response.headers["x-ratelimit-limit"], response.headers["x-ratelimit-remaining"]) == ("3", "2")
    rejected = [served("GET", login("bob")) for _ in range(3)][-1]
    assert (rejected.status_code, rejected.headers["x-ratelimit-limit"]) == (429, "3")
    assert rejected.headers["ratelimit"].startswith('"api";r=0;t=')
    assert len(rejected.headers.get_list("ratelimit")) == 1


def test_a_response_of_the_authentication_shows_the_outer_stage(served: Ask) -> None:
    """The inner middleware was not reached, so the headers are those of the outer one."""
    assert served("POST", login("ann", "wrong")).headers["ratelimit-policy"] == '"attempts";q=5;w=3600'


def test_a_request_that_nothing_has_decided_keeps_its_plan() -> None:
    """Django asks for the undecided rest of each plan. A copy would fill the caches that have one entry per plan."""
    limits = wsgi.RateLimitMiddleware(lambda *_: [], settings=SETTINGS).http_limiter.in_force
    plan = limits.rules.plan("GET", "/")
    assert limits.undecided(plan, {}) is plan
