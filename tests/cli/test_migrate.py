"""``migrate``: the settings load, the decorators work, and everything that needs a hand is a problem with its place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import run, start
from folders import ROOT

from ratelimit_mw import load_settings
from ratelimit_mw.flask import exempt, limit

EXAMPLES = ROOT / "examples" / "migrating"


def migrated(package: str, app: str, folder: Path) -> dict[str, Any]:
    """Return the result of the command in a process of its own, with the decorators by view."""
    result = start("migrate", package, app, "--json", cwd=folder)
    assert result.returncode in (0, 1), result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == bool(found["problems"])
    assert "Traceback" not in result.stderr
    found["views"] = {view["view"]: view["decorators"] for view in found["views"]}
    check_that_it_works(found)
    return found


def check_that_it_works(found: dict[str, Any]) -> None:
    """The settings load, and each decorator can be put on a function."""
    load_settings(found["settings"])
    names: dict[str, Any] = {"limit": limit, "exempt": exempt}
    for code in found["code"]:
        if " = limit(" in code:
            exec(code, names)
    for decorators in found["views"].values():
        for decorator in decorators:
            eval(decorator[1:], {**names, "rate": "5/minute"})(lambda: None)


def test_an_application_of_flask_limiter() -> None:
    """The shop of the migration page."""
    found = migrated("flask-limiter", "flask_limiter_before:app", EXAMPLES)
    assert found["settings"] == {
        "lists": {"allow": {"is_monitoring": ["yes"]}},
        "rules": [
            {"name": "default", "limits": ["200/day", "4/minute"], "key": ["endpoint", "ip"]},
            {"name": "application", "limits": "100/hour"},
        ],
    }
    assert found["views"] == {
        "health": ["@exempt"],
        "about": ['@limit("2/minute")'],
        "search": ['@exempt("default")', "@finding"],
        "suggest": ['@exempt("default")', "@finding"],
        "login": ['@exempt("default")', '@limit(["2/minute", "10/hour"], count_when={"status": 401})'],
        "export": ['@exempt("default")', '@limit("10/hour", cost=5)'],
    }
    assert found["code"][-2:] == [
        'finding = limit("3/minute", name="finding")',
        'limit("2/minute", key=["endpoint", "client_18"])(exempt("default")(api))',
    ]
    assert list(found["features"]) == ["is_monitoring", "client_18"]


def test_an_application_of_slowapi() -> None:
    """The shop of the migration page."""
    found = migrated("slowapi", "slowapi_before:app", EXAMPLES)
    (default,) = found["settings"]["rules"]
    assert (default["name"], sorted(default["limits"]), default["key"]) == (
        "default",
        ["200/day", "4/minute"],
        ["endpoint", "ip"],
    )
    assert found["views"]["items"] == [
        '@exempt("default")',
        '@limit(["10/hour", "2/minute"], key="api_key", match={"methods": "POST", "is_monitoring": "no"})',
    ]
    assert found["views"]["health"] == ["@exempt"]
    assert found["features"]["api_key"] == "api_key"
    assert found["code"][0] == "from ratelimit_mw.fastapi import RateLimitMiddleware, exempt, limit"


HARD_SLOWAPI = """
from slowapi import Limiter
from slowapi.util import get_ipaddr
from starlette.applications import Starlette

def plan_limits(key):
    return "5/minute"

def account(request):
    return "ann"

app = Starlette()
limiter = Limiter(get_ipaddr, storage_uri="memory://", enabled=False, application_limits=["9/minute"])
app.state.limiter = limiter

@limiter.limit(plan_limits, key_func=account)
@limiter.limit("5/minute")
@limiter.limit("9/minute")
def view(request):
    return ""

app.add_route("/", view)
"""


def test_a_function_of_the_key_stays(folder: Path) -> None:
    """A function of the value of the key works as before. Two limits with one period stay two decorators.

    slowapi applies application limits in its middleware alone, so a note says that this rule is new.
    """
    (folder / "hard_slowapi.py").write_text(HARD_SLOWAPI)
    result = run("migrate", "slowapi", "hard_slowapi:app", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["problems"]) == (0, [])
    assert found["settings"] == {"enabled": False, "rules": [{"name": "application", "limits": "9/minute"}]}
    assert found["views"][0]["decorators"] == [
        '@limit("9/minute", key=["path", "ip"])',
        '@limit("5/minute", key=["path", "ip"])',
        '@limit(lambda *key: plan_limits(key[-1]), key=["path", "account"])',
    ]
    assert "without SlowAPIMiddleware" in result.stderr
    assert "the function plan_limits receives the value of the key, as before" in result.stderr
    assert "get_ipaddr reads a header that clients can set. Set trusted_proxies" in result.stderr
    assert found["code"][0] == "from ratelimit_mw.starlette import RateLimitMiddleware, exempt, limit"


def test_an_application_of_django_ratelimit() -> None:
    """The shop of the migration page, with a function that returns the rate."""
    found = migrated("django-ratelimit", "django_ratelimit_before:application", EXAMPLES)
    assert found["settings"] == {"rules": []}
    assert found["views"] == {
        "search": ['@limit("5/minute")', '@limit("2/minute", key="get:q")'],
        "login": ['@limit("2/hour", key="post:username", match={"methods": "POST"})'],
        "items": ["@api"],
        "prices": ["@api"],
        "export": ['@limit(rate, key="client")'],
        "contact": ['@limit("1/day", mode="shadow")'],
        "Basket.post": ['@limit("2/minute")'],
    }
    assert [problem.split(": ")[0] for problem in found["problems"]] == [
        "django_ratelimit_before.py:58",
        "django_ratelimit_before.py:65",
    ]


HARD_FLASK = """
from flask import Blueprint, Flask, request
from flask.views import View
from flask_limiter import ExemptionScope, Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
limiter = Limiter(
    get_remote_address, app=app, default_limits=["5/minute", lambda: "1/day"], default_limits_cost=lambda: 2,
    default_limits_per_method=True, strategy="moving-window", application_limits=["9/hour"], meta_limits=["2/day"],
    swallow_errors=True, key_prefix="shop", storage_uri="memory://",
)

