"""System checks of the Django application."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.conf.urls.i18n import i18n_patterns
from django.core.checks import run_checks
from django.test import Client
from django.urls import path
from django_calls import MIDDLEWARE, SESSIONS, hello, project
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.django import RateLimitMiddleware, check, exempt, limit, usage
from ratelimit_mw.django.apps import check_deployment, check_project
from ratelimit_mw.http.warnings import warn
from ratelimit_mw.testing import ManualClock


def ids(deploy: bool = False) -> list[str]:
    """Return the ids of the messages that the checks of this package report."""
    return [message.id for check in [check_project] + [check_deployment] * deploy for message in check()]


NO_MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
BY_USER = {"rules": [{"name": "api", "limits": "5/minute", "key": ["user|ip"]}]}
BY_THROTTLE = {"rules": [{"name": "up", "limits": "5/minute", "key": ["user"], "match": {"scope": "uploads"}}]}
LIMITED = path("", limit("1/minute", name="home")(hello))
TRANSLATED = i18n_patterns(path("", hello))
LOCALE = "django.middleware.locale.LocaleMiddleware"
NOT_THERE = path("", exempt("missing")(hello))


@each(
    ("limits", "patterns", "middleware", "expected"),
    [
        ({}, [LIMITED], MIDDLEWARE, []),
        ({"rules": [{"limits": "5/minit"}]}, [], MIDDLEWARE, ["ratelimit_mw.E001"]),
        ("absent.toml", [], MIDDLEWARE, ["ratelimit_mw.E001"]),
        ({}, [NOT_THERE], MIDDLEWARE, ["ratelimit_mw.E001"]),
        ({}, [LIMITED], NO_MIDDLEWARE, ["ratelimit_mw.W001"]),
        ({}, [], NO_MIDDLEWARE, []),
        (BY_USER, [], MIDDLEWARE, ["ratelimit_mw.W003"]),
        (BY_USER, [], [*MIDDLEWARE, *SESSIONS], ["ratelimit_mw.W003"]),
        (BY_USER, [], [*SESSIONS, *MIDDLEWARE], []),
        (BY_USER, [], NO_MIDDLEWARE, ["ratelimit_mw.E002"]),
        (BY_USER, [], [f"{__name__}.Limits"], ["ratelimit_mw.W003"]),
        ({"rules": [{"limits": "5/minute", "unrouted": True}]}, [], NO_MIDDLEWARE, []),
        ({"rules": [{"limits": "5/minute", "match": {"view": ""}}]}, [], NO_MIDDLEWARE, []),
        ({**BY_USER, "features": {"user": "django_calls.anyone"}}, [], MIDDLEWARE, []),
        (BY_THROTTLE, [], MIDDLEWARE, []),
        ({}, TRANSLATED, [*MIDDLEWARE, LOCALE], ["ratelimit_mw.W004"]),
        ({}, TRANSLATED, [LOCALE, *MIDDLEWARE], []),
        ({}, TRANSLATED, MIDDLEWARE, []),
        ({}, [], [*MIDDLEWARE, LOCALE], []),
    ],
)
def test_a_project_is_checked(limits: Any, patterns: Any, middleware: Any, expected: list[str]) -> None:
    """Each mistake of a project has its id, and a project without mistakes has no messages."""
    with project(limits, *patterns, middleware=middleware):
        assert ids() == expected


class Limits(RateLimitMiddleware):
    """A subclass counts as the middleware."""


def test_the_start_names_the_missing_middleware() -> None:
    """``AppConfig.ready`` raises the error."""
    ready = apps.get_app_config("ratelimit_mw").ready
    with project(BY_USER):
        ready()
    with project(BY_USER, middleware=NO_MIDDLEWARE), pytest.raises(ConfigError, match="set unrouted = True"):
        ready()


def test_a_memory_store_is_reported_before_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    """check --deploy warns of counts in memory, with the number of workers if it is known."""
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    with project({}):
        messages = [m for m in run_checks(include_deployment_checks=True) if m.id == "ratelimit_mw.W002"]
        assert "4 workers (WEB_CONCURRENCY)" in messages[0].msg
    with project({"store": "redis://127.0.0.1:1/0"}):
        assert ids(deploy=True) == []
    with project({"rules": [{"limits": "5/minit"}]}):
        assert ids(deploy=True) == ["ratelimit_mw.E001"]


def test_the_middleware_logs_w003(caplog: pytest.LogCaptureFixture) -> None:
    """A server runs no checks, so the log has the text at the start, once."""
    warn.cache_clear()
    for middleware in ([*MIDDLEWARE, *SESSIONS], [*MIDDLEWARE, *SESSIONS], [*SESSIONS, *MIDDLEWARE]):
        with project(BY_USER, middleware=middleware):
            Client().get("/")
    texts = [text for text in caplog.messages if "A rule counts by user" in text]
    assert len(texts) == 1
    assert all("Move it after AuthenticationMiddleware" in text for text in texts)
    warn.cache_clear()


@each("call", [usage, check])
def test_a_blocking_call_in_an_async_view_names_its_async_form(call: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def view(request: Any) -> Any:
        call(request, "mine")

    async def user(request: Any) -> str:
        return "ann"

    rule = {"name": "mine", "limits": "5/minute", "key": ["user"], "match": {"view": ""}}
    settings = {"rules": [rule], "features": {"user": user}}
    with project(settings, path("", view), is_async=True) as served:
        assert served.ask().status_code == 500
    assert "ConfigError: an async view waits for a feature" in caplog.text
    assert "Write await acheck(...) for check, and await ausage(...) for usage" in caplog.text


@pytest.mark.parametrize("limits", ["10/s burst 3", lambda _: "10/s burst 3"])
def test_a_blocking_check_never_waits_on_an_event_loop(limits: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A rule with a queue would stop all requests of the server. A function may return such a limit, too."""

    async def view(request: Any) -> Any:
        check(request, "queue")
        return hello(request)

    rule = Rule(name="queue", limits=limits, algorithm={"name": "leaky-bucket", "mode": "queue"}, match={"view": ""})
    limiter = Limiter([rule], clock=ManualClock(999_960.0))
    with project(limiter, path("", view), is_async=True) as served:
        assert served.statuses(times=2)[-1] == 500
    assert "a queue cannot wait in a function without async that runs on the event loop" in caplog.text
