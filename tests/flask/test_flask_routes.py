"""Endpoints and path parameters come from Flask's routes, and the commands list rules with their routes."""

import json
from typing import Any

from command_line import run_with
from flask import Blueprint, Flask
from flask_calls import app_of, hello, one_rule, statuses
from tables import each
from werkzeug.routing import Map, Rule

from ratelimit_mw.flask import RateLimiter, limit
from ratelimit_mw.flask.hooks import FlaskRequest
from ratelimit_mw.wsgi.url_map import template_of


@each(
    ("rule", "template"),
    [
        ("/", "/"),
        ("/items/<id>/", "/items/{id}/"),
        ("/<int(min=1, max=9):a>-<b>", "/{a}-{b}"),
        ("/<any('x:y', \"<\", 'z)'):kind>/<path:rest>", "/{kind}/{rest}"),
        ("/<string(length=2):lang_code>/a", "/{lang_code}/a"),
    ],
)
def test_converters_are_dropped(rule: str, template: str) -> None:
    """Only the parameter's name stays, for every form of converter. The host is no part of it."""
    for host in ({}, {"subdomain": "<tenant>"}):
        [known] = Map([Rule(rule, endpoint="view", **host)]).iter_rules()
        assert template_of(known) == template


def test_a_405_has_no_rule_outside_its_context() -> None:
    """A thread or a stream that runs after the request has no routes to search."""
    app = app_of(views={"/items/<id>": hello})
    with app.test_request_context("/items/7", method="DELETE") as context:
        inside = FlaskRequest(context.request)
    outside = FlaskRequest(context.request)
    assert (inside.rule and inside.rule.rule, inside.path_params) == ("/items/<id>", {"id": "7"})
    assert (outside.rule, outside.path_params) == (None, {})


# -- the commands ----------------------------------------------------------------------------------------------


def test_explain_shows_the_route_of_a_405() -> None:
    app = app_of(one_rule(key=["endpoint"]), {"/items/<int:number>": hello})
    result = json.loads(run_with(app, "explain", "DELETE", "/items/7", "--json").stdout)
    assert (result["features"]["endpoint"], result["rules"][0]["applies"]) == ("/items/{number}", True)


# -- OPTIONS ---------------------------------------------------------------------------------------------------


@each(
    ("options", "expected"),
    [
        ({"methods": ["POST"]}, [200] * 3),
        ({"methods": ["POST", "OPTIONS"]}, [200, 200, 429]),
        ({"methods": ["POST", "OPTIONS"], "provide_automatic_options": True}, [200] * 3),
        ({"methods": ["POST"], "provide_automatic_options": False}, [405, 405, 429]),
    ],
)
def test_options_count_where_flask_does_not_answer_them(options: Any, expected: list[int]) -> None:
    """OPTIONS is left alone where Flask responds automatically. Without a route it counts as any other 404."""
    app = Flask("app")
    app.add_url_rule("/", view_func=hello, **options)
    RateLimiter(app, limiter=one_rule())
    assert statuses(app, method="OPTIONS") == expected
    assert statuses(app_of(one_rule()), "/nowhere", method="OPTIONS") == [404, 404, 429]


def test_a_rule_that_names_options_counts_those_of_flask() -> None:
    """A rule that names the method also applies when Flask itself responds to OPTIONS."""
    app = app_of(views={"/": limit("1/minute", match={"methods": "OPTIONS"})(hello)})
    assert statuses(app, method="OPTIONS") == [200, 429, 429]


# -- static files are exempt from rules for the whole application ----------------------------------------------


def served(settings: Any, mark: Any = None, path: str = "/static/none.css", **environ: Any) -> list[int]:
    """The statuses of three requests for a static file of an application with a blueprint."""
    app = Flask("static", static_folder=".", static_url_path="/static")
    assets = Blueprint("assets", "assets", static_folder=".", static_url_path="/static", url_prefix="/assets")
    if mark:
        mark(app)
        mark(assets)
    app.register_blueprint(assets)
    RateLimiter(app, settings)
    statuses = []
    for _ in range(3):
        with app.test_client().get(path, environ_base=environ) as response:
            statuses.append(response.status_code)
    return statuses


EVERY: Any = {"limits": "1/hour"}
FREE, LIMITED = [404] * 3, [404, 429, 429]


@each("path", ["/static/none.css", "/assets/static/none.css"])
@each("mark", [None, limit("1/hour")])
def test_static_files_are_exempt(path: str, mark: Any) -> None:
    """From the rules of the file, and from limits on an application and a blueprint."""
    assert served(EVERY, mark, path) == FREE


@each(
    "match",
    [
        {"path": "/static/**"},
        {"path": "/static/{filename:path}", "methods": "GET"},
        {"view": "static"},
        {"path": "/**"},
    ],
)
def test_a_rule_that_names_static_files_limits_them(match: Any) -> None:
    """No rule loses its requests unseen: one with a path or a view applies as before."""
    assert served({"rules": [{"limits": "1/hour", "match": match}]}) == LIMITED


def test_the_deny_list_applies_to_static_files() -> None:
    """As to everything that is exempt."""
    denied = {**EVERY, "lists": {"deny": {"ip": ["203.0.113.0/24"]}}}
    assert served(denied, REMOTE_ADDR="203.0.113.7") == [403] * 3
    assert served(denied, REMOTE_ADDR="192.0.2.7") == FREE


def test_a_limit_on_the_view_itself_holds() -> None:
    """Other views are limited, too, if they have the name or the path of static files."""
    app = Flask("static", static_folder=".", static_url_path="/static")
    app.view_functions["static"] = limit("1/hour")(app.view_functions["static"])
    own = Flask("own", static_folder=None)
    own.add_url_rule("/static/<path:name>", "static", lambda name: ("none", 404))
    for served_app in (app, own):
        RateLimiter(served_app, {} if served_app is app else EVERY)
        client = served_app.test_client()
        assert [client.get("/static/none.css").status_code for _ in range(3)] == LIMITED


def test_the_commands_name_static_files() -> None:
    """The list of rules shows the exemption, and ``explain`` the reason."""
    app = Flask("static", static_folder=".", static_url_path="/static")
    RateLimiter(app, EVERY)
    listed = run_with(app, "check").output
    assert "exempt: /static/{filename} from every rule without match.path and match.view" in listed
    explained = run_with(app, "explain", "GET", "/static/a").output
    assert "the route takes only rules with match.path or match.view" in explained
