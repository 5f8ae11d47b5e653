"""A Django project that is configured once. Each test serves it with its own URLs, middleware and limits."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import django
from click.testing import Result
from command_line import run as run_command
from django.conf import settings
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils import translation

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import load_settings
from ratelimit_mw.testing import ManualClock

MIDDLEWARE = ["ratelimit_mw.django.RateLimitMiddleware"]
SESSIONS = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
CLIENT = "192.0.2.7"
LOG = {"algorithm": "sliding-window-log"}  # for limits on a real clock: no minute ends during a test

if not settings.configured:
    settings.configure(
        SECRET_KEY="for tests only",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="django_calls",
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "ratelimit_mw.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        MIDDLEWARE=MIDDLEWARE,
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    django.setup()


def hello(request: Any, **_: Any) -> HttpResponse:
    return HttpResponse("hello")


async def ahello(request: Any, **_: Any) -> HttpResponse:
    return HttpResponse("hello")


def anyone(request: Any) -> str:
    return "anyone"


urlpatterns = [path("", hello)]


def still(given: dict[str, Any] | None = None) -> Limiter:
    """Return a limiter with a fixed clock, so no cost expires."""
    return Limiter.from_settings(load_settings(given or {}), clock=ManualClock(999_960.0))


def one_rule(limits: Any = "2/minute", **rule: Any) -> Limiter:
    return Limiter([Rule(name="api", limits=limits, **rule)], clock=ManualClock(999_960.0))


own = Limiter([Rule(name="own", limits="1/hour")], clock=ManualClock(1_000_000.0))


def raise_own() -> None:
    """Raise a rejection of a limiter that no middleware knows."""
    own.hit({"ip": CLIENT})
    own.hit({"ip": CLIENT}).raise_for_limit()


def urls(*patterns: Any) -> ModuleType:
    """Return a URLconf with these patterns."""
    module = ModuleType("urls")
    module.urlpatterns = list(patterns)  # type: ignore[attr-defined]
    return module


class Asking(AsyncClient):
    """Return a client with a given IP address."""

    address = CLIENT

    def _base_scope(self, **request: Any) -> Any:
        return {**super()._base_scope(**request), "client": [self.address, 1234]}


class Project:
    """Send requests to the project through the sync or the async stack."""

    def __init__(self, is_async: bool) -> None:
        self._is_async = is_async

    def ask(self, where: str = "/", method: str = "GET", client: str = CLIENT, **request: Any) -> Any:
        if self._is_async:
            return asyncio.run(self.aask(where, method, client, **request))
        return Client(raise_request_exception=False, REMOTE_ADDR=client).generic(method, where, **request)

    async def aask(
        self,
        where: str = "/",
        method: str = "GET",
        client: str = CLIENT,
        headers: dict[str, str] | None = None,
        **request: Any,
    ) -> Any:
        """Call ``ask`` on a running event loop."""
        asking: Any = Asking(raise_request_exception=False)
        asking.address = client
        # Set cookies separately, because Django 4.2.0 drops joined ones and its client has a cookie line already.
        given = dict(headers or {})
        asking.cookies.load(given.pop("cookie", ""))
        return await asking.generic(method, where, **given, **request)

    def statuses(self, where: str = "/", times: int = 3, **request: Any) -> list[int]:
        return [self.ask(where, **request).status_code for _ in range(times)]


@contextmanager
def project(
    limits: Any = None,
    *patterns: Any,
    is_async: bool = False,
    middleware: list[str] | None = None,
    **given: Any,
) -> Iterator[Project]:
    """Open a project with these settings and URLs, ``/`` by default.

    A thread keeps the language that LocaleMiddleware has activated, so deactivate it for the next project.
    """
    changed = {"RATELIMIT_MW": still() if limits is None else limits, "MIDDLEWARE": middleware or MIDDLEWARE, **given}
    urlconf = urls(*(patterns or [path("", hello)]))
    with override_settings(ROOT_URLCONF=urlconf, **changed):
        try:
            yield Project(is_async)
        finally:
            translation.deactivate()


def command(*words: str) -> Result:
    """Run a command on the project."""
    return run_command(*words, "--app", "django.core.wsgi:get_wsgi_application()")


def run(*words: str) -> list[str]:
    """Run a command on the project, and return its lines with single spaces."""
    return [" ".join(line.split()) for line in command(*words).stdout.splitlines()]
