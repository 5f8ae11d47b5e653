"""``migrate``: the printed settings, code and decorators decide as the application did before.

Each application is one text, with marks for the limiter, for the blueprints and for the decorators of each view. It
runs twice: with those of the other package, and with those that the command prints.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from calls import ask, ask_wsgi
from command_line import run

NUMBERS = itertools.count()
FLASK = """
from flask import Blueprint, Flask, request
from flask.views import MethodView
from flask_limiter import ExemptionScope, Limiter
from flask_limiter.util import get_remote_address
app = Flask(__name__)
"""
FLASK_LIMITER = 'limiter = Limiter(get_remote_address, app=app, strategy="moving-window", storage_uri="memory://"%s)'
FASTAPI = """
from functools import partial
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from slowapi import Limiter
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIMiddleware
from slowapi.util import get_remote_address
app = FastAPI()
app.add_exception_handler(RateLimitExceeded, lambda request, error: PlainTextResponse("", status_code=429))
"""
SLOWAPI = 'limiter = app.state.limiter = Limiter(get_remote_address, strategy="moving-window"%s)'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def imported(text: str, parts: Mapping[str, list[str]]) -> tuple[str, Any]:
    """Write a module with the lines of each mark, and import it."""
    marked = re.compile(r"^( *)<(\w+)>\n", re.MULTILINE)
    name = f"migrated_{next(NUMBERS)}"
    lines = marked.sub(lambda mark: "".join(f"{mark[1]}{line}\n" for line in parts.get(mark[2], ())), text)
    Path(f"{name}.py").write_text(f"{lines}\n" + "\n".join(parts.get("end", ())))
    importlib.invalidate_caches()
    return name, importlib.import_module(name).app


def migrated(package: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("migrate", package, f"{name}:app", "--json").stdout)
    return found


def parts_of(found: dict[str, Any], functions: str) -> dict[str, list[str]]:
    """Return the lines of each mark that replace those of the other package. ``functions`` are made by hand."""
    code = "\n".join(found["code"]).replace('"ratelimit.toml"', f"json.loads({json.dumps(found['settings'])!r})")
    lines = code.splitlines()
    shared = [line for line in lines if " = limit(" in line]
    blueprints = [line for line in lines if line.startswith(("limit(", "exempt("))]
    views: dict[str, list[str]] = {}
    for view in found["views"]:
        views.setdefault(view["view"].rpartition(".")[2], view["decorators"])
    first = next(line for line in lines if line.startswith("from ratelimit_mw."))
    end = ["import json", *functions.splitlines(), *(line for line in lines if line not in (*shared, *blueprints))]
    return {**views, "limiter": [first, *shared], "blueprints": blueprints, "end": end}


def statuses(app: Any, requests: list[str]) -> dict[str, list[int]]:
    """Return the statuses of six times each request, such as "POST /login", with another header each time."""
    send = ask_wsgi if hasattr(app, "test_client") else ask
    split = [(each, *each.split()) for each in requests]
    return {
        each: [send(app, path, method, headers={"X-Visitor": str(n)}).status_code for n in range(6)]
        for each, method, path in split
    }


def check(
    package: str, text: str, before: Mapping[str, list[str]], *requests: str, functions: str = ""
) -> dict[str, Any]:
    """Compare the application before and after, and return the result of the command."""
    name, old = imported(text, before)
    found = migrated(package, name)
    _, new = imported(text, parts_of(found, functions))
    expected = statuses(old, [*requests])
    assert {status for each in expected.values() for status in each} == {200, 429}
    assert statuses(new, [*requests]) == expected
    return found


def flask(text: str, options: str = "", **before: str) -> tuple[str, str, dict[str, list[str]]]:
    parts = {name: lines.splitlines() for name, lines in before.items()}
    return "flask-limiter", FLASK + text, {**parts, "limiter": [FLASK_LIMITER % options, *parts.get("limiter", [])]}


def fastapi(text: str, options: str = "", **before: str) -> tuple[str, str, dict[str, list[str]]]:
    parts = {name: lines.splitlines() for name, lines in before.items()}
    return "slowapi", FASTAPI + text, {**parts, "limiter": [SLOWAPI % options, *parts.get("limiter", [])]}


LOGIN = """
<limiter>
@app.route("/login", methods=["GET", "POST", "DELETE"])
<login>
def login():
    return ""
