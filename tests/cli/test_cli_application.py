"""``--app`` of the commands: an application as servers import it, with its routes, decorators and mistakes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import run, start
from django.urls import path as django_path
from django_calls import hello, project
from tables import each

from ratelimit_mw.django import limit

SHOP = """
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute

from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware, exempt, limit, messages

print("imported")
SETTINGS = {"rules": [{"name": "site", "limits": "100/minute"}, {"name": "big", "limits": "9/day", "cost": 5}]}

inner = APIRouter(prefix="/inner")
outer = APIRouter(prefix="/outer", dependencies=[Depends(RateLimit("50/minute", name="outer"))])


@inner.get("/items/{number}")
@limit("5/minute", name="item", key=["path:number"])
async def item(number: int):
    return number


@inner.post("/made", dependencies=[Depends(RateLimit("3/minute", key=["user"], name="made"))])
async def made():
    return "made"


outer.include_router(inner)
app = FastAPI()
app.add_middleware(RateLimitMiddleware, settings=SETTINGS)
app.include_router(outer, prefix="/v1")


@limit("10/minute", name="hello")
async def hello(request):
    return PlainTextResponse("hello")


@messages("9/second", name="chat")
async def chat(socket):
    await socket.accept()


routes = [Route("/hello", hello), WebSocketRoute("/chat", chat)]
wrapped = RateLimitMiddleware(Starlette(routes=[Mount("/below", routes=routes)]), settings=SETTINGS)
around = RateLimitMiddleware(lambda scope, receive, send: None, settings=SETTINGS)
login = {"name": "login", "limits": "5/minute", "match": {"view": "below:hello"}}
only_checked = {"name": "checked", "limits": "5/minute", "match": {"view": ""}}
named = RateLimitMiddleware(
    Starlette(routes=[Mount("/below", routes=routes, name="below")]), settings={"rules": [login, only_checked]}
)
bare = FastAPI()
wrong = FastAPI()
wrong.add_middleware(RateLimitMiddleware, settings={"rules": [{"limits": "5/minit"}]})
typo = Starlette(
    routes=[Route("/", exempt("sight")(lambda request: None))],
    middleware=[Middleware(RateLimitMiddleware, settings=SETTINGS)],
)
late = Starlette(
    lifespan=lambda app: None,
    routes=[Route("/", lambda request: None)],
    middleware=[Middleware(RateLimitMiddleware, settings={"rules": [{"limits": "1/s", "match": {"path": "/late"}}]})],
)
placed = Starlette(
    routes=[Route("/", lambda request: None)], middleware=[Middleware(RateLimitMiddleware, settings="placed.toml")]
)


class Factory:
    app = app

    def create():
        return app
"""
FLASK = """
from flask import Flask
from flask.views import MethodView
from ratelimit_mw.flask import RateLimiter, exempt, limit
from ratelimit_mw.wsgi import RateLimitMiddleware
from werkzeug.routing import Map, Rule

app = Flask(__name__)
RateLimiter(app, {"rules": [{"name": "site", "limits": "100/minute"}]})
app.get("/items/<int:number>", endpoint="item")(limit("5/minute", name="item", key="path:number")(lambda number: ""))
found = Flask("found")
RateLimiter(found, {})
found.get("/orders")(limit(lambda ip: "5/minute", name="orders", key="ip")(lambda: ""))
class Note(MethodView):
    decorators = [limit("5/minute", name="notes")]
    get, put = exempt(lambda self: ""), exempt("notes")(lambda self: "")
    post = limit("3/minute", name="added")(lambda self: "")
by_method = Flask("by_method")
RateLimiter(by_method, {})
by_method.add_url_rule("/notes", view_func=Note.as_view("notes"))
bare = Flask("bare")
hosted = Flask("hosted", subdomain_matching=True)
hosted.config["SERVER_NAME"] = "example.com"
RateLimiter(hosted, {})
hosted.add_url_rule("/", "home", lambda: "")
hosted.add_url_rule("/", "shop", limit("5/minute", name="shop")(lambda tenant: ""), subdomain="<tenant>")
@limit("3/minute", name="note", key="path:note")
def note(request, note):
    return ""
