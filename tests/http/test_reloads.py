"""A settings file that changes while an application of each framework runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import django_calls
import pytest
from calls import BODY, CLIENT, START, ask, ask_wsgi, sending
from django.test import override_settings
from django.urls import path as django_path
from fastapi import FastAPI
from flask import Flask
from idle_workers import Later
from servers import wait_for
from sites import (
    ASGISite,
    AsyncDjangoSite,
    Call,
    DjangoSite,
    FlaskSite,
    LateDependencySite,
    StarletteSite,
    WSGISite,
    limited,
)
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from tables import each
from websocket_calls import connect, kinds
from werkzeug.routing import Map
from werkzeug.routing import Rule as URLRule

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw import django as of_django
from ratelimit_mw import fastapi as of_fastapi
from ratelimit_mw import flask as of_flask
from ratelimit_mw import starlette as of_starlette
from ratelimit_mw import wsgi as of_wsgi
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.cli.serve.app import DecisionService

Ask = Callable[[str], Any]
"""Asks for a path."""


def toml(site: str, login: str = "", more: str = "") -> str:
    """Return settings with the limits of all requests, and of the view ``login``, which has a decorator."""
    override = f'[[rules]]\noverrides = "login"\nlimits = "{login}"\n' if login else ""
    settings = f'headers = ["ratelimit"]\nreload_interval = "1ms"\n{more}\n'
    return f'{settings}[[rules]]\nname = "site"\nlimits = "{site}"\n{override}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ratelimit.toml"
    path.write_text(toml("10/hour"))
    return path


async def login_of_starlette(call: Call) -> str:
    await call.check("site")
    return "login"


@contextmanager
def serving(kind: Any, file: Path, login: Any = "login") -> Iterator[tuple[Ask, Limiter]]:
    limiter = Limiter.from_settings(str(file))
    view = login if kind in (ASGISite, WSGISite) else limited(login, "5/hour", name="login")
    with kind(limiter, {"/": "home", "/login": view}) as site:
        yield lambda path: site.call(path=path), limiter


@contextmanager
def werkzeug(file: Path) -> Iterator[tuple[Ask, Limiter]]:
    @of_wsgi.limit("5/hour", name="login")
    def login() -> list[bytes]:
        return [b"login"]

    views = {"home": lambda: [b"home"], "login": login}
    urls = Map([URLRule("/", endpoint="home"), URLRule("/login", endpoint="login")])

    def app(environ: Any, start_response: Any) -> list[bytes]:
        endpoint, _ = urls.bind_to_environ(environ).match()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return views[endpoint]()

    limiter = Limiter.from_settings(str(file))
    limited = of_wsgi.RateLimitMiddleware(app, limiter=limiter, url_map=urls, views=views)
    yield lambda path: ask_wsgi(limited, path), limiter


starlette = partial(serving, StarletteSite, login=login_of_starlette)
flask, django = partial(serving, FlaskSite), partial(serving, DjangoSite)
FRAMEWORKS = {
    "starlette": starlette,
    "fastapi": partial(serving, LateDependencySite),
    "flask": flask,
    "django": django,
    "werkzeug": werkzeug,
}
each_framework = pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS)


def limits_of(response: Any) -> str:
    return str(response.headers["ratelimit-policy"])


@each_framework
def test_new_limits_apply_to_the_next_request(framework: Any, file: Path) -> None:
    """Those of all requests, and those that override a decorator. What was consumed stays consumed."""
    with framework(file) as (get, limiter):
        assert limits_of(get("/")) == '"site";q=10;w=3600'
        file.write_text(toml("20/hour", "2/hour"))
        limiter.reload()
        response = get("/")
        assert limits_of(response) == '"site";q=20;w=3600'
        assert response.headers["ratelimit"][:13] in ('"site";r=18;t', '"site";r=17;t')  # a view may check it, too
        assert '"login";q=2;w=3600' in limits_of(get("/login"))
        assert [get("/login").status_code for _ in range(2)] == [200, 429]


@each_framework
def test_an_override_applies_to_the_next_request(framework: Any, file: Path) -> None:
    """Even for the rule of a decorator, and after a reload."""
    with framework(file) as (get, limiter):
        get("/login")
        ip = next(each.client for each in limiter.clients.inspect("site").decisions).partition("=")[2]
        limiter.clients.override("site", {"ip": ip}, "20/hour")
        limiter.clients.override("login", {"ip": ip, "user": "ann"}, "2/hour")
        response = get("/")
        assert limits_of(response) == '"site";q=20;w=3600'
        assert response.headers["ratelimit"][:13] in ('"site";r=18;t', '"site";r=17;t')  # a view may check it, too
        assert '"login";q=2;w=3600' in limits_of(get("/login"))
        assert get("/login").status_code == 429
        file.write_text(toml("30/hour"))
        limiter.reload()
        assert limits_of(get("/")) == '"site";q=20;w=3600'
        limiter.clients.clear_overrides()
        assert limits_of(get("/")) == '"site";q=30;w=3600'
        assert '"login";q=5;w=3600' in limits_of(get("/login"))


@each("framework", [flask, django, werkzeug])
def test_the_first_request_of_a_worker_knows_the_overrides(framework: Any, file: Path, tmp_path: Path) -> None:
    """An application without a start reads them before it decides."""
    store = f'store = "lmdb://{tmp_path}/state"\nstore_timeout = "9s"'
    file.write_text(toml("10/hour", more=store))
    operator = Limiter.from_settings(str(file))
    operator.clients.override("site", {"ip": "127.0.0.1"}, "20/hour")
    operator.clients.override("site", {"ip": "192.0.2.7"}, "20/hour")
    with framework(file) as (get, limiter):
        assert limits_of(get("/")) == '"site";q=20;w=3600'
        limiter.close()
    operator.close()


@contextmanager
def service(file: Path) -> Iterator[tuple[Ask, Limiter]]:
    limiter = Limiter.from_settings(str(file))
    app = DecisionService(limiter, token="t" * 16, gateway="nginx")

    def ask_for(path: str) -> Any:
        headers = {"x-original-method": "GET", "x-original-uri": path, "x-forwarded-for": CLIENT}
        return ask(app, "/auth", client="127.0.0.1", headers={**headers, "x-real-ip": CLIENT})

    yield ask_for, limiter


PLAIN = {kind.__name__: partial(serving, kind) for kind in (ASGISite, WSGISite, AsyncDjangoSite)}
EVERYWHERE: dict[str, Any] = {**FRAMEWORKS, **PLAIN, "service": service}


@pytest.mark.parametrize("framework", EVERYWHERE.values(), ids=EVERYWHERE)
def test_an_idle_worker_decides_by_the_file_of_now(framework: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was denied meanwhile has no request left, and a mistake in the file costs none."""
    later = Later(monkeypatch)
    text = toml("10/hour", more='trusted_proxies = ["127.0.0.1"]').replace('"1ms"', '"1h"')
    later.write(file, text)
    with framework(file) as (get, _):
        first = get("/").status_code
        assert first in (200, 204)
        later.write(file, text.replace("[[", '[lists]\ndeny = { ip = ["0.0.0.0/0"] }\n[[', 1))
        assert get("/").status_code == first
        later.passed = 3601.0
        assert get("/").status_code == 403
        later.write(file, text.replace("hour", "hours-"))
        later.passed = 7202.0
        assert get("/").status_code == 403
        later.write(file, text)
        later.passed = 14403.0
        assert get("/").status_code == first


