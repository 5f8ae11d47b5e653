"""Warnings about an application: logged once, and those that need no request shown by ``check``."""

import json
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest
from command_line import run
from django_calls import MIDDLEWARE, SESSIONS, project
from sites import ASGISite, DjangoSite, FastAPISite, FlaskSite, StarletteSite, WSGISite, limited
from starlette.authentication import AuthenticationBackend
from starlette.middleware.authentication import AuthenticationMiddleware
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.http import warnings

# The checks of Django are registered on the import of django_calls.
from django.core.checks import run_checks  # isort: skip

RULES: Any = {"rules": [{"name": "site", "limits": "100/minute"}, {"name": "api", "key": ["user"], "limits": "9/s"}]}


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Return the log, as in a new process."""
    warnings.warn.cache_clear()
    caplog.set_level(logging.WARNING, "ratelimit_mw")
    yield caplog
    warnings.warn.cache_clear()


class Strangers(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> None:
        """Know nobody."""


def check_of(app: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the notes of ``check --app``."""
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(app=app))
    notes: list[str] = json.loads(run("check", "--app", f"{name}:app", "--json").stdout)["notes"]
    return notes


class Declared(TypedDict):
    user: str


class Other(TypedDict):
    plan: str


def declares_user(request: Any) -> Declared: ...  # type: ignore[empty-body]


def declares_plan(request: Any) -> Other: ...  # type: ignore[empty-body]


KINDS = [ASGISite, WSGISite, StarletteSite, FastAPISite, FlaskSite]
BY_USER: Any = {"rules": [{"key": ["user|ip"], "limits": "9/s"}]}


EFFECTS: list[tuple[Any, str]] = [
    ({"rules": [{"name": "api", "key": ["user|ip"], "limits": "9/s"}]}, "the rule 'api' may count no user: "),
    ({"rules": [{"name": "api", "limits": "9/s", "cost": "user|1"}]}, "the rule 'api' may count no user: "),
    ({"rules": [{"name": "api", "key": ["user"], "limits": "9/s"}]}, "the rule 'api' may never apply: "),
    ({"rules": [], "lists": {"allow": {"user": ["ann"]}}}, "the allow list by user may never apply: "),
]


@each(
    ("kind", "settings", "effect"),
    [*((kind, *EFFECTS[0]) for kind in KINDS), *((kind, *effect) for kind in KINDS[:2] for effect in EFFECTS[1:])],
)
def test_a_rule_by_user_is_logged_where_nothing_provides_the_user(
    kind: Any, settings: Any, effect: str, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has one line: under WSGI at the start, under ASGI for the first request without a user.

    Under WSGI, ``check`` has a note, too.
    """

    def logged(**options: Any) -> int:
        log.clear()
        warnings.warn.cache_clear()
        for _ in range(2):
            with kind(settings, **options) as site:
                site.start()
                site.call()
        return len([message for message in log.messages if message.startswith(effect)])

    assert logged() == 1
    with kind(settings) as site:
        notes = check_of(getattr(site, "flask", site.app), "without_user", monkeypatch)
    assert any(note.startswith(effect) for note in notes) is (kind in (FlaskSite, WSGISite))
    for features in ({"user": lambda _: None}, lambda _: None, declares_user):
        assert logged(features=features) == 0
    assert logged(features=declares_plan) == 1


def test_a_decorator_by_user_is_logged_where_nothing_provides_the_user(log: Any) -> None:
    with FastAPISite([], limited(200, "9/s", key=["user|ip"], name="api")) as site:
        site.call()
    assert len([text for text in log.messages if text.startswith("the rule 'api' may count no user")]) == 1


def test_a_rule_by_user_is_not_logged_with_an_authentication(log: Any) -> None:
    """An authentication outside the limits sets the user, including strangers. Flask-Login and WSGI middleware may."""
    with StarletteSite(BY_USER) as site:
        site.app.add_middleware(AuthenticationMiddleware, backend=Strangers())
        site.call()
    with FlaskSite(BY_USER) as flask_login, FlaskSite(BY_USER) as wrapped:
        flask_login.flask.login_manager = object()  # as Flask-Login sets it
        wsgi_app = wrapped.flask.wsgi_app
        wrapped.flask.wsgi_app = lambda environ, start_response: wsgi_app(environ, start_response)
        for site in (flask_login, wrapped):
            site.flask.test_client().get("/")
    assert not [message for message in log.messages if "no user" in message]


@pytest.mark.parametrize(("middleware", "count"), [(MIDDLEWARE, 1), ([*SESSIONS, *MIDDLEWARE], 0)])
def test_a_rule_by_user_is_logged_in_django_without_authentication(middleware: Any, count: int, log: Any) -> None:
    """A server does not run the system checks, so the log has W003, too."""
    with project({"rules": [{"key": ["user|ip"], "limits": "9/s"}]}, middleware=middleware) as served:
        assert served.statuses() == [200] * 3
        assert len([message for message in run_checks() if message.id == "ratelimit_mw.W003"]) == count
    assert len([message for message in log.messages if message.startswith("A rule counts by user")]) == count


@each(("annotation", "key"), [(int, "{query:account_id=7}"), (str, "{query:account_id=007}")])
def test_explain_shows_the_key_of_requests(annotation: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI converts a number before the view sees it, and keeps a text as it is."""

    def view(account_id: int) -> None: ...

    view.__annotations__["account_id"] = annotation
    rules: Any = {"rules": [{"name": "account", "key": ["query:account_id"], "limits": "9/s"}]}
    with FastAPISite(rules, {}) as site:
        site.app.add_api_route("/", view)
        monkeypatch.setitem(sys.modules, "declared", SimpleNamespace(app=site.app))
        result = run("explain", "--app", "declared:app", "GET", "/?account_id=007", "--json")
    assert json.loads(result.stdout)["rules"][0]["key"] == key


def test_check_warns_of_a_proxy_that_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule by IP address counts a proxy as one client."""
    note = "trusted_proxies is empty: behind a proxy, all clients share the count of its IP address, and a ban of it"
    for proxies in ([], ["127.0.0.1"]):
        with StarletteSite(RULES, trusted_proxies=proxies) as site:
            assert (note in check_of(site.app, "proxies", monkeypatch)) is (not proxies)


@pytest.mark.parametrize("kind", [ASGISite, WSGISite, FlaskSite, DjangoSite])
def test_a_memory_store_in_several_workers_is_logged(kind: Any, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process counts for itself. A store that is shared is not logged, and one process neither."""

    def start(store: str) -> list[str]:
        log.clear()
        settings: Any = {**RULES, "store": store}
        with kind(settings) as site:
            site.call()
        return [message for message in log.messages if message.startswith("memory://")]

    assert start("memory://") == []
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    assert start("redis://127.0.0.1:1/0") == []
    assert "clients get up to 4 times each limit" in start("memory://")[0]
    assert start("memory://") == []


def test_a_limiter_of_your_own_is_noted(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store that the limiter has counts, not the one in its settings."""
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    with WSGISite(Limiter([Rule(limits="1/s")])):
        assert len(log.messages) == 1