@limiter.limit(lambda: "5/minute")
@limiter.limit("3/minute", key_func=lambda: request.args["user"], per_method=True, error_message="slow")
@limiter.limit("9/hour", deduct_when=lambda response: request.args["x"], cost=lambda: 2, exempt_when=lambda: False)
def computed():
    limiter.check()
    with limiter.limit("1/second"):
        return str(limiter.current_limit)

@app.get("/half")
@limiter.exempt(flags=ExemptionScope.DEFAULT)
def half():
    limiter.reset()
    return ""

class Page(View):
    decorators = [limiter.limit("5/second")]

    def dispatch_request(self):
        return ""

throttle = limiter

@app.get("/throttled")
def throttled():
    with throttle.limit("1/minute"):
        return str(throttle.current_limits)

app.add_url_rule("/page", view_func=Page.as_view("page"))
app.get("/computed")(computed)
bp = Blueprint("in-side", __name__)
limiter.exempt(bp)
deep = Blueprint("deep", __name__)
limiter.exempt(deep, flags=ExemptionScope.ANCESTORS)
both = Blueprint("both", __name__)
limiter.exempt(limiter.limit("2/minute")(both) or both)
both.register_blueprint(deep)
for each in (bp, both):
    app.register_blueprint(each)
bare = Flask("bare")
"""


def test_the_parts_that_need_a_hand_are_problems(folder: Path) -> None:
    """Functions of limits and of responses, and calls inside views, have their place and their replacement."""
    (folder / "hard_flask.py").write_text(HARD_FLASK)
    found = migrated_here("flask-limiter", "hard_flask:app")
    problems = "\n".join(found["problems"])
    for text in (
        "the function lambda returns the limits. Write a table of limits",
        "deduct_when=lambda reads more than the status",
        "limiter.check: name a rule with match",
        "with limiter.limit: name a rule",
        "limiter.current_limit: the decisions of the verdict",
        "limiter.reset: reset(rule, key)",
        "hard_flask.py:38: with limiter.limit: name a rule",
        "hard_flask.py:39: limiter.current_limits",
        "the limiter: meta_limits: write ban = {...} in the rules, which counts rejections",
        "a settings file has no functions, so cost = lambda request: the_function_of_line_9() of the rule 'default'",
    ):
        assert text in problems
    notes = "\n".join(found["notes"])
    for text in ("?prefix=shop", "error_message: write your own"):
        assert text in notes
    assert found["settings"]["on_store_error"] == "allow"
    default, application = found["settings"]["rules"]
    assert (application["name"], application["limits"]) == ("application", "9/hour")
    assert {"view": "Page", "place": "hard_flask.py:28"}.items() <= found["views"][-1].items()
    assert (default["algorithm"], default["key"]) == ("sliding-window-log", ["endpoint", "method", "ip"])
    assert "cost=lambda request: the_function_of_line_16_2()" in str(found["views"])
    assert '@exempt("default")' in str(found["views"])
    assert "exempt(bp)" in found["code"]
    assert "blueprint deep: it is nested" in problems
    assert 'exempt("default", "application")(both)' in str(found["code"])


def migrated_here(package: str, app: str) -> dict[str, Any]:
    result = run("migrate", package, app, "--json")
    assert result.exit_code == 1, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    load_settings(found["settings"])
    return found


def test_the_text_is_a_settings_file_and_code(folder: Path) -> None:
    """The first part of the output is valid TOML, and problems and notes are on stderr."""
    result = start("migrate", "slowapi", "slowapi_before:app", cwd=EXAMPLES)
    assert (result.returncode, result.stderr.splitlines()[0][:6]) == (0, "note: ")
    file, _, code = result.stdout.partition("# Instead of the limiter\n")
    path = folder / "ratelimit.toml"
    path.write_text(file)
    assert load_settings(path).rules[0].name == "default"
    compile(code.rpartition("# Objects")[0], "code", "exec")


WRONG = {
    "no limiter": (["flask-limiter", "hard_flask:bare"], 1, "hard_flask:bare: no Limiter of Flask-Limiter"),
    "another framework": (["slowapi", "hard_flask:app"], 1, "no Limiter of slowapi at app.state.limiter"),
    "no module": (["slowapi", "nowhere:app"], 2, "MODULE:APP: no module 'nowhere'"),
    "another package": (["throttle", "hard_flask:app"], 2, "'throttle' is not one of"),
}


@pytest.mark.parametrize(("words", "code", "said"), WRONG.values(), ids=WRONG.keys())
def test_mistakes_are_named(folder: Path, words: list[str], code: int, said: str) -> None:
    """The exit code is 1 for an application without limits, and 2 for a command that is misused."""
    (folder / "hard_flask.py").write_text(HARD_FLASK)
    sys.modules.pop("hard_flask", None)
    result = run("migrate", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in " ".join(result.stderr.split())


def test_the_help_has_examples() -> None:
    """There is an example of each package."""
    text = run("migrate", "--help").stdout
    for package in ("flask-limiter", "slowapi", "django-ratelimit"):
        assert f"ratelimit-mw migrate {package}" in text