urls = Map([Rule("/notes/<int:note>", endpoint=note), Rule("/health", endpoint="health")])
by_map = RateLimitMiddleware(lambda environ, start: [], {"rules": []}, url_map=urls)
urls.add(Rule("/late", endpoint=limit("3/minute", name="late")(lambda request: "")))
around = RateLimitMiddleware(app, {"rules": [{"name": "outer", "limits": "100/minute"}]}, before_user=True)
plain = Flask("plain")
plain.wsgi_app = RateLimitMiddleware(plain.wsgi_app, settings={"rules": [{"name": "all", "limits": "5/minute"}]})
"""


KEYS = {"site": "{ip=unknown}", "item": "{path:number=7}"}
"""The keys of the rules of a request for /items/7."""


@pytest.fixture(autouse=True)
def shop(folder: Path) -> None:
    """The modules ``shop``, ``flasks`` and ``broken`` in the current folder."""
    for name, code in (("shop", SHOP), ("flasks", FLASK), ("broken", "import nowhere_to_be_found\n")):
        (folder / f"{name}.py").write_text(code)
        sys.modules.pop(name, None)
    (folder / "placed.toml").write_text('[[rules]]\nname = "home"\nlimits = "1/s"\nmatch = { path = "/home" }\n')


def explained(*words: str) -> dict[str, Any]:
    result = run("explain", "--app", *words, "--json")
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def looking(answer: dict[str, Any]) -> list[str]:
    return [rule["rule"] for rule in answer["rules"] if rule["applies"]]


def test_explain_knows_routes_and_parameters() -> None:
    """The route and its path parameters are features."""
    answer = explained("shop:app", "GET", "/v1/outer/inner/items/7", "--feature", "ip=192.0.2.7")
    assert answer["features"]["endpoint"] == "/v1/outer/inner/items/{number}"
    assert answer["features"]["path:number"] == "7"
    assert looking(answer) == ["site", "big", "outer", "item"]
    assert {rule["rule"]: rule.get("key") for rule in answer["rules"]}["item"] == "{path:number=7}"
    assert [rule["reason"] for rule in answer["rules"] if not rule["applies"]] == ["it is on /v1/outer/inner/made"]
    for path, endpoint in (
        ("/v1/outer/inner/items/7", "/v1/outer/inner/items/{number}"),
        ("/nowhere", "unmatched"),
    ):
        shown = run("explain", "--app", "shop:app", "GET", path).stdout
        assert f"GET {path} is routed to {endpoint}" in shown.splitlines()


def test_explain_and_check_show_names_of_views() -> None:
    """A rule may name a view, which explain finds in the routes. Without the application, views are not known."""
    answer = explained("shop:named", "GET", "/below/hello")
    assert (answer["features"]["view"], looking(answer)) == ("below:hello", ["login", "hello"])
    other = explained("shop:named", "GET", "/elsewhere")
    assert other["rules"][0]["reason"] == "view: without a name, not below:hello"
    assert other["rules"][1]["reason"] == "view: without a name, not ''"
    rows = run("check", "--app", "shop:named").stdout
    assert "view below:hello" in rows
    assert "view ''" in rows
    Path("rules.toml").write_text('[[rules]]\nname = "login"\nlimits = "1/s"\nmatch = {view = "below:hello"}\n')
    assert "view: unknown, not below:hello" in run("explain", "rules.toml", "GET", "/below/hello").stdout


def test_explain_reads_an_ambiguous_path_in_every_way() -> None:
    """PATH is as the client sends it, so an encoded slash is shown to the rules."""
    Path("rules.toml").write_text('[[rules]]\nname = "file"\nlimits = "1/s"\nmatch = {path = "/files/*"}\n')
    for path, code in (("/files/a%2Fb", 0), ("/files/a/b", 1), ("/x/..%2Ffiles/a", 0)):
        assert run("explain", "rules.toml", "GET", path, "--feature", "ip=192.0.2.7").exit_code == code


def test_explain_includes_dependencies() -> None:
    """A dependency applies with the key of ``--feature user=...``."""
    answer = explained("shop:app", "POST", "/v1/outer/inner/made", "--feature", "user=ann")
    assert looking(answer) == ["site", "big", "outer", "made"]
    unknown = explained("shop:app", "POST", "/v1/outer/inner/made")
    assert [rule["reason"] for rule in unknown["rules"] if rule["rule"] == "made"] == ["key: user is missing"]


def test_a_middleware_around_an_application() -> None:
    """The routes of the wrapped application are found, with mounts. A WebSocket is known by its handshake, a GET."""
    answer = explained("shop:wrapped", "GET", "/below/hello")
    assert (answer["features"]["endpoint"], looking(answer)) == ("/below/hello", ["site", "big", "hello"])
    chat = answer["rules"][-1]
    assert (chat["rule"], chat["reason"]) == ("chat", "it is on /below/chat")
    assert "chat   @messages" in run("check", "--app", "shop:wrapped").stdout
    answer = explained("shop:wrapped", "GET", "/below/chat")
    assert (answer["features"]["endpoint"], looking(answer)) == ("/below/chat", ["site", "big"])
    why = {rule["rule"]: rule.get("reason") for rule in answer["rules"]}
    assert why["chat"] == "it limits the messages of the WebSocket"
    assert explained("shop:wrapped", "POST", "/below/chat")["features"]["endpoint"] == "unmatched"


def test_an_application_without_routes() -> None:
    """Any ASGI or WSGI application has the rules of its settings, and no endpoint."""
    for name in ("shop:around", "flasks:plain"):
        answer = explained(name, "GET", "/x")
        assert "endpoint" not in answer["features"]
        assert looking(answer)


def test_an_application_of_flask() -> None:
    """The rules of the extension and of decorators are shown, with the route of the request."""
    answer = explained("flasks:app", "GET", "/items/7")
    assert (answer["features"]["endpoint"], answer["features"]["view"]) == ("/items/{number}", "item")
    assert {rule["rule"]: rule["key"] for rule in answer["rules"]} == KEYS
    for name in ("flasks:app", "flasks:around"):  # the middleware around it is before the user
        assert "item  @limit    /items/{number}" in run("check", "--app", name).stdout
    # The route may depend on the host, which is by default the server itself. Functions of limits are not called.
    for words, view in ((["--feature", "host=a.example.com"], "shop"), ([], "home")):
        assert explained("flasks:hosted", "GET", "/", *words)["features"]["view"] == view
    (orders,) = explained("flasks:found", "GET", "/orders", "--feature", "ip=192.0.2.7")["rules"]
    assert orders["limits"] == [{"limit": "flasks.<lambda>()", "policy": "orders", "cost": 1}]


def test_an_application_of_werkzeug() -> None:
    """The routes of the URL map are found."""
    answer = explained("flasks:by_map", "GET", "/notes/7")
    assert (answer["features"]["endpoint"], answer["features"]["view"]) == ("/notes/{note}", "note")
    assert {rule["rule"]: rule.get("key") for rule in answer["rules"]} == {"note": "{path:note=7}", "late": None}
    assert explained("flasks:by_map", "GET", "/nowhere")["features"]["endpoint"] == "unmatched"
    shown = run("check", "--app", "flasks:by_map").stdout
    assert "note  @limit  /notes/{note}" in shown
    assert "late  @limit  /late" in shown


def test_an_application_of_django() -> None:
    """The rules of the settings and of decorators are shown, of a WSGI and of an ASGI application."""
    routes = django_path("items/<int:number>", limit("5/minute", name="item", key="path:number")(hello))
    with project({"rules": [{"name": "site", "limits": "100/minute"}]}, routes):
        for name in ("wsgi:get_wsgi_application()", "asgi:get_asgi_application()"):
            answer = explained(f"django.core.{name}", "GET", "/items/7")
            assert {rule["rule"]: rule["key"] for rule in answer["rules"]} == KEYS
            assert "item  @limit    /items/{number}" in run("check", "--app", f"django.core.{name}").stdout
    with project({}, middleware=["django.middleware.common.CommonMiddleware"]):
        result = run("check", "--app", "django.core.wsgi:get_wsgi_application()")
    assert (result.exit_code, "has no RateLimitMiddleware" in result.stderr) == (1, True)


def test_a_name_may_have_dots() -> None:
    """An attribute of an attribute, or a function that returns the application."""
    run("check", "--app", "shop:app")  # the first import alone makes the limits of the other applications
    for name in ("shop:Factory.app", "shop:Factory.create()"):
        assert run("check", "--app", name).stdout == run("check", "--app", "shop:app").stdout.replace("shop:app", name)


def test_the_json_has_the_source_and_routes_of_each_rule() -> None:
    """The source and the routes of each rule are in the JSON. Other applications of the module have other routes."""
    result = run("check", "--app", "shop:app", "--json")
    answer = json.loads(result.stdout)
    assert {rule["name"]: (rule["source"], rule["applies_to"]) for rule in answer["rules"]} == {
        "site": ("settings", ["all"]),
        "big": ("settings", ["all"]),
        "outer": ("@limit", ["/v1/outer/inner/items/{number}, /v1/outer/inner/made"]),
        "item": ("@limit", ["/v1/outer/inner/items/{number}"]),
        "made": ("@limit", ["/v1/outer/inner/made"]),
    }
    assert (answer["exempt"], answer["required_features"]) == ([], {})
    assert (answer["problems"], result.exit_code) == ([], 0)
    answer = json.loads(run("check", "--app", "flasks:by_method", "--json").stdout)  # a view for each method
    found = {rule["name"]: rule["applies_to"] for rule in answer["rules"]}
    assert found == {"notes": ["OPTIONS/POST /notes"], "added": ["POST /notes"]}
    assert answer["exempt"][1:] == ["GET/HEAD /notes from every rule", "PUT /notes from notes"]


def test_a_limit_that_no_route_reaches_is_noted(folder: Path) -> None:
    """A function inside the limited one is the view. A limit that other views have is not noted, nor one of a class."""
    (folder / "hidden.py").write_text(
        "from flask import Flask\n"
        "from ratelimit_mw.flask import RateLimiter, limit\n"
        "app, shared = Flask('app'), limit('4/minute')\n"
        "RateLimiter(app, {})\n"
        "def route(view):\n"
        "    app.add_url_rule('/', view_func=lambda: view())\n"
        "    return view\n"
        "@limit('3/minute')\n"
        "@route\n"
        "def below(): ...\n"
        "@shared\n"
        "def unused(): ...\n"
        "app.add_url_rule('/used', 'used', shared(lambda: ''))\n"
        "@limit('5/minute')\n"
        "class Pages:\n"
        "    def page(self): ...\n"
        "app.add_url_rule('/page', 'page', Pages().page)\n"
    )
    notes = json.loads(run("check", "--app", "hidden:app", "--json").stdout)["notes"]
    problem = "the limit on hidden.below applies to no route of this application"
    assert [note for note in notes if "hidden" in note] == [f"@limit at {folder / 'hidden.py'}:8: {problem}"]


@pytest.mark.slow
def test_output_of_an_application_goes_to_stderr() -> None:
    """Otherwise the JSON on stdout would be invalid."""
    done = start("explain", "--app", "shop:app", "GET", "/", "--json")
    assert json.loads(done.stdout)
    assert "imported" in done.stderr


@each(
    ("words", "code", "said"),
    [
        (["shop:wrong"], 1, "rules[0]: limits: cannot parse quota '5/minit'"),
        (["shop:typo"], 1, "unknown rule 'sight'. Did you mean 'site'?"),
        (["shop:late"], 1, "set unrouted = true in the rule"),
        (["shop:placed"], 1, 'placed.toml:4: rules[0] "home": match.path: no route has the path'),
        (["shop:bare"], 1, "shop:bare has no RateLimitMiddleware"),
        (["shop:Factory.create"], 1, "returns the application, write shop:Factory.create()"),
        (["flasks:bare.test_client()"], 1, "has no RateLimitMiddleware, and no RateLimiter"),
        (["flasks:bare"], 1, "flasks:bare has no RateLimitMiddleware, and no RateLimiter"),
        (["nowhere:app"], 2, "no module 'nowhere' in the current folder"),
        (["shop:appl"], 2, "module 'shop' has no 'appl'"),
        (["shop"], 2, "expected MODULE:APP, for example shop:app; got 'shop'"),
        *(([name], 2, "expected MODULE:APP") for name in ("", ".shop:app")),
        (["shop:app", "shop.toml"], 2, "unexpected extra argument"),
    ],
)
def test_the_exit_code_tells_whose_mistake_it_is(words: list[str], code: int, said: str) -> None:
    """The exit code is 1 for a mistake of the application and 2 for a mistake of the command."""
    result = run("check", "--app", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in " ".join(result.stderr.split())


def test_exception_in_a_module_is_not_hidden() -> None:
    """An exception of the imported module is raised with its traceback."""
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        run("check", "--app", "broken:app")