"""


def test_default_limits_stay_for_the_methods_that_no_limit_names(folder: Path) -> None:
    """With methods=, Flask-Limiter applies the default limits to the other methods."""
    text = flask(LOGIN, ', default_limits=["3/minute"]', login='@limiter.limit("2/minute", methods=["POST"])')
    found = check(*text, "GET /login", "POST /login", "DELETE /login")
    assert found["problems"] == []


IP = """
<limiter>
def ip():
    return request.headers["X-Visitor"]
def getKey():
    return "all"
def weight():
    return 2
@app.get("/visits")
<visits>
def visits():
    return ""
@app.get("/all")
<everyone>
def everyone():
    return ""
@app.post("/login")
<login>
def login():
    return ""
"""


def test_a_function_never_replaces_a_feature_of_the_package(folder: Path) -> None:
    """Names of features are new, are valid, and functions without parameters are called without."""
    text = flask(
        IP,
        visits='@limiter.limit("3/minute", key_func=ip)',
        everyone='@limiter.limit("4/minute", key_func=getKey, cost=weight)',
        login='@limiter.limit("2/minute")',
    )
    found = check(*text, "GET /visits", "GET /all", "POST /login")
    assert found["features"] == {"client_ip": "lambda request: ip()", "getkey": "lambda request: getKey()"}
    assert found["problems"] == []


BLUEPRINTS = """
<limiter>
api = Blueprint("site", __name__)
<blueprints>
@api.get("/a")
def a():
    return ""
@api.get("/b")
<b>
def b():
    return ""
@api.get("/c")
<c>
def c():
    return ""
@api.route("/d", methods=["GET", "POST"])
<d>
def d():
    return ""
app.register_blueprint(api)
"""


def test_limits_of_a_view_replace_those_of_its_blueprint(folder: Path) -> None:
    """An exempt view keeps the limits of its blueprint. The blueprint has its name in the module."""
    text = flask(
        BLUEPRINTS,
        ', default_limits=["3/minute"]',
        blueprints='limiter.limit("2/minute")(api)',
        b='@limiter.limit("4/minute")',
        c="@limiter.exempt",
        d='@limiter.limit("1/minute", methods=["POST"])',
    )
    found = check(*text, "GET /a", "GET /b", "GET /c", "POST /d", "GET /d")
    assert '(exempt("default")(api))' in found["code"][-1]


@pytest.mark.parametrize(
    "of_blueprint",
    ['"1/minute", methods=["POST"]', '"2/minute", override_defaults=False', '"2/minute", per_method=True'],
)
def test_limits_of_a_blueprint_may_leave_the_default_limits(folder: Path, of_blueprint: str) -> None:
    """They stay for other methods, and an exempt view and one with limits of its own have none."""
    text = flask(
        BLUEPRINTS,
        ', default_limits=["3/minute"]',
        blueprints=f"limiter.limit({of_blueprint})(api)",
        b='@limiter.limit("5/minute")',
        c="@limiter.exempt",
        d='@limiter.limit("4/minute", override_defaults=False)',
    )
    check(*text, "GET /a", "GET /b", "GET /c", "GET /d")


NESTED = """
<limiter>
outer = Blueprint("outer", __name__)
inner = Blueprint("inner", __name__)
<blueprints>
@inner.get("/a")
<a>
def a():
    return ""
@outer.get("/b")
def b():
    return ""
outer.register_blueprint(inner)
app.register_blueprint(outer)
"""


@pytest.mark.parametrize("of_view", ["", '@limiter.limit("4/minute")', "@limiter.exempt"])
def test_a_limit_of_a_blueprint_reaches_nested_blueprints(folder: Path, of_view: str) -> None:
    """With one limit, it means the same. Exemptions, and limits of both, are a problem."""
    options = ', default_limits=["3/minute"]'
    found = check(*flask(NESTED, options, blueprints='limiter.limit("2/minute")(outer)', a=of_view), "GET /a", "GET /b")
    assert found["problems"] == []
    for code in ("limiter.exempt(outer)", 'limiter.limit("1/minute")(inner), limiter.limit("2/minute")(outer)'):
        _, text, before = flask(NESTED, options, blueprints=code, a=of_view)
        assert "it is nested" in str(migrated("flask-limiter", imported(text, before)[0])["problems"])


TWICE = """
<limiter>
<login>
def login():
    return ""
