"""Warnings about an application: logged once, and those that need no request shown by ``check``."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, TypedDict

import pytest
from calls import OK, ask
from command_line import run
from django_calls import MIDDLEWARE, SESSIONS, project
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.authentication import AuthenticationBackend
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette_apps import hello as starlette_hello
from tables import each
from wsgi_calls import listing

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.http import warnings
from ratelimit_mw.starlette import limit
from ratelimit_mw.stores import budget
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

# The checks of Django are registered on the import of django_calls.
from django.core.checks import run_checks  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip

RULES: Any = {"rules": [{"name": "site", "limits": "100/minute"}, {"name": "api", "key": ["user"], "limits": "9/s"}]}


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Return the log, as in a new process."""
    warnings.warn.cache_clear()
    caplog.set_level(logging.WARNING, "ratelimit_mw")
    yield caplog
    warnings.warn.cache_clear()


def starlette(*layers: Any) -> Starlette:
    app = Starlette(routes=[Route("/", starlette_hello)])
    for cls, options in layers:
        app.add_middleware(cls, **options)
    return app


CORS = (CORSMiddleware, {"allow_origins": ["*"], "expose_headers": ["retry-after", "RateLimit"]})
LIMITS = (RateLimitMiddleware, {"settings": RULES})


class Strangers(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> None:
        """Know nobody."""


AUTHENTICATION = (AuthenticationMiddleware, {"backend": Strangers()})


def shown(app: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the JSON of ``check --app`` and its exit code."""
    module = ModuleType(name)
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    result = run("check", "--app", f"{name}:app", "--json")
    return json.loads(result.stdout), result.exit_code


def in_starlette(settings: Any, **options: Any) -> Any:
    return starlette((RateLimitMiddleware, {"settings": settings, **options}))


def in_fastapi(settings: Any, **options: Any) -> Any:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, settings=settings, **options)
    return app


def in_flask(settings: Any, **options: Any) -> Any:
    app = Flask("app")
    RateLimiter(app, settings=settings, **options)
    return app


def with_login(settings: Any, **options: Any) -> Any:
    app = in_flask(settings, **options)
    app.login_manager = object()  # as Flask-Login sets it
    return app


def in_asgi(settings: Any, **options: Any) -> Any:
    return RateLimitMiddleware(OK, settings, **options)


def in_wsgi(settings: Any, **options: Any) -> Any:
    return WSGIMiddleware(listing, settings, **options)


def started(app: Any) -> None:
    """Start an application as a server does, and send a request to one of ASGI."""
    if isinstance(app, Flask):
        app.test_client().get("/")
    elif not isinstance(app, WSGIMiddleware):
        ask(app)


class Declared(TypedDict):
    user: str


class Other(TypedDict):
    plan: str


def declares_user(request: Any) -> Declared: ...  # type: ignore[empty-body]


def declares_plan(request: Any) -> Other: ...  # type: ignore[empty-body]


BUILDS = [in_starlette, in_fastapi, in_flask, in_asgi, in_wsgi]


@each("build", BUILDS)
@each(
    ("settings", "effect"),
    [
        ({"rules": [{"name": "api", "key": ["user|ip"], "limits": "9/s"}]}, "the rule 'api' may count no user: "),
        ({"rules": [{"name": "api", "limits": "9/s", "cost": "user|1"}]}, "the rule 'api' may count no user: "),
        ({"rules": [{"name": "api", "key": ["user"], "limits": "9/s"}]}, "the rule 'api' may never apply: "),
        ({"rules": [], "lists": {"allow": {"user": ["ann"]}}}, "the allow list by user may never apply: "),
    ],
)
def test_a_rule_by_user_is_logged_where_nothing_provides_the_user(
    build: Any, settings: Any, effect: str, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has one line: under WSGI at the start, under ASGI for the first request without a user.

    Under WSGI, ``check`` has a note, too.
    """

    def logged(**options: Any) -> int:
        log.clear()
        warnings.warn.cache_clear()
        for _ in range(2):
            started(build(settings, **options))
        return len([message for message in log.messages if message.startswith(effect)])

    assert logged() == 1
    shown_notes = shown(build(settings), "without_user", monkeypatch)[0]["notes"]
    assert any(note.startswith(effect) for note in shown_notes) is (build in (in_flask, in_wsgi))
    assert [logged(features=features) for features in ({"user": lambda _: None}, lambda _: None, declares_user)] == [
        0
    ] * 3
    assert logged(features=declares_plan) == 1


def test_a_decorator_by_user_is_logged_where_nothing_provides_the_user(log: Any) -> None:
    """A dependency that provides the user for one limit is enough for this limit."""
    app = in_fastapi({})
    by_user = RateLimit("9/s", key=["user|ip"], name="known", features={"user": lambda: "ann"})
    app.get("/known", dependencies=[by_user])(lambda: None)
    ask(app, "/known")
    assert not [message for message in log.messages if "user" in message]
    app = in_fastapi({})
    app.get("/unknown")(limit("9/s", key=["user|ip"], name="unknown")(lambda: None))
    ask(app, "/unknown")
    assert len([text for text in log.messages if text.startswith("the rule 'unknown' may count no user")]) == 1


def test_a_rule_by_user_is_not_logged_with_an_authentication(log: Any) -> None:
    """An authentication outside the limits sets the user, including strangers. Flask-Login and WSGI middleware may."""
    by_user: Any = {"rules": [{"key": ["user|ip"], "limits": "9/s"}]}
    started(starlette((RateLimitMiddleware, {"settings": by_user}), AUTHENTICATION))
    started(with_login(by_user))
    wrapped = in_flask(by_user)
    wrapped.wsgi_app = lambda environ, start_response, inner=wrapped.wsgi_app: inner(environ, start_response)
    started(wrapped)
    assert not [message for message in log.messages if "no user" in message]


@pytest.mark.parametrize(("middleware", "count"), [(MIDDLEWARE, 1), ([*SESSIONS, *MIDDLEWARE], 0)])
def test_a_rule_by_user_is_logged_in_django_without_authentication(middleware: Any, count: int, log: Any) -> None:
    """A server does not run the system checks, so the log has W003, too."""
    with project({"rules": [{"key": ["user|ip"], "limits": "9/s"}]}, middleware=middleware) as served:
        assert served.statuses() == [200] * 3
        assert len([message for message in run_checks() if message.id == "ratelimit_mw.W003"]) == count
    assert len([message for message in log.messages if message.startswith("A rule counts by user")]) == count


def by_id(part: str) -> Any:
    return {"rules": [{"name": "account", "key": [part], "limits": "9/s"}]}


@each("build", BUILDS)
@each(
    ("part", "is_noted"),
    [
        ("query:id", True),
        ("header:x-account-id", True),
        ("cookie:accountId", True),
        ("json:user.id", True),
        ("form:number", True),
        ("field:account|ip", True),
        ("query:id as int", False),
        ("form:username", False),
        ("header:x-api-key", False),
        ("query:paid", False),
    ],
)
def test_check_notes_an_id_that_may_be_a_number(
    build: Any, part: str, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application converts it, and no framework says so: each spelling of a number would have a count."""
    notes_shown = shown(build(by_id(part)), "by_id", monkeypatch)[0]["notes"]
    assert any("as int" in note for note in notes_shown) is is_noted


@each("annotation", [int, str])
def test_check_notes_no_id_whose_type_is_declared(annotation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI converts the number before the view sees it, and keeps a text as it is."""

    def view(account_id: int) -> None: ...

    view.__annotations__["account_id"] = annotation
    app = in_fastapi(by_id("query:account_id"))
    app.add_api_route("/", view)
    assert not any("as int" in note for note in shown(app, "declared", monkeypatch)[0]["notes"])


def test_explain_shows_the_key_of_a_converted_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the key that requests have."""

    def view(account_id: int) -> None: ...

    app = in_fastapi(by_id("query:account_id"))
    view.__annotations__["account_id"] = int
    app.add_api_route("/", view)
    monkeypatch.setitem(sys.modules, "converted", SimpleNamespace(app=app))
    result = run("explain", "--app", "converted:app", "GET", "/?account_id=007", "--json")
    assert json.loads(result.stdout)["rules"][0]["key"] == "{query:account_id=7}"


def test_check_notes_an_id_in_django(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms and serializers of a view are known to the view only."""
    with project(by_id("form:id")):
        assert any("as int" in note for note in shown(WSGIHandler(), "in_django", monkeypatch)[0]["notes"])


def test_check_warns_of_a_proxy_that_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule by IP address counts a proxy as one client."""
    note = "trusted_proxies is empty: behind a proxy, all clients share the count of its IP address"
    assert note in shown(starlette(LIMITS), "unnamed", monkeypatch)[0]["notes"]
    named = (RateLimitMiddleware, {"settings": {**RULES, "trusted_proxies": ["127.0.0.1"]}})
    assert note not in shown(starlette(named), "named", monkeypatch)[0]["notes"]


@each(("text", "count"), [("6", 6), ("many", 1), ("", 1)])
def test_the_number_of_workers_is_read(text: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other texts than a number are not one."""
    monkeypatch.setenv("WEB_CONCURRENCY", text)
    assert warnings.count_workers() == count


@pytest.mark.parametrize("kind", ["asgi", "wsgi", "flask", "django"])
def test_a_memory_store_in_several_workers_is_logged(kind: str, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process counts for itself. A store that is shared is not logged, and one process neither."""

    def start(store: str) -> list[str]:
        log.clear()
        settings: Any = {**RULES, "store": store}
        if kind == "asgi":
            RateLimitMiddleware(OK, settings).routes.index_of({})
        elif kind == "wsgi":
            WSGIMiddleware(lambda environ, start_response: [], {"rules": RULES["rules"], "store": store})
        elif kind == "flask":
            app = Flask("app")
            RateLimiter(app, settings)
            app.test_client().get("/")
        else:
            with project(settings) as served:
                served.ask()
        return [message for message in log.messages if message.startswith("memory://")]

    assert start("memory://") == []
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    assert start("redis://127.0.0.1:1/0") == []
    assert "clients get up to 4 times each limit" in start("memory://")[0]
    assert start("memory://") == []


# -- the event loop ----------------------------------------------------------------------------------------


def test_a_blocked_event_loop_is_logged_once(log: Any) -> None:
    """The clock of a store's time budget sees it while a call waits."""

    async def blocked() -> None:
        clock = budget.LoopClock(0.05)
        for _ in range(2):
            clock.watch(asyncio.get_running_loop().create_future(), 60)
            time.sleep(0.3)
            await asyncio.sleep(0.01)

    budget._warn_of_blocked_loop.cache_clear()
    asyncio.run(blocked())
    found = [message for message in log.messages if message.startswith("the event loop was blocked")]
    assert len(found) == 1


def test_a_limiter_of_your_own_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store that the limiter has counts, not the one in its settings."""
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    assert len(list(warnings.warnings_of_workers(Limiter([Rule(limits="1/s")])))) == 1
