"""The Django middleware takes its rules, decides requests and rejects clients, sync and async."""

import asyncio
import threading
from typing import Any, ClassVar

import pytest
from asgiref.sync import SyncToAsync, iscoroutinefunction, markcoroutinefunction
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.http import HttpResponse
from django.test import AsyncRequestFactory
from django.urls import path
from django.utils.deprecation import MiddlewareMixin
from django.views.decorators.http import require_POST
from django_calls import CLIENT, LOG, MIDDLEWARE, SESSIONS, ahello, hello, one_rule, project, still
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rejection, Rule
from ratelimit_mw.django import RateLimitMiddleware, limit
from ratelimit_mw.runtime.blocking import is_on_event_loop

# Models can be imported after django_calls has configured Django.
from django.contrib.auth.backends import ModelBackend  # isort: skip
from django.contrib.auth.models import User  # isort: skip


from django.core.handlers.wsgi import WSGIRequest
from django.template.response import SimpleTemplateResponse
from django.test import Client
from django_calls import raise_own

both = each("is_async", [False, True])


@each("options", [{}, {"key": ["region"]}])
def test_a_name_with_underscores_is_not_that_of_the_proxy(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Under ASGI, Django before 4.2.30, 5.2.13 and 6.0.4 joins both in META. The proxy writes the one with dashes."""
    proxy = [(b"x-forwarded-for", b"203.0.113.7"), (b"x-country", b"AT")]
    sent = [proxy]
    for country in (b"DE", b"DK"):
        forged = [(b"x_forwarded_for", b"198.51.100.%d" % country[1]), (b"x_country", country)]
        sent += [[*proxy, *forged], [*forged, *proxy]]

    def joining(get_response: Any) -> Any:
        async def join(request: Any) -> Any:
            headers = request.scope["headers"] = sent.pop(0)
            for name in ("x-forwarded-for", "x-country"):
                lines = [text for key, text in headers if key.decode().replace("_", "-") == name]
                request.META["HTTP_" + name.upper().replace("-", "_")] = b",".join(lines).decode()
            return await get_response(request)

        return markcoroutinefunction(join)

    joining.async_capable = True  # type: ignore[attr-defined]
    monkeypatch.setattr("django_calls.joining", joining, raising=False)
    settings = {"limiter": one_rule("1/minute", **options), "trusted_proxies": [CLIENT], "region_header": "x-country"}
    with project(settings, is_async=True, middleware=["django_calls.joining", *MIDDLEWARE]) as served:
        assert served.statuses(times=5) == [200, 429, 429, 429, 429]


def test_an_async_stack_stays_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an async stack the middleware does all its work on the event loop and uses no thread.

    This covers features, a missing user, costs, bodies, an async store, outcomes, slots and rejections.
    """
    calls: list[tuple[str, int]] = []

    def note(name: str, gives: Any) -> Any:
        def noting(*_: Any) -> Any:
            calls.append((name, threading.get_ident()))
            return gives

        return noting

    class Store(SharedStore):
        def count_call(self) -> None:
            note("store", None)()

    async def view(request: Any) -> HttpResponse:
        return note("view", HttpResponse(status=401))()

    def hop(*_: Any) -> None:
        raise AssertionError

    options = {"key": ["plan", "form:email", "user|ip"], "cost": note("cost", 1), "count_when": {"status": 401}}
    rules = [Rule(name="api", limits="1/minute", **LOG, **options), Rule(name="slots", limits="5 concurrent")]
    configuration = {
        "limiter": Limiter(rules, Store()),
        "features": {"plan": note("plan", "pro")},
        "rejection": note("rejection", HttpResponse(status=429)),
    }

    async def send_requests() -> list[int]:
        served = RateLimitMiddleware(view)
        form = {"data": "email=a@b.org", "content_type": "application/x-www-form-urlencoded"}
        return [(await served(AsyncRequestFactory().post("/", **form))).status_code for _ in range(2)]

    with project(configuration, path("", hello)):
        RateLimitMiddleware(view)
        monkeypatch.setattr(SyncToAsync, "__call__", hop)
        before = set(threading.enumerate())
        assert asyncio.run(send_requests()) == [401, 429]
    assert {name for name, _ in calls} == {"plan", "cost", "store", "view", "rejection"}
    assert {thread for _, thread in calls} == {threading.get_ident()}
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"ratelimit_mw heartbeat"}
    configuration["limiter"].close()


