"""``migrate``: the printed settings, code and decorators decide as the application did before.

Each application is one text, with marks for the limiter, for the blueprints and for the decorators of each view. It
runs twice: with those of the other package, and with those that the command prints.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from migrated import check, flask, imported, migrated

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
