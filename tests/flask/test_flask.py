"""The Flask extension takes its rules, decides requests and rejects clients."""

import importlib
import json
from copy import copy
from pathlib import Path
from typing import Any

import flask
import pytest
from flask import Flask
from flask_calls import app_of, ask, hello, one_rule, statuses, still
from flask_login import LoginManager, UserMixin
from libraries import load_without
from shared_store import SharedStore
from tables import each
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.proxy_fix import ProxyFix

from ratelimit_mw import ConfigError, Limiter, RateLimitExceeded, Rule
from ratelimit_mw.flask import RateLimiter, check
from ratelimit_mw.http.rejection import Rejection

TWICE = {"rules": [{"name": "api", "limits": "2/minute"}]}


def settings_file(folder: Path) -> Path:
    path = folder / "limits.json"
    path.write_text(json.dumps(TWICE))
    return path


@each("place", ["argument", "file", "configured", "configured file", "limiter", "configured limiter"])
def test_the_sources_of_rules(place: str, tmp_path: Path) -> None:
    """Rules come from the constructor, the application's configuration, a file, or a limiter."""
    app = Flask("app")
    app.add_url_rule("/", view_func=hello)
    if place.startswith("configured"):
        file = str(settings_file(tmp_path))
        options = {"configured": TWICE, "configured file": file, "configured limiter": Limiter.from_settings(TWICE)}
        app.config["RATELIMIT_MW"] = options[place]
        RateLimiter(app)
    elif place == "limiter":
        RateLimiter(app, limiter=Limiter.from_settings(TWICE))
    else:
        RateLimiter(app, TWICE if place == "argument" else settings_file(tmp_path))
    assert statuses(app) == [200, 200, 429]


def configured(**config: Any) -> Flask:
    app = Flask("app")
    app.config.update(config)
    return app


def test_two_sources_of_rules_are_an_error() -> None:
    """Settings in both the constructor and the configuration are an error in init_app."""
    with pytest.raises(ConfigError, match="Remove one of them"):
        RateLimiter(configured(RATELIMIT_MW=TWICE), settings=TWICE)


@each(
    ("options", "message"),
    [
        ({"settings": {"rules": [{"limits": "5/minit"}]}}, "rules.0.*minit"),
        ({"settings": TWICE, "limiter": one_rule()}, "either settings"),
        (
            {"settings": TWICE, "features": {"user": lambda: "alice"}},
            "features.'user'.: expected a function of the req",
        ),
        ({"settings": TWICE, "rejection": lambda request: "busy"}, "rejection: expected a function of the request and"),
        ({"settings": TWICE, "headers": ["x-rate"]}, "x-rate"),
    ],
)
def test_an_invalid_setting_is_an_error_at_the_start(options: dict[str, Any], message: str) -> None:
    """A mistake in settings or arguments raises an error in init_app."""
    with pytest.raises(ConfigError, match=message):
        RateLimiter(Flask("app"), **options)


@each("slip", ["RATELIMIT_MV", "RATE_LIMIT_MW", "RATELIMIT", "RATELIMIT_MW_RULES"])
def test_a_misspelt_setting_is_an_error(slip: str) -> None:
    """A misspelt name would mean no limits. Names of other packages, and names beside valid settings, are ignored."""
    app = configured(RATELIMIT_ENABLED=True, RATELIMIT_VIEW="x", **{slip: TWICE})
    with pytest.raises(ConfigError, match=f"{slip}: unknown setting .*Did you mean 'RATELIMIT_MW'"):
        RateLimiter(app)
    RateLimiter(app, settings=TWICE)
    RateLimiter(configured(RATELIMIT_MW=TWICE, RATELIMIT_MW_RULES="x"))


def test_settings_after_init_app_are_an_error() -> None:
    """The extension reads the configuration once, so later settings raise an error instead of being ignored."""
    app = app_of(one_rule())
    app.config["RATELIMIT_MW"] = TWICE
    assert statuses(app) == [500, 500, 500]
    app.testing = True
    with pytest.raises(ConfigError, match=r"app.config\['RATELIMIT_MW'\]: set after init_app"):
        ask(app)


def test_a_factory_adds_one_extension_to_several_applications() -> None:
    """With init_app each application has its own counts. A second extension is an error, and so is none."""
    limits = RateLimiter(settings=TWICE)
    apps = [Flask(name) for name in ("one", "two")]
    for app in apps:
        app.add_url_rule("/", view_func=hello)
        limits.init_app(app)
    assert [statuses(app) for app in apps] == [[200, 200, 429]] * 2
    with apps[0].app_context():
        limits.limiter.reset("api", {"ip": "192.0.2.7"})
    assert [ask(app).status_code for app in apps] == [200, 429]
    with pytest.raises(ConfigError, match="'one' has a RateLimiter already"):
        RateLimiter(apps[0])
    with pytest.raises(ConfigError, match=r"^expected RateLimiter\(app, .*; got 'ratelimit\.toml'$"):
        RateLimiter("ratelimit.toml", apps[0])  # type: ignore[arg-type]
    with Flask("bare").app_context(), pytest.raises(ConfigError, match="'bare' has no RateLimiter"):
        _ = limits.limiter


