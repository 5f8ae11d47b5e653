"""A settings file, and overrides of clients, that change while an application of each framework runs."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from calls import BODY, START, ask, ask_wsgi, sending
from django.test import override_settings
from django.urls import path as django_path
from django_calls import Client, hello, urls
from fastapi import FastAPI
from flask import Flask
from idle_workers import Later
from misplaced import MISTAKES, check_place
from sites import CLIENT, DECORATED, Build, Call, Project, exempt, limited, only, routed
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from tables import case
from websocket_calls import connect, kinds

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw import django as of_django
from ratelimit_mw import fastapi as of_fastapi
from ratelimit_mw import starlette as of_starlette
from ratelimit_mw import wsgi as of_wsgi
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.cli.serve.app import DecisionService

OWN = '[[rules]]\noverrides = "own"\nlimits = "2/hour"\n'


def toml(limits: str, more: str = "") -> str:
    """Return settings with the limits of all requests."""
    return f'headers = ["ratelimit"]\nreload_interval = 0\n{more}\n[[rules]]\nname = "site"\nlimits = "{limits}"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ratelimit.toml"
    path.write_text(toml("10/hour"))
    return path


@pytest.fixture(params=DECORATED)
def served(request: pytest.FixtureRequest, file: Path) -> Iterator[Any]:
    """The site of each framework with a decorator on the view ``/login``, which has the limits of a file."""
    views = {"/": "home", "/login": limited("login", "5/hour", name="own")}
    with DECORATED[request.param](Limiter.from_settings(str(file)), views) as found:
        yield found


def limits_of(response: Any) -> str:
    return str(response.headers["ratelimit-policy"])


def test_new_limits_apply_to_the_next_request(served: Any, file: Path) -> None:
    """Those of all requests, and those that override a decorator. What was consumed stays consumed."""
    assert limits_of(served.call()) == '"site";q=10;w=3600'
    file.write_text(toml("20/hour") + OWN)
    served.limiter.reload()
    response = served.call()
    assert limits_of(response) == '"site";q=20;w=3600'
    assert response.headers["ratelimit"].startswith('"site";r=18;t')
    assert '"own";q=2;w=3600' in limits_of(served.call(path="/login"))
    assert served.statuses(2, path="/login") == [200, 429]


def test_an_override_applies_to_the_next_request(served: Any, file: Path) -> None:
    """Even for the rule of a decorator, and after a reload."""
    served.call(path="/login")
    clients, client = served.limiter.clients, {"ip": CLIENT, "user": "ann"}
    clients.override("site", client, "20/hour")
    clients.override("own", client, "2/hour")
    response = served.call()
    assert limits_of(response) == '"site";q=20;w=3600'
    assert response.headers["ratelimit"].startswith('"site";r=18;t')
    assert '"own";q=2;w=3600' in limits_of(served.call(path="/login"))
    assert served.statuses(1, path="/login") == [429]
    file.write_text(toml("30/hour"))
    served.limiter.reload()
    assert limits_of(served.call()) == '"site";q=20;w=3600'
    clients.clear_overrides()
    assert limits_of(served.call()) == '"site";q=30;w=3600'
    assert '"own";q=5;w=3600' in limits_of(served.call(path="/login"))


WRONG = {
    **{name: text for name, (text, _) in MISTAKES.items()},
    "an unnamed decorator": '[[rules]]\nname = "own"\nlimits = "1/hour"\n',
    "a network that no client has": '[lists]\ndeny = { ip = ["2001:db8::1"] }\n',
    "a file of clients that is missing": '[[rules]]\nname = "x"\nper_key = "clients.json"\nlimits = "1/hour"\n',
    "a store without a scheme": 'store = "cache"\n',
    "a database of regions that is missing": 'region_database = "x.mmdb"\n',
    "a secret that is short": 'secret = "short"\n',
}


def test_rules_that_cannot_work_in_the_application_are_not_taken(served: Any, file: Path) -> None:
    """The whole file is checked with the routes and the features of the application, as at its start."""
    served.call()
    for name, text in WRONG.items():
        if name == "a method" and isinstance(served, Project):  # a function has all methods
            continue
        file.write_text(text)
        with case(name), pytest.raises(ConfigError) as caught:
            served.limiter.reload()
        check_place(str(caught.value), file, MISTAKES[name][1] if name in MISTAKES else "")
        assert limits_of(served.call()) == '"site";q=10;w=3600'
    served.limiter.reset("site", {"ip": CLIENT})
    assert '"own";q=5;w=3600' in limits_of(served.call(path="/login"))


@routed
def test_a_name_that_the_application_uses_cannot_disappear(site: Build, tmp_path: Path) -> None:
    """Each ``check`` of it would raise an error, and ``exempt`` would exempt from nothing."""

    async def view(call: Call) -> int:
        await call.check("site")
        return 200

    for views, message in (
        (view, "the rule 'site' is missing, but the application calls it by its name"),
        (exempt(200, "site"), "@exempt on .*: unknown rule 'site'"),
    ):
        file = tmp_path / f"{len(message)}.toml"
        file.write_text(toml("10/hour"))
        served = site(Limiter.from_settings(str(file)), views)
        served.call()
        file.write_text(toml("20/hour").replace('"site"', '"all"'))
        with pytest.raises(ConfigError, match=message):
            served.limiter.reload()
        assert served.statuses(1) == [200]


def test_a_typo_in_a_changed_file_is_not_taken_with_one_function_for_all_features(site: Build, file: Path) -> None:
    """The function declares no such name, so its requests keep the earlier rules, and none fails."""
    served = site(Limiter.from_settings(str(file)), features=lambda request: {"user": "ann"})
    assert served.statuses(1) == [200]
    file.write_text(toml("20/hour") + '[[rules]]\nname = "x"\nkey = ["usr"]\nlimits = "1/hour"\n')
    with pytest.raises(ConfigError, match=r"rules\[\d\] \"x\": key: .*'usr'.* Did you mean 'user'"):
        served.limiter.reload()
    assert limits_of(served.call()) == '"site";q=10;w=3600'


@only({"wsgi", "flask", "django"})
def test_the_first_request_of_a_worker_knows_the_overrides(site: Build, file: Path, tmp_path: Path) -> None:
    """An application without a start reads them before it decides."""
    file.write_text(toml("10/hour", more=f'store = "lmdb://{tmp_path}/state"\nstore_timeout = "9s"'))
    with closing(Limiter.from_settings(str(file))) as operator:
        operator.clients.override("site", {"ip": CLIENT}, "20/hour")
        assert limits_of(site(Limiter.from_settings(str(file))).call()) == '"site";q=20;w=3600'


def check_idle_worker(status: Callable[[], int], file: Path, later: Later, settings: str) -> None:
    """Check that a worker that was idle for an hour decides by the file of now, and keeps it if it has a mistake."""
    first = status()
    assert first in (200, 204)
    later.write(file, settings.replace("[[", '[lists]\ndeny = { ip = ["0.0.0.0/0"] }\n[[', 1))
    assert status() == first
    later.passed = 3601.0
    assert status() == 403
    later.write(file, settings.replace("hour", "hours-"))
    later.passed = 7202.0
    assert status() == 403
    later.write(file, settings)
    later.passed = 14403.0
    assert status() == first


IDLE = toml("10/hour", more='trusted_proxies = ["127.0.0.1"]').replace("reload_interval = 0", 'reload_interval = "1h"')


def test_an_idle_worker_decides_by_the_file_of_now(site: Build, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was denied meanwhile has no request left, and a mistake in the file costs none."""
    later = Later(monkeypatch)
    later.write(file, IDLE)
    served = site(Limiter.from_settings(str(file)))
    check_idle_worker(lambda: served.call().status_code, file, later, IDLE)


def test_an_idle_service_decides_by_the_file_of_now(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = Later(monkeypatch)
    later.write(file, IDLE)
    with closing(Limiter.from_settings(str(file))) as limiter:
        app = DecisionService(limiter, token="t" * 16, gateway="nginx")
        headers = {"x-original-method": "GET", "x-original-uri": "/", "x-forwarded-for": CLIENT, "x-real-ip": CLIENT}
        check_idle_worker(lambda: ask(app, "/auth", client="127.0.0.1", headers=headers).status_code, file, later, IDLE)


# -- what is particular to one of them -------------------------------------------------------------------------


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
    with override_settings(ROOT_URLCONF=urls(django_path("", hello)), RATELIMIT_MW=settings):
        client = Client()
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