@each_framework
def test_a_request_follows_a_changed_file(framework: Any, file: Path) -> None:
    with framework(file) as (get, _):
        get("/")
        file.write_text(toml("2000000/hour"))
        wait_for(lambda: "q=2000000" in limits_of(get("/")) or not get("/"), "a reload")


WRONG = {
    "a route that does not exist": (
        '[[rules]]\nname = "x"\nmatch = { path = "/nowhere" }\nlimits = "1/hour"\n',
        "nowhere",
    ),
    "a feature that nothing provides": ('[[rules]]\nname = "x"\nkey = "tenant"\nlimits = "1/hour"\n', "tenant"),
    "an override without a decorator": ('[[rules]]\noverrides = "logins"\nlimits = "1/hour"\n', "logins"),
    "a name that a decorator has": ('[[rules]]\nname = "login"\nlimits = "1/hour"\n', "login"),
    "a parameter that no route has": ('[[rules]]\nname = "x"\nkey = "path:id"\nlimits = "1/hour"\n', "'id'"),
    "a region without a source": ('[[rules]]\nname = "x"\nkey = "region"\nlimits = "1/hour"\n', "region"),
    "a list of a feature that nothing provides": ('[lists]\ndeny = { tenant = ["x"] }\n', "tenant"),
    "a match of a feature that nothing provides": (
        '[[rules]]\nname = "x"\nmatch = { tenant = ["x"] }\nlimits = "1/hour"\n',
        "tenant",
    ),
    "a cost above the limit": ('[[rules]]\nname = "x"\ncost = 5\nlimits = "1/hour"\n', "the cost 5"),
    "a network that no client has": ('[lists]\ndeny = { ip = ["2001:db8::1"] }\n', "never matches"),
    "a file of clients that is missing": (
        '[[rules]]\nname = "x"\nper_key = "clients.json"\nlimits = "1/hour"\n',
        "not found",
    ),
    "an observer without a module": ('observers = ["nothing:f"]', "cannot import"),
    "a store without a scheme": ('store = "cache"', "store"),
    "a database of regions that is missing": ('region_database = "x.mmdb"', "file not found"),
    "a header of proxies that are not named": ('region_header = "cf-ipcountry"', "trusted_proxies"),
    "a secret that is missing": ('secret_file = "secret"', "not found"),
}


