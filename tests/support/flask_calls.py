"""Small Flask applications and requests to them, for the tests of the extension."""

from typing import Any

from flask import Flask
from werkzeug.test import TestResponse

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.settings import load_settings
from ratelimit_mw.testing import ManualClock

FIELDS = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Policy", "RateLimit"]


def still(settings: dict[str, Any] | None = None) -> Limiter:
    """Return a limiter with a fixed clock, so no cost expires."""
    return Limiter.from_settings(load_settings(settings or {}), clock=ManualClock(999_960.0))


def one_rule(limits: Any = "2/minute", **rule: Any) -> Limiter:
    return Limiter([Rule(name="api", limits=limits, **rule)], clock=ManualClock(999_960.0))


def hello(**_: Any) -> str:
    return "hello"


def app_of(limiter: Limiter | None = None, views: dict[str, Any] | None = None, **options: Any) -> Flask:
    """Return an application with these views by path, ``/`` by default, behind the extension."""
    app = Flask("app")
    for number, (path, view) in enumerate((views or {"/": hello}).items()):
        app.add_url_rule(path, f"view{number}", view, methods=["GET", "POST"])
    RateLimiter(app, limiter=limiter or still(), **options)
    return app


def ask(app: Flask, path: str = "/", method: str = "GET", client: str = "192.0.2.7", **request: Any) -> TestResponse:
    return app.test_client().open(path, method=method, environ_base={"REMOTE_ADDR": client}, **request)


def statuses(app: Flask, path: str = "/", times: int = 3, **request: Any) -> list[int]:
    return [ask(app, path, **request).status_code for _ in range(times)]
