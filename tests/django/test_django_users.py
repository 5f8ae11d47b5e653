"""The user feature in Django, sync and async, and the requests that do not read it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.urls import path
from django.utils.decorators import sync_and_async_middleware
from django.utils.functional import SimpleLazyObject
from django_calls import MIDDLEWARE, SESSIONS, ahello, hello, one_rule, project, still
from tables import each

# Models can be imported after django_calls has configured Django.
from django.contrib.auth.backends import ModelBackend  # isort: skip
from django.contrib.auth.models import User  # isort: skip

both = each("is_async", [False, True])


def authentication_middleware(accesses: list[str]) -> Any:
    """Build a lazy replacement of AuthenticationMiddleware that takes the user from a header and records access."""

    def user_of(request: Any) -> Any:
        accesses.append(request.path)
        name = request.headers.get("x-user")
        return SimpleNamespace(pk=int(name or 0), is_authenticated=bool(name))

    @sync_and_async_middleware
    def middleware(get_response: Any) -> Any:
        def prepare(request: Any) -> None:
            async def auser() -> Any:
                return user_of(request)

            request.user, request.auser = SimpleLazyObject(lambda: user_of(request)), auser

        async def acall(request: Any) -> Any:
            prepare(request)
            return await get_response(request)

        def call(request: Any) -> Any:
            prepare(request)
            return get_response(request)

        return acall if asyncio.iscoroutinefunction(get_response) else call

    return middleware


@both
def test_the_user_is_the_user_of_django(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed-in users count by primary key, others by IP address. Rules without a user do not read it."""
    asked_for: list[str] = []
    monkeypatch.setattr("django_calls.signing_in", authentication_middleware(asked_for), raising=False)
    own = {"name": "own", "key": ["user|ip"], "limits": "1/minute", "match": {"path": "/own"}}
    rules = still({"rules": [{"name": "all", "limits": "9/minute"}, own]})
    middleware = ["django_calls.signing_in", *MIDDLEWARE]
    with project(rules, path("own", hello), path("", hello), is_async=is_async, middleware=middleware) as served:
        served.ask()
        assert asked_for == []
        requests = [{"x-user": "7"}, {"x-user": "8"}, {}, {"x-user": "7"}, {}]
        assert [served.ask("/own", headers=headers).status_code for headers in requests] == [200, 200, 200, 429, 429]
        assert len(asked_for) == 5


class Backend(ModelBackend):
    """Django's own backend without the database."""

    def get_user(self, user_id: int) -> Any:
        return User(pk=user_id, password="secret")

    async def aget_user(self, user_id: int) -> Any:
        return self.get_user(user_id)


def session_of(pk: int) -> dict[str, str]:
    """Return the session cookie of a browser that is signed in as this user."""
    session = SessionStore()
    session[SESSION_KEY], session[BACKEND_SESSION_KEY] = str(pk), "django_calls.Backend"
    session[HASH_SESSION_KEY] = Backend().get_user(pk).get_session_auth_hash()
    session.save()
    return {"cookie": f"sessionid={session.session_key}"}


@both
def test_signed_in_users_count_by_primary_key(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind Django's own middleware, each user of one IP address has a limit. A forged session has no user."""
    monkeypatch.setattr("django_calls.Backend", Backend, raising=False)
    rules = {"rules": [{"name": "own", "key": ["user|ip"], "limits": "1/minute"}]}
    listed = [*SESSIONS, *MIDDLEWARE]
    settings = {"AUTHENTICATION_BACKENDS": ["django_calls.Backend"]}
    with project(still(rules), is_async=is_async, middleware=listed, **settings) as served:
        invented = {"cookie": "sessionid=invented"}
        requests = [session_of(7), session_of(8), session_of(7), {}, invented]
        assert [served.ask(headers=headers).status_code for headers in requests] == [200, 200, 429, 200, 429]
        assert served.ask(client="198.51.100.1").status_code == 200


def test_an_old_django_has_no_auser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without request.auser, as before Django 5, an async stack reads the user in a thread."""
    lazily = authentication_middleware([])

    @sync_and_async_middleware
    def without_auser(get_response: Any) -> Any:
        async def call(request: Any) -> Any:
            del request.auser
            return await get_response(request)

        return lazily(call)

    monkeypatch.setattr("django_calls.signing_in", without_auser, raising=False)
    middleware = ["django_calls.signing_in", *MIDDLEWARE]
    with project(one_rule("1/minute", key=["user"]), is_async=True, middleware=middleware) as served:
        assert [served.ask(headers={"x-user": name}).status_code for name in "778"] == [200, 429, 200]


def test_without_authentication_no_thread_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a middleware for users, an async stack does not leave its event loop."""

    def hop(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("ratelimit_mw.django.request.sync_to_async", hop)
    with project(one_rule("1/minute", key=["user|ip"]), path("", ahello), is_async=True) as served:
        assert served.statuses(times=2) == [200, 429]