@each_framework
def test_rules_that_cannot_work_in_the_application_are_not_taken(framework: Any, file: Path) -> None:
    """The whole file is checked with the routes and the features of the application, as at its start."""
    file.write_text(toml("90/hour"))
    with framework(file) as (get, limiter):
        get("/login")

        @each("case", WRONG)
        def check(case: str) -> None:
            text, problem = WRONG[case]
            file.write_text(toml("20/hour") + text if text.startswith("[") else toml("20/hour", more=text))
            with pytest.raises(ConfigError, match=rf"^{re.escape(str(file))}:\d+: .*{problem}"):
                limiter.reload()
            assert limits_of(get("/")) == '"site";q=90;w=3600'

        check()
        assert '"site";q=90;w=3600' in limits_of(get("/login"))
        assert '"login";q=5;w=3600' in limits_of(get("/login"))


def test_a_typo_in_a_changed_file_is_not_taken_with_one_function_for_all_features(file: Path) -> None:
    """The function declares no such name, so its requests keep the earlier rules, and none fails."""
    limiter = Limiter.from_settings(str(file))
    app = RateLimitMiddleware(sending(START, BODY), limiter=limiter, features=lambda request: {"user": "ann"})
    assert ask(app).status_code == 200
    file.write_text(toml("20/hour") + '[[rules]]\nname = "x"\nkey = ["usr"]\nlimits = "1/hour"\n')
    with pytest.raises(ConfigError, match=r"rules\[\d\] \"x\": key: uses the feature 'usr'.* Did you mean 'user'"):
        limiter.reload()
    assert [limits_of(ask(app)) for _ in range(2)] == ['"site";q=10;w=3600'] * 2


def test_a_rule_that_a_view_names_cannot_disappear(file: Path) -> None:
    """Each call of check() would raise an error."""
    with starlette(file) as (get, limiter):
        get("/login")
        file.write_text(toml("20/hour").replace('"site"', '"all"'))
        with pytest.raises(ConfigError, match="the rule 'site' is missing, but the application calls it by its name"):
            limiter.reload()
        assert get("/login").status_code == 200


def test_a_rule_that_a_view_is_exempt_from_cannot_disappear(file: Path) -> None:
    app = Flask("app")
    limiter = Limiter.from_settings(str(file))
    of_flask.RateLimiter(app, limiter=limiter)
    app.add_url_rule("/", view_func=of_flask.exempt("site")(lambda: "home"), endpoint="home")
    app.test_client().get("/")
    file.write_text(toml("20/hour").replace('"site"', '"all"'))
    with pytest.raises(ConfigError, match=r"@exempt on .*: unknown rule 'site'"):
        limiter.reload()


def test_a_request_keeps_the_rules_that_it_began_with(file: Path) -> None:
    """Its check, its headers and its true cost are those of the rules before the reload."""
    limiter = Limiter.from_settings(str(file))

    async def view(request: Any) -> PlainTextResponse:
        file.write_text(toml("20/hour"))
        await limiter.areload()
        verdict = await of_starlette.check(request, "site")
        assert [decision.limit for decision in verdict.decisions] == [10]
        verdict["site"].settle(5)
        return PlainTextResponse("home")

    app = Starlette(routes=[Route("/", view)])
    app.add_middleware(of_starlette.RateLimitMiddleware, limiter=limiter)
    assert limits_of(ask(app, "/")) == '"site";q=10;w=3600'
    assert limiter.peek({"ip": "192.0.2.7"}, 0).decisions[0].remaining == 14


