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
from ratelimit_mw.cli.migrate.calls import CALLS
from ratelimit_mw.flask import exempt, limit

EXAMPLES = ROOT / "examples" / "migrating"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


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
        "the limiter: meta_limits: there is no replacement",
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


HARD_DJANGO = """
import sys
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django_ratelimit.core import is_ratelimited
from django_ratelimit.decorators import ratelimit

settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="x",
    RATELIMIT_FAIL_OPEN=True, RATELIMIT_IPV6_MASK=48, RATELIMIT_USE_CACHE="shared",
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework"],
    CACHES={"default": {}, "shared": {"BACKEND": "x.RedisCache", "LOCATION": ["redis://:secret@127.0.0.1:6379/1"]}},
)

from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView

def who(group, request):
    return "ann"

@method_decorator(ratelimit(key="ip", rate="5/h", method="POST", block=False), name="post")
class Lead(APIView):
    def post(self, request):
        return Response(status=429 if getattr(request, "limited", False) else 200)

@api_view(["POST"])
@ratelimit(key="hard_django.who", rate="5/h", block=True)
def nurse(request):
    return Response({})

@ratelimit(key="header:x_api_key", rate=None)
@ratelimit(key="ip", rate=(10, 60), method=ratelimit.UNSAFE)
def gateway(request):
    limited = is_ratelimited(request, group="chat", key="user", rate="30/m", method="POST", increment=True)
    return HttpResponse("")

class Login(View):
    pass

sys.modules["hard_django"] = sys.modules[__name__]
login = ratelimit(key="post:username", rate="project.rates.of")(Login.as_view())
urlpatterns = [path("", include([path("lead", Lead.as_view())])), path("nurse", nurse), path("g", gateway)]
urlpatterns += [path("login", login)]
application = get_wsgi_application()
"""


def test_decorators_of_django_are_found_behind_others(folder: Path) -> None:
    """Decorators of methods, of REST framework and of URLs, and calls inside views, are found."""
    (folder / "hard_django.py").write_text(HARD_DJANGO)
    result = start("migrate", "django-ratelimit", "hard_django:application", "--json", cwd=folder)
    found = json.loads(result.stdout)
    assert (result.returncode, "secret" in result.stdout + result.stderr) == (1, False)
    assert found["settings"] == {
        "store": "${RATELIMIT_STORE_URL}",
        "on_store_error": "allow",
        "ipv6_prefix": 48,
        "rules": [{"name": "chat", "limits": "30/minute", "key": ["user"], "match": {"view": "", "methods": ["POST"]}}],
    }
    assert {view["view"]: view["decorators"] for view in found["views"]} == {
        "Lead.post": ['@limit("5/hour", match={"methods": "POST"}, mode="shadow")'],
        "nurse": ['@limit("5/hour", key="who")'],
        "gateway": ['@limit("10/minute", match={"methods": ["DELETE", "PATCH", "POST", "PUT"]})'],
        "Login": ['@limit("project.rates.of", key="post:username")'],
    }
    assert found["features"] == {"who": "lambda request: who(None, request)"}
    problems = "\n".join(found["problems"])
    for text in ("is_ratelimited: name a rule", "request.limited: write any(", "project.rates.of returns the rate"):
        assert text in problems


DJANGO_NAMES = """
from django.conf import settings
from django.contrib import admin
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from django_ratelimit import core
from django_ratelimit.core import is_ratelimited as limited
from django_ratelimit.decorators import ratelimit

LOCATION = ["127.0.0.1:11211", "127.0.0.1:11212"]
settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="x", RATELIMIT_ENABLE=False, INSTALLED_APPS=["django.contrib.auth",
    "django.contrib.contenttypes", "django.contrib.admin", "django.contrib.messages"],
    CACHES={"default": {"BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache", "LOCATION": LOCATION}},
)

def check(request):
    who = "user"
    core.is_ratelimited(request, "mails", None, "ip", "2/m", ["POST"])
    limited(request, group="words", key=who, rate="2/m", increment=True)
    limited(request, group="mails", key="ip", rate="9/m"), limited(request, group="same", key="ip", rate="4/m")
    return HttpResponse("")

@ratelimit(key="user", rate="5/month")
def first(request):
    return HttpResponse("")

@ratelimit(group="same", key="ip", rate="4/m")
def second(request):
    return HttpResponse("")

@ratelimit(group="same", key="ip", rate="9/m")
def third(request):
    return HttpResponse("")

application = get_wsgi_application()
admin.site.login = ratelimit(key="ip", rate="3/m")(admin.site.login)
urlpatterns = [path("a", first), path("b", second), path("c", third), path("d", check), path("e", admin.site.login)]
"""


def test_names_of_django_are_followed(folder: Path) -> None:
    """Other names of the functions, a group with two rates, and values that another file or an expression has."""
    (folder / "names_django.py").write_text(DJANGO_NAMES)
    result = start("migrate", "django-ratelimit", "names_django:application", "--json", cwd=folder)
    found = json.loads(result.stdout)
    assert found["settings"] == {
        "store": "memcached://127.0.0.1:11211,127.0.0.1:11212",
        "enabled": False,
        "rules": [{"name": "mails", "limits": "2/minute", "match": {"view": "", "methods": ["POST"]}}],
    }
    assert found["code"][-2:] == ['same = limit("4/minute", name="same")', 'same_2 = limit("9/minute", name="same-2")']
    assert {view["view"]: view["decorators"] for view in found["views"]} == {
        "first": ['@limit("5/minute", key="user")'],
        "second": ["@same"],
        "third": ["@same_2"],
        "AdminSite.login": ['@limit("3/minute")'],
    }
    shared = found["problems"].pop(3)
    assert shared.startswith(
        "names_django.py:22: is_ratelimited: the decorator with the group 'same' has the same count"
    )
    assert [text.replace("names_django.py", "") for text in found["problems"]] == [
        "AdminSite.login: its code is not in this folder. Write the decorators where you add it",
        ":21: is_ratelimited: write its rule by hand: key is computed",
        ":22: is_ratelimited: another call of 'mails' differs. Write two rules",
        *(f":{line}: is_ratelimited: {CALLS['django-ratelimit']['is_ratelimited']}" for line in (21, 20, 22)),
    ]
    assert "first: user: requests" in str(found["notes"]).replace("names_django.py:25", "first")


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