@both
def test_the_stack_stays_sync_or_async(is_async: bool) -> None:
    """Django adds no adapter around the middleware: it is a coroutine function only in an async stack."""
    with project():
        middleware = RateLimitMiddleware(ahello if is_async else hello)
    assert (middleware.sync_capable, middleware.async_capable) == (True, True)
    assert iscoroutinefunction(middleware) is is_async


@each("view", [require_POST(limit("2/minute")(hello)), limit("2/minute")(require_POST(hello))])
def test_a_view_that_requires_a_method_rejects_preflights(view: Any) -> None:
    """require_POST above or below @limit keeps OPTIONS from the view. The request counts, as every 405."""
    with project(None, path("", view)) as served:
        assert served.statuses(method="OPTIONS", times=1) == [405]
        assert served.statuses(method="POST", times=2) == [200, 429]


# -- users -----------------------------------------------------------------------------------------------------


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


# -- the responses to rejections -------------------------------------------------------------------------------


def test_an_error_below_middleware_with_a_request_of_its_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request has nothing of this package. The error is that of the view."""

    def failing(request: Any) -> Any:
        raise LookupError("of the view")

    def replacing(get_response: Any) -> Any:
        return lambda request: get_response(WSGIRequest({**request.META}))

    monkeypatch.setattr("django_calls.replacing", replacing, raising=False)
    middleware = [*MIDDLEWARE, "django_calls.replacing"]
    with (
        project(one_rule(), path("", failing), middleware=middleware),
        pytest.raises(LookupError, match="of the view"),
    ):
        Client().get("/")


TEXT = ("Content-Type", "text/plain")
BACKEND = "django.template.backends.django.DjangoTemplates"
LOADER = ("django.template.loaders.locmem.Loader", {"busy.html": "wait {{ time }} s"})
TEMPLATES = [{"BACKEND": BACKEND, "OPTIONS": {"loaders": [LOADER]}}]


async def respond_later(request: Any, verdict: Any) -> HttpResponse:
    return HttpResponse("later", status=429)


def render_later(request: Any, verdict: Any) -> HttpResponse:
    return SimpleTemplateResponse("busy.html", {"time": verdict.retry_after}, status=429)


@each("is_async", [False, True])
def test_your_own_page_may_have_several_forms(is_async: bool) -> None:
    """A coroutine, a template that is not rendered, a Rejection, None for the page of this package; else a 500."""
    expected: dict[Any, tuple[int, bytes]] = {
        respond_later: (429, b"later"),
        render_later: (429, b"wait 60.0 s"),
        (lambda *_: None): (429, b'{"type"'),
        (lambda *_: "busy"): (500, b""),
        (lambda *_: Rejection(429, [("Set-Cookie", "a=1"), TEXT], b"wait")): (429, b"wait"),
        (lambda *_: Rejection(429, [("Set-Cookie", "a=1"), ("set-cookie", "b=1"), TEXT], b"wait")): (500, b""),
        (lambda *_: Rejection(429, [("Set-Cookie", "a=1\r\nX-Injected: 1")], b"")): (500, b""),
    }
    for function, (status, start) in expected.items():
        options = {"limiter": one_rule("1/minute"), "rejection": function}
        with project(options, is_async=is_async, TEMPLATES=TEMPLATES) as served:
            response = [served.ask() for _ in range(2)][-1]
        assert (response.status_code, response.content[: len(start)]) == (status, start), function


@each("is_async", [False, True])
def test_django_logs_no_line_for_a_rejection(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It would mail those of an outage to ADMINS. Other responses are logged as ever."""
    caplog.clear()
    patterns = [
        path("", hello),
        path("own", lambda request: raise_own()),
        path("busy", lambda _: HttpResponse(status=503)),
    ]
    with project(one_rule("2/minute"), *patterns, is_async=is_async) as served:
        assert [served.ask(place).status_code for place in ("/busy", "/own", "/")] == [503, 429, 429]
    assert [record.getMessage() for record in caplog.records] == ["Service Unavailable: /busy"]


@each("is_async", [False, True])
def test_a_page_that_fails_keeps_no_slot(is_async: bool) -> None:
    """The request has ended all the same, when the page for a rejection of the view fails."""
    limiter = one_rule("1 concurrent")
    options = {"limiter": limiter, "rejection": lambda request, verdict: 1 / 0}
    with project(options, path("", lambda request: raise_own()), is_async=is_async) as served:
        assert served.statuses(times=2) == [500, 500]
    assert limiter.peek({"ip": "192.0.2.7"}).allowed