app.add_url_rule("/one", "one", login, methods=["GET", "POST"])
app.add_url_rule("/two", "two", login, methods=["GET", "POST"])
"""


def test_a_view_with_two_endpoints_has_two_counts(folder: Path) -> None:
    """Flask-Limiter counts by endpoint, and so do the default limits for the other methods."""
    text = flask(TWICE, ', default_limits=["3/minute"]', login='@limiter.limit("2/minute", methods=["POST"])')
    check(*text, "GET /one", "POST /one", "GET /two", "POST /two")


HELPERS = """
<limiter>
<send>
def send():
    pass
@app.get("/a")
def a():
    send()
    return ""
@app.get("/b")
def b():
    send()
    return ""
class Items(MethodView):
    <get>
    def get(self):
        return ""
    <post>
    def post(self):
        return ""
    <put>
    def put(self):
        return ""
app.add_url_rule("/items", view_func=Items.as_view("items"))
app.add_url_rule("/more", view_func=Items.as_view("more"))
"""


def test_limits_of_functions_and_of_methods_count_by_endpoint(folder: Path) -> None:
    """A helper is no view, and has its place. An exempt method is none in Flask-Limiter."""
    text = flask(
        HELPERS,
        ', default_limits=["5/minute"]',
        send='@limiter.limit("2/minute")',
        get='@limiter.limit("3/minute")',
        post='@limiter.limit("2/minute")',
        put="@limiter.exempt",
    )
    found = check(*text, "GET /a", "GET /b", "GET /items", "POST /items", "GET /more")
    (helper,) = (view for view in found["views"] if view["view"] == "send")
    assert (helper["place"].partition(":")[2], "unrouted=True" in str(helper)) == ("9", True)
    assert "Items.put" not in [view["view"] for view in found["views"]]
    assert "exempt has no effect" in str(found["notes"])


SHARED = """
<limiter>
auth = Blueprint("auth", __name__)
@app.get("/a")
<a>
def a():
    return ""
@app.get("/b")
<b>
def b():
    return ""
@app.get("/c")
<c>
def c():
    return ""
@app.get("/d")
<d>
def d():
    return ""
"""


def test_shared_limits_that_differ_are_two_objects_with_valid_names(folder: Path) -> None:
    """One scope with two amounts has two counts. A name that the module has already stays what it is."""
    text = flask(
        SHARED,
        a='@limiter.shared_limit("3/minute", scope="auth")',
        b='@limiter.shared_limit("1/minute", scope="auth")',
        c='@limiter.shared_limit("4/minute", scope="class")',
        d='@limiter.shared_limit("4/minute", scope="class")',
    )
    found = check(*text, "GET /a", "GET /b", "GET /c", "GET /d")
    assert [line.partition(" = ")[0] for line in found["code"][-3:]] == ["auth_2", "auth_2_2", "limit_class"]
    assert found["problems"] == []


def test_what_shares_a_count_there_and_not_here_is_a_problem(folder: Path) -> None:
    """Two limits of one scope with one amount, and a function that returns the scope."""
    _, text, before = flask(
        SHARED,
        a='@limiter.shared_limit("9/minute", scope="auth")',
        b='@limiter.shared_limit("9/minute", scope="auth", cost=5)',
        c='@limiter.shared_limit("4/minute", scope=lambda endpoint: request.host)',
    )
    problems = migrated("flask-limiter", imported(text, before)[0])["problems"]
    assert "'auth' has 9/minute in two limits that differ, which shared one count" in problems[0]
    assert "the function lambda returns the scope, which is left out" in problems[1]


ITEMS = """
<limiter>
def who():
    return "all"
def office():
    return False
def plan(key):
    return "3/minute" if key == "0" else "1/minute"
def visitor(request: Request):
    return request.headers["x-visitor"]
def weight(request):
    return 2
@app.get("/items/{number}")
<items>
async def items(request: Request, number: int):
    return number
@app.get("/who")
<who_view>
async def who_view(request: Request):
    return 1
@app.get("/office")
<office_view>
async def office_view(request: Request):
    return 1
@app.get("/plan")
<plan_view>
async def plan_view(request: Request):
    return 1
@app.get("/weight")
<weight_view>
def weight_view(request: Request):
    return 1