@each(
    ("status", "limits", "expected"),
    [
        (429, {"rules": [{"name": "api", "limits": "1/minute"}]}, "60.0 False"),
        (403, {"lists": {"deny": {"ip": ["192.0.2.0/24"]}}}, "None False"),
        (503, Rule(name="api", limits="5/minute", on_store_error="deny"), "1.0 True"),
    ],
)
@each("kind", ["status", RateLimitExceeded])
def test_an_error_handler_replaces_the_rejection(status: int, limits: Any, expected: str, kind: Any) -> None:
    """It receives an error of Werkzeug. Its response has the rate limit headers. That of the error precedes others."""
    store = SharedStore()
    store.down = True
    app = app_of(still(limits) if isinstance(limits, dict) else Limiter([limits], store))
    for general in (status, HTTPException):
        app.register_error_handler(general, lambda error: ("any error", status))
    app.register_error_handler(
        status if kind == "status" else kind,
        lambda error: (f"{error.verdict.retry_after} {error.verdict.unavailable}", status, error.get_headers()),
    )
    responses = [ask(app) for _ in range(2)]
    assert [responses[-1].status_code, responses[-1].text] == [status, expected]
    assert status != 429 or responses[-1].headers["ratelimit"] == '"api";r=0;t=60'
    assert responses[-1].headers.getlist("retry-after") == ([] if status == 403 else [expected.partition(".")[0]])


def test_an_error_handler_of_a_blueprint_applies_there() -> None:
    """Flask chooses the error handler of a rejection as usual."""
    app, shop = app_of(one_rule("1/minute", cost=lambda _: 2)), flask.Blueprint("shop", "app")
    shop.add_url_rule("/shop", view_func=hello)
    shop.register_error_handler(HTTPException, lambda error: (f"shop says {error.code}", error.code))
    app.register_blueprint(shop)
    assert [ask(app, path).text[:8] for path in ("/shop", "/")] == ["shop say", '{"type":']


def test_layers_of_the_application_keep_their_attributes() -> None:
    """Its code may read them on wsgi_app, where the extension is now the outermost layer."""
    app = Flask("app")
    app.wsgi_app = ProxyFix(app.wsgi_app, x_for=2)  # type: ignore[method-assign]
    RateLimiter(app)
    assert (copy(app.wsgi_app).x_for, hasattr(app.wsgi_app, "x_to")) == (2, False)  # type: ignore[attr-defined]
    assert ask(app).status_code == 404


@each("method", ["handle_user_exception", "handle_http_exception"])
def test_a_method_of_the_application_handles_the_rejection(method: str) -> None:
    """Extensions such as Flask-RESTful replace it, without any error handler."""
    app = app_of(one_rule("1/minute"))
    setattr(app, method, lambda error: (f"shaped: {error.code}", error.code))
    assert [ask(app).text for _ in range(2)] == ["hello", "shaped: 429"]


@each(
    "result",
    [
        ("busy", 429),
        Rejection(429, [("content-type", "text/plain")], b"busy"),
        flask.Response("busy", 429),
        lambda environ, start_response: [start_response("429 BUSY", []) and b"", b"busy"],
    ],
)
def test_a_custom_rejection_precedes_error_handlers(result: Any) -> None:
    """A return value of a view, a Rejection or a WSGI application takes precedence over error handlers."""

    async def busy(request: flask.Request, verdict: Any) -> Any:
        assert (request.path, verdict.allowed) == (path, False)
        return result

    matches = {"arriving": {"path": "/"}, "checked": {"view": ""}}
    rules = [{"name": name, "limits": "1/minute", "match": match} for name, match in matches.items()]
    views = {"/": hello, "/checked": lambda: str(check("checked"))}
    app = app_of(still({"rules": rules}), views, rejection=busy)
    app.register_error_handler(429, lambda error: ("handled", 429))
    for path in ("/", "/checked"):
        ask(app, path)
        rejected = ask(app, path)
        assert (rejected.status_code, rejected.text) == (429, "busy")
        assert rejected.headers["retry-after"] == "60"


class User(UserMixin):
    def __init__(self, name: str) -> None:
        self.id = name


def test_the_user_is_the_user_of_flask_login() -> None:
    """A signed-in user of Flask-Login is the user. The Authorization header gives no user."""
    app = app_of(one_rule("1/minute", key=["user|ip"]))
    manager = LoginManager(app)
    manager.request_loader(lambda request: User(request.args["user"]) if "user" in request.args else None)
    assert statuses(app, "/?user=alice", 2) == [200, 429]
    assert ask(app, "/?user=bob").status_code == 200
    assert [ask(app, auth=(name, "x")).status_code for name in ("eve", "mallory")] == [200, 429]
    assert ask(app, client="192.0.2.8").status_code == 200  # anonymous users are not one user


def test_an_application_inside_another() -> None:
    """An application that a view calls with the same environment does not change the state of the outer one."""
    inner = app_of(one_rule("5/minute"))
    outer = app_of(one_rule("9/minute", count_when={"status": 500}), {"/": lambda: inner})
    response = ask(outer)
    assert (response.text, response.headers["x-ratelimit-limit"]) == ("hello", "9")
    assert [ask(outer).headers["x-ratelimit-remaining"] for _ in range(2)] == ["9", "9"]


def test_flask_login_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Flask-Login, no code imports it, and REMOTE_USER counts."""
    load_without(monkeypatch, "ratelimit_mw.flask.hooks", "flask_login")
    without = importlib.import_module("ratelimit_mw.flask.hooks")
    monkeypatch.undo()
    assert without.current_user is None
    with Flask("app").test_request_context(environ_overrides={"REMOTE_USER": "alice"}):
        assert without.flask_user(without.FlaskRequest(flask.request)) == "alice"
