"""The same routes, decorators and settings in each framework, for the tests of precedence."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import calls
import flask_calls
from command_line import run as run_command
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.urls import path as django_path
from django_calls import project
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ratelimit_mw import django as of_django
from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.rules.decorators import exempt, limit

SETTINGS: dict[str, Any] = {
    "headers": ["ratelimit"],
    "rules": [
        {"name": "site", "limits": "100/minute"},
        {"name": "login", "limits": "90/minute", "match": {"path": "/login", "methods": "POST"}},
        {"name": "items", "limits": "80/minute", "match": {"path": "/api/items/**"}},
        {"overrides": "report", "limits": "70/minute"},
    ],
    "lists": {"allow": {"ip": "203.0.113.7"}, "deny": {"ip": "203.0.113.0/24"}},
}
ITEM = {"name": "item", "limits": "60/minute", "match": {"methods": "POST"}}
REPORT = {"name": "report", "limits": "5/minute"}
STATUS = {"name": "status", "limits": "50/minute"}


def starlette() -> Starlette:
    def view(path: str, *marks: Any, methods: Sequence[str] = ("GET",)) -> Route:
        async def respond(request: Any) -> PlainTextResponse:
            return PlainTextResponse(path)

        for mark in marks:
            respond = mark(respond)
        return Route(path, respond, methods=list(methods))

    app = Starlette(
        routes=[
            view("/"),
            view("/login", methods=["POST"]),
            view("/report", limit(**REPORT)),
            view("/health", exempt),
            view("/status", limit(**STATUS), exempt("site")),
            Mount("/api", routes=[view("/items/{number}", limit(**ITEM), methods=["GET", "POST"])]),
        ]
    )
    app.add_middleware(RateLimitMiddleware, settings=SETTINGS)
    return app


def fastapi() -> FastAPI:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, settings=SETTINGS)
    app.get("/")(lambda: "home")
    app.post("/login")(lambda: "login")
    report = Depends(RateLimit(**REPORT))
    app.api_route("/report", methods=["GET", "HEAD"], dependencies=[report])(lambda: "report")
    app.get("/health")(exempt(lambda: "health"))
    app.get("/status")(exempt("site")(limit(**STATUS)(lambda: "status")))
    given = {"user": lambda: "ann"}  # known only in a dependency, so it is decided there
    item = Depends(RateLimit(key=["user"], features=given, **ITEM))
    app.api_route("/api/items/{number}", methods=["GET", "POST"], dependencies=[item])(lambda: "item")
    return app


def flask() -> Flask:
    app = Flask(__name__)
    RateLimiter(app, settings=SETTINGS)
    app.add_url_rule("/", "home", lambda: "home")
    app.add_url_rule("/login", "login", lambda: "login", methods=["POST"])
    app.add_url_rule("/report", "report", limit(**REPORT)(lambda: "report"))
    app.add_url_rule("/health", "health", exempt(lambda: "health"))
    app.add_url_rule("/status", "status", exempt("site")(limit(**STATUS)(lambda: "status")))
    app.add_url_rule("/api/items/<int:number>", "item", limit(**ITEM)(lambda number: "item"), methods=["GET", "POST"])
    return app


def django_urls() -> list[Any]:
    def view(*marks: Any) -> Any:
        def respond(request: Any, **_: Any) -> HttpResponse:
            return HttpResponse("answer")

        for mark in marks:
            respond = mark(respond)
        return respond

    return [
        django_path("", view()),
        django_path("login", view()),
        django_path("report", view(of_django.limit(**REPORT))),
        django_path("health", view(of_django.exempt)),
        django_path("status", view(of_django.limit(**STATUS), of_django.exempt("site"))),
        django_path("api/items/<int:number>", view(of_django.limit(**ITEM))),
    ]


starlette_app, fastapi_app = starlette(), fastapi()
"""Where the command finds them."""


class Site:
    """The behaviour of a framework's application, and the output of its commands."""

    def respond(self, method: str, path: str, client: str = "192.0.2.7") -> tuple[int, list[str]]:
        """Return the status and the limits in the response: ``report 70``."""
        response = self._ask(method, path, client)
        options = re.findall(r'"(\w+)";q=(\d+)', response.headers.get("ratelimit-policy", ""))
        return response.status_code, [" ".join(found) for found in options]

    def _ask(self, method: str, path: str, client: str) -> Any:
        raise NotImplementedError

    def explain(self, method: str, path: str) -> list[str]:
        """Return the rules that apply to a request, according to the command."""
        raise NotImplementedError

    def list_rules(self) -> str:
        """Return the output of the command that lists all rules."""
        raise NotImplementedError


FEATURES = ("--feature", "ip=192.0.2.7", "--feature", "user=ann", "--json")


class ByCommand(Site):
    def __init__(self, name: str) -> None:
        self._name = f"precedence_sites:{name}_app"
        self._app = {"starlette": starlette, "fastapi": fastapi}[name]()

    def _ask(self, method: str, path: str, client: str) -> Any:
        return calls.ask(self._app, path, method, client)

    def explain(self, method: str, path: str) -> list[str]:
        result = run_command("explain", "--app", self._name, method, path, *FEATURES)
        found = applied_rules(result.stdout)
        assert result.exit_code == (not found)
        return found

    def list_rules(self) -> str:
        result = run_command("check", "--app", self._name)
        assert result.exit_code == 0
        return result.stdout


class OfFlask(Site):
    def __init__(self) -> None:
        self._app = flask()

    def _ask(self, method: str, path: str, client: str) -> Any:
        return flask_calls.ask(self._app, path, method, client)

    def explain(self, method: str, path: str) -> list[str]:
        return applied_rules(self._run("explain", method, path, *FEATURES))

    def list_rules(self) -> str:
        return self._run("check")

    def _run(self, *words: str) -> str:
        return str(self._app.test_cli_runner().invoke(args=["ratelimit", *words]).stdout)


class OfDjango(Site):
    def __init__(self, project: Any) -> None:
        self._project = project

    def _ask(self, method: str, path: str, client: str) -> Any:
        return self._project.ask(path, method, client)

    def explain(self, method: str, path: str) -> list[str]:
        return applied_rules(self._run("explain", method, path, *FEATURES))

    def list_rules(self) -> str:
        return self._run("check")

    def _run(self, *words: str) -> str:
        out = io.StringIO()
        with suppress(CommandError):  # no rule applies to this request
            call_command("ratelimit", *words, stdout=out)
        return out.getvalue()


def applied_rules(output: str) -> list[str]:
    rules = json.loads(output)["rules"]
    return [f"{rule['rule']} {rule['limits'][0]['limit'].split('/')[0]}" for rule in rules if rule["applies"]]


@contextmanager
def site(name: str) -> Iterator[Site]:
    """Open the site in a framework: "starlette", "fastapi", "flask", "django" or "async django"."""
    if name in ("starlette", "fastapi"):
        yield ByCommand(name)
    elif name == "flask":
        yield OfFlask()
    else:
        with project({**SETTINGS}, *django_urls(), is_async=name != "django") as served:
            yield OfDjango(served)