"""


def test_the_key_style_url_counts_by_path(folder: Path) -> None:
    """Each decorator counts by path, and functions are called with the request where they take it."""
    text = fastapi(
        ITEMS,
        items='@limiter.limit("2/minute")',
        who_view='@limiter.limit("2/minute", key_func=who)',
        office_view='@limiter.limit("2/minute", exempt_when=office)',
        plan_view="@limiter.limit(plan, key_func=visitor)",
        weight_view='@limiter.limit("4/minute", cost=weight)',
    )
    found = check(
        *text, *(f"GET /items/{number}" for number in range(3)), "GET /who", "GET /office", "GET /weight", "GET /plan"
    )
    assert found["problems"] == []


MIDDLEWARE = """
<limiter>
def plan(key):
    return "4/minute"
def who(request: Request):
    return "all"
<middleware>
@app.get("/a")
<a>
async def a(request: Request):
    return 1
@app.get("/b")
<b>
async def b(request: Request):
    return 1
@app.get("/c")
async def c(request: Request):
    return 1
"""


def test_the_middleware_of_slowapi_adds_default_limits_to_computed_ones(folder: Path) -> None:
    """A view whose limits are functions keeps the default limits, and one with a text does not."""
    text = fastapi(
        MIDDLEWARE,
        ', default_limits=["3/minute"], key_style="endpoint"',
        middleware="app.add_middleware(SlowAPIMiddleware)",
        a="@limiter.limit(plan, key_func=who)",
        b='@limiter.limit("5/minute")',
    )
    check(*text, "GET /a", "GET /b", "GET /c")


NAMESAKES = """
<limiter>
@app.get("/home")
<home>
async def homepage(request: Request):
    return 1
@app.get("/mars")
<home>
async def homepage(request: Request):
    return 1
"""


def test_functions_with_one_name_have_their_decorators_each(folder: Path) -> None:
    """The example in the README of slowapi. It counts both limits for both, so this is a problem."""
    _, text, before = fastapi(NAMESAKES, ', default_limits=["9/minute"]', home='@limiter.limit("2/minute")')
    found = migrated("slowapi", imported(text, before)[0])
    decorators = ['@exempt("default")', '@limit("2/minute", key=["path", "ip"], algorithm="sliding-window-log")']
    assert [view["decorators"] for view in found["views"]] == [decorators] * 2
    assert "2 functions are" in found["problems"][0]
    assert "without SlowAPIMiddleware" in str(found["notes"])


ODD = """
<limiter>
def by(name, request: Request):
    return request.headers.get(name, "none")
class Key:
    def __call__(self, request: Request):
        return request.headers.get("x-a", "none")
    def method(self, request: Request):
        return request.headers.get("x-visitor")
key = Key()
def make(name):
    def inner(request: Request):
        return request.headers.get(name, "none")
    return inner
@app.get("/a")
<a>
def a(request: Request):
    return 1
@app.get("/b")
<b>
def b(request: Request):
    return 1
@app.get("/c")
<c>
def c(request: Request):
    return 1
@app.get("/d")
<d>
def d(request: Request):
    return 1
@app.get("/e")
<e>
def e(request: Request):
    return 1
"""


def test_functions_without_a_name_get_one_each(folder: Path) -> None:
    """A problem names the function and its place. With these names, the printed code works."""
    text = fastapi(
        ODD,
        ', key_style="endpoint", in_memory_fallback_enabled=True, swallow_errors=True',
        a='@limiter.limit("2/minute", key_func=partial(by, "x-visitor"))',
        b='@limiter.limit("2/minute", key_func=key)',
        c='@limiter.limit("2/minute", key_func=key.method)',
        d='@limiter.limit("2/minute", key_func=make("x-visitor"))',
        e='@limiter.limit("2/minute", key_func=make("x-e"))',
    )
    names = [
        'by_2 = partial(by, "x-visitor")',
        "method = key.method",
        'inner = make("x-visitor")',
        'inner_2 = make("x-e")',
    ]
    found = check(*text, *(f"GET /{view}" for view in "abcde"), functions="\n".join(names))
    assert [text.rpartition("Assign it to ")[2] for text in found["problems"]] == [
        f"{name.partition(' ')[0]} in its module" for name in names
    ]
    assert found["settings"]["on_store_error"] == "local"
