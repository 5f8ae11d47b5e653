"""Static files are exempt from rules for the whole application."""

from typing import Any

from flask import Blueprint, Flask
from tables import each

from ratelimit_mw.flask import RateLimiter, limit


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
    runner = app.test_cli_runner()
    listed = runner.invoke(args=["ratelimit", "rules"]).output
    assert "exempt: /static/{filename} from every rule without match.path and match.view" in listed
    explained = runner.invoke(args=["ratelimit", "explain", "GET", "/static/a"]).output
    assert "the route takes only rules with match.path or match.view" in explained