def test_two_middlewares_decide_a_request_once_also_during_a_reload(file: Path) -> None:
    """The outer one decides by the earlier rules. The inner one decides no rule of the same name again."""
    limiter = Limiter.from_settings(str(file))
    inner = RateLimitMiddleware(sending(START, BODY), limiter=limiter)

    async def reloading(scope: Any, receive: Any, send: Any) -> None:
        await limiter.areload()
        await inner(scope, receive, send)

    outer = RateLimitMiddleware(reloading, limiter=limiter)
    assert limits_of(ask(outer, "/")) == '"site";q=10;w=3600'
    for n in range(20, 24):
        file.write_text(toml(f"{n}/hour"))
        ask(outer, "/")
    decided = ask(outer, "/").headers["ratelimit"]
    assert decided.startswith('"site";r=17;t')


def test_a_middleware_that_has_not_started_starts_with_the_rules_of_now(file: Path) -> None:
    """A WSGI middleware around Flask looks at its application at the first request."""
    app = Flask("app")
    app.add_url_rule("/", "home", lambda: "home")
    limiter = Limiter.from_settings(str(file))
    limited = of_wsgi.RateLimitMiddleware(app.wsgi_app, limiter=limiter)
    file.write_text(toml("20/hour"))
    limiter.reload()
    assert limits_of(ask_wsgi(limited, "/")) == '"site";q=20;w=3600'


def test_settings_of_the_response_change_too_and_arguments_stay(file: Path) -> None:
    app = RateLimitMiddleware(sending(START, BODY), settings=str(file), headers=["x-ratelimit"])
    ask(app, "/")
    file.write_text(toml("20/hour", more='reset = "epoch"\n[lists]\ndeny = { ip = "203.0.113.0/24" }\n'))
    app.limiter.reload()
    response = ask(app, "/")
    assert "ratelimit" not in response.headers
    assert int(response.headers["x-ratelimit-reset"]) > 1_000_000_000
    assert ask(app, "/", client="203.0.113.9").status_code == 403


def test_openapi_describes_the_operations_that_are_limited_now(file: Path) -> None:
    app = FastAPI()
    app.add_middleware(of_fastapi.RateLimitMiddleware, settings=str(file))
    app.get("/a")(lambda: "a")
    app.get("/b")(lambda: "b")
    rule = '[[rules]]\nname = "a"\nlimits = "1/hour"\nmatch = {{ path = "{}" }}\n'
    file.write_text(rule.format("/a"))
    ask(app, "/a")
    stack = app.middleware_stack
    while not isinstance(stack, RateLimitMiddleware):
        stack = stack.app  # type: ignore[union-attr]
    file.write_text(rule.format("/b"))
    stack.limiter.reload()
    assert "429" in ask(app, "/openapi.json").json()["paths"]["/b"]["get"]["responses"]


def test_a_dictionary_of_django_is_read_again() -> None:
    """One with functions, too: the rules in it are those of the dictionary in the settings."""
    rules = [{"name": "site", "limits": "10/hour"}]
    settings = {"headers": ["ratelimit"], "rules": rules, "features": {"tenant": lambda request: "x"}}
    with override_settings(ROOT_URLCONF=django_calls.urls(django_path("", django_calls.hello)), RATELIMIT_MW=settings):
        client = django_calls.Client()
        assert limits_of(client.get("/")) == '"site";q=10;w=3600'
        rules[0] |= {"limits": "20/hour", "key": "tenant"}
        of_django.limiter().reload()
        assert limits_of(client.get("/")) == '"site";q=20;w=3600'


def test_a_websocket_keeps_the_limits_on_messages_that_it_began_with(tmp_path: Path) -> None:
    file = tmp_path / "ratelimit.toml"
    override = '[[rules]]\noverrides = "messages"\nlimits = "{}/hour"\n'
    file.write_text(override.format(3))
    limiter = Limiter.from_settings(str(file))

    @of_starlette.messages("1/hour", name="messages")
    async def view(websocket: Any) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            file.write_text(override.format(1))
            await limiter.areload()
            await websocket.send_text(text)

    app = Starlette(routes=[WebSocketRoute("/ws", view)])
    app.add_middleware(of_starlette.RateLimitMiddleware, limiter=limiter)
    assert kinds(connect(app, said="abc")) == ["accept", "a", "b", "c"]
    assert kinds(connect(app, said="d")) == ["accept", 1013]
