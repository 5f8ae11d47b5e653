"""System checks of the Django application, and its management command."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf.urls.i18n import i18n_patterns
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from django.utils.translation import override
from django.views import View
from django_calls import MIDDLEWARE, SESSIONS, command, hello, project, run, still
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.django import RateLimitMiddleware, check, dashboard, exempt, limit, usage
from ratelimit_mw.django.apps import check_project
from ratelimit_mw.http.warnings import warn
from ratelimit_mw.testing import ManualClock


def ids() -> list[str]:
    """Return the ids of the messages that the checks of this package report."""
    return [message.id for message in check_project()]


NO_MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
BY_USER = {"rules": [{"name": "api", "limits": "5/minute", "key": ["user|ip"]}]}
BY_THROTTLE = {"rules": [{"limits": "5/minute", "key": ["user"], "match": {"scope": "uploads"}, "unrouted": True}]}
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
        ({}, dashboard(), NO_MIDDLEWARE, []),
        (BY_USER, [], MIDDLEWARE, ["ratelimit_mw.W003"]),
        (BY_USER, [], [*MIDDLEWARE, *SESSIONS], ["ratelimit_mw.W003"]),
        (BY_USER, [], [*SESSIONS, *MIDDLEWARE], []),
        (BY_USER, [], NO_MIDDLEWARE, ["ratelimit_mw.E002"]),
        (BY_USER, [], [f"{__name__}.Limits"], ["ratelimit_mw.W003"]),
        ({"rules": [{"limits": "5/minute", "unrouted": True}]}, [], NO_MIDDLEWARE, []),
        ({"rules": [{"limits": "5/minute", "match": {"view": ""}}]}, [], NO_MIDDLEWARE, []),
        ({**BY_USER, "features": {"user": "django_calls.anyone"}}, [], MIDDLEWARE, []),
        (BY_THROTTLE, [], MIDDLEWARE, []),
        ({"rules": [{"limits": "5/minute", "key": ["user"], "match": {"view": ""}}]}, [], MIDDLEWARE, []),
        ({}, TRANSLATED, [*MIDDLEWARE, LOCALE], ["ratelimit_mw.W004"]),
        ({}, TRANSLATED, [LOCALE, *MIDDLEWARE], []),
        ({}, TRANSLATED, MIDDLEWARE, []),
        ({}, TRANSLATED, [LOCALE], []),
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
    assert f"ConfigError: {call.__name__}('mine'): an async view waits for a feature" in caplog.text
    assert "Write await acheck(...) for check, and await ausage(...) for usage" in caplog.text


@pytest.mark.parametrize("limits", ["10/s burst 3", lambda _: "10/s burst 3"])
def test_a_blocking_check_never_waits_on_an_event_loop(limits: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A rule with a queue would stop all requests of the server. A limit of a function shows it only where it waits."""

    async def view(request: Any) -> Any:
        check(request, "queue")
        return hello(request)

    rule = Rule(name="queue", limits=limits, algorithm={"name": "leaky-bucket", "mode": "queue"}, match={"view": ""})
    limiter = Limiter([rule], clock=ManualClock(999_960.0))
    with project(limiter, path("", view), is_async=True) as served:
        assert served.statuses(times=2) == [500 if isinstance(limits, str) else 200, 500]
    assert "a queue cannot wait in a function without async that runs on the event loop" in caplog.text


# -- the command -----------------------------------------------------------------------------------------------

OTHERS = ["django.middleware.common.CommonMiddleware"]


class Items(View):
    def get(self, request: Any) -> HttpResponse:
        return HttpResponse()

    @limit("3/minute", name="post")
    def post(self, request: Any) -> HttpResponse:
        return HttpResponse()


def test_a_client_is_found_and_unlocked(tmp_path: Path) -> None:
    """``inspect`` shows the values that unlock the client."""
    settings = {"store": f"lmdb://{tmp_path}/db", "store_timeout": "10s", "rejection_cache": 0}
    with project(still(settings), path("", limit("1/hour", name="home", key=["ip"])(hello))):
        assert [Client().get("/").status_code for _ in range(2)] == [200, 429]
        assert any(line.startswith("home ip=127.0.0.1") for line in run("inspect", "--rejected"))
        assert "home ip=127.0.0.1 1/hour 1 of 1" in run("reset", "home", "ip=127.0.0.1")[3]
        assert Client().get("/").status_code == 200
        assert "has no counts of ip=192.0.2.7" in command("reset", "home", "ip=192.0.2.7").stderr
        assert any("store: lmdb://" in line for line in run("check", "--connect"))


def test_a_translated_route_is_explained() -> None:
    """The language prefix of the path counts, for any active language."""
    routes = i18n_patterns(path("items/<int:pk>/", limit("5/minute", name="item")(hello)))
    with project({}, *routes, LANGUAGES=[("en", ""), ("de", "")], LANGUAGE_CODE="en"), override("fr"):
        assert run("explain", "GET", "/de/items/7/")[0] == "GET /de/items/7/ is routed to /{language}/items/{pk}/"


def test_invalid_settings_end_the_command_with_a_message() -> None:
    """With --json the message is on stdout, too."""
    with project({"rules": [{"limits": "5/minit"}]}):
        result = command("check", "--json")
    assert result.exit_code == 1
    assert "minit" in result.stderr
    assert "minit" in json.loads(result.stdout)["error"]


HOME = path("", limit("5/minute", name="home")(hello))
SITE = {"name": "site", "limits": "100/minute"}
TOO_EARLY = "A rule counts by user, but RateLimitMiddleware runs before"


@each(
    ("rules", "patterns", "middleware", "expected"),
    [
        ([SITE], [], OTHERS, "problem: MIDDLEWARE does not list RateLimitMiddleware"),
        ([], [HOME], OTHERS, "problem: Decorators limit views, but MIDDLEWARE does not list"),
        ([{**SITE, "key": ["user"]}], [], MIDDLEWARE, f"problem: {TOO_EARLY}"),
        ([{**SITE, "key": ["user|ip"]}], [], MIDDLEWARE, f"note: {TOO_EARLY}"),
    ],
)
def test_the_command_shows_the_system_checks(rules: Any, patterns: Any, middleware: Any, expected: str) -> None:
    """An error is a problem, and so is a warning about limits without an effect. Others are notes."""
    with project({"rules": rules}, *patterns, middleware=middleware):
        result, strict = command("check"), command("check", "--strict")
    assert (result.exit_code, strict.exit_code) == (not expected.startswith("note"), 1)
    assert expected in " ".join(result.stdout.split())


PROJECT = """
import sys
from django.core.management import execute_from_command_line
from ratelimit_mw.django import limit
SECRET_KEY = "for this test only"
ROOT_URLCONF = __name__
MIDDLEWARE = ["ratelimit_mw.django.RateLimitMiddleware"]
INSTALLED_APPS = ["ratelimit_mw.django"]
RATELIMIT_MW = {"rules": [{"name": "everyone", "limits": "100/minute", "key": "user|ip"}]}
urlpatterns = []
"""


@pytest.mark.slow
def test_a_project_needs_no_users_of_django(tmp_path: Path) -> None:
    """The system checks do not import them."""
    (tmp_path / "shop_settings.py").write_text(PROJECT)
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    program = [sys.executable, "-m", "django", "check", "--settings=shop_settings"]
    result = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0
    assert "ratelimit_mw.W003" in result.stderr
