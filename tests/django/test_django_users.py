"""The user feature in Django, sync and async, and the requests that do not read it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.urls import path
from django.utils.deprecation import MiddlewareMixin
from django_calls import MIDDLEWARE, SESSIONS, hello, project, still
from tables import each

from ratelimit_mw.stores.blocking import is_on_event_loop

# Models can be imported after django_calls has configured Django.
from django.contrib.auth.backends import ModelBackend  # isort: skip
from django.contrib.auth.models import User  # isort: skip

both = each("is_async", [False, True])


class Backend(ModelBackend):
    """Django's own backend without the database, which notes the users that it is asked for."""

    asked: ClassVar[list[int]] = []

    def get_user(self, user_id: int) -> Any:
        assert not is_on_event_loop(), "a database would raise an error"
        return self.find(user_id)

    async def aget_user(self, user_id: int) -> Any:
        return self.find(user_id)

    def find(self, user_id: int) -> Any:
        self.asked.append(user_id)
        return User(pk=user_id, password="secret")


class WithoutAuser(MiddlewareMixin):
    """Django before 5 has no ``request.auser``, so an async stack reads the user in a thread."""

    def process_request(self, request: Any) -> None:
        vars(request).pop("auser", None)


def session_of(pk: int) -> dict[str, str]:
    """Return the session cookie of a browser that is signed in as this user."""
    session = SessionStore()
    session[SESSION_KEY], session[BACKEND_SESSION_KEY] = str(pk), "django_calls.Backend"
    session[HASH_SESSION_KEY] = Backend().get_user(pk).get_session_auth_hash()
    session.save()
    return {"cookie": f"sessionid={session.session_key}"}


@both
@each("between", [[], ["django_calls.WithoutAuser"]])
def test_signed_in_users_count_by_primary_key(
    is_async: bool, between: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind Django's own middleware, each user of one IP address has a limit, and other clients count by address.

    A forged session has no user. Rules without a user do not read it.
    """
    for kind in (Backend, WithoutAuser):
        monkeypatch.setattr(f"django_calls.{kind.__name__}", kind, raising=False)
    own = {"name": "own", "key": ["user|ip"], "limits": "1/minute", "match": {"path": "/own"}}
    rules = still({"rules": [{"name": "all", "limits": "9/minute"}, own]})
    settings = {"AUTHENTICATION_BACKENDS": ["django_calls.Backend"], "middleware": [*SESSIONS, *between, *MIDDLEWARE]}
    with project(rules, path("own", hello), path("", hello), is_async=is_async, **settings) as served:
        invented = {"cookie": "sessionid=invented"}
        requests = [session_of(7), session_of(8), session_of(7), {}, invented]
        Backend.asked.clear()
        assert served.ask(headers=requests[0]).status_code == 200
        assert Backend.asked == []
        assert [served.ask("/own", headers=headers).status_code for headers in requests] == [200, 200, 429, 200, 429]
        assert Backend.asked == [7, 8, 7]
        assert served.ask("/own", client="198.51.100.1").status_code == 200
