"""The management command of the Django application."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client
from django.urls import include, path, re_path
from django.utils.translation import override
from django.views import View
from django_calls import MIDDLEWARE, hello, project, still, urls
from tables import each

from ratelimit_mw.django import exempt, limit

OTHERS = ["django.middleware.common.CommonMiddleware"]


class Items(View):
    def get(self, request: Any) -> HttpResponse:
        return HttpResponse()

    @limit("3/minute", name="post")
    def post(self, request: Any) -> HttpResponse:
        return HttpResponse()


def shop() -> Any:
    """Open a project with limits and routes."""
    rules = [
        {"name": "everyone", "limits": "100/minute", "key": ["user|ip"]},
        {
            "name": "login",
            "limits": ["5/minute", "20/hour"],
            "match": {"path": "/login", "methods": "POST"},
            "unrouted": True,
        },
        {"overrides": "home", "limits": "7/minute"},
    ]
    inner = urls(path("<int:pk>/", Items.as_view()), re_path(r"^health/$", exempt(hello)))
    return project(
        still({"rules": rules}), path("", limit("5/minute", name="home")(hello)), path("items/", include(inner))
    )


def run(*words: str) -> list[str]:
    out = io.StringIO()
    call_command("ratelimit", *words, stdout=out)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_a_client_is_found_and_unlocked(tmp_path: Path) -> None:
    """manage.py ratelimit inspect shows the values that unlock the client."""
    settings = {"store": f"lmdb://{tmp_path}/db", "store_timeout": "10s", "rejection_cache": 0}
    with project(still(settings), path("", limit("1/hour", name="home", key=["ip"])(hello))):
        assert [Client().get("/").status_code for _ in range(2)] == [200, 429]
        assert any(line.startswith("home ip=127.0.0.1") for line in run("inspect", "--rejected"))
        assert "home ip=127.0.0.1 1/hour 1 of 1" in run("reset", "home", "ip=127.0.0.1")[3]
        assert Client().get("/").status_code == 200
        with pytest.raises(CommandError, match=r"has no counts of ip=192\.0\.2\.7"):
            run("reset", "home", "ip=192.0.2.7")
        assert any("store: lmdb://" in line for line in run("check", "--connect"))


@each("command", ["check", "rules"])
def test_the_rules_are_listed_with_their_routes(command: str) -> None:
    """manage.py ratelimit check shows the source, place and key of each rule, and the exempt views."""
    with shop():
        lines = run(command)
    for line in (
        "rule source applies to key limits algorithm mode cost",
        "everyone settings all user|ip 100/minute sliding-window enforce 1",
        "login settings POST /login ip 5/minute sliding-window enforce 1",
        "20/hour unrouted = true",
        "post @limit POST /items/{pk}/ ip 3/minute sliding-window enforce 1",
        "home @limit and settings / ip 7/minute sliding-window enforce 1",
        "exempt: /items/health/ from every rule",
    ):
        assert line in lines


def explained(*words: str) -> dict[str, str]:
    """Explain a request as JSON: the key of each rule that applies, or the reason why it does not apply."""
    result = json.loads("\n".join(run("explain", *words, "--json")))
    rules = {rule["rule"]: rule["key"] if rule["applies"] else rule["reason"] for rule in result["rules"]}
    return {"endpoint": result["features"]["endpoint"], **rules}


def test_a_request_is_explained() -> None:
    """manage.py ratelimit explain shows the key of each rule that applies, and why each other rule does not."""
    with shop():
        assert explained("get", "/items/7/", "--feature", "user=ann") == {
            "endpoint": "/items/{pk}/",
            "everyone": "{user=ann}",
            "login": "path: not /login",
            "post": "it is on POST /items/{pk}/",
            "home": "it is on /",
        }
        assert explained("POST", "/login")["endpoint"] == "unmatched"
        assert explained("POST", "/items/7/")["post"] == "{ip=unknown}"


def test_a_translated_route_is_explained() -> None:
    """The language prefix of the path counts, for any active language."""
    routes = i18n_patterns(path("items/<int:pk>/", limit("5/minute", name="item")(hello)))
    with project({}, *routes, LANGUAGES=[("en", ""), ("de", "")], LANGUAGE_CODE="en"), override("fr"):
        assert run("explain", "GET", "/de/items/7/")[0] == "GET /de/items/7/ is routed to /{language}/items/{pk}/"


@each(
    ("words", "match", "code"),
    [
        (["explain", "GET", "/items/health/"], "no rule limits this request", 1),
        (["explain", "GET"], "Missing argument 'PATH'", 2),
        (["chek"], "No such command 'chek'", 2),
    ],
)
def test_errors_of_the_command_have_a_message(words: list[str], match: str, code: int) -> None:
    """The exit code is 1 for an unlimited request, and 2 for a command that is misused."""
    with shop(), pytest.raises(CommandError, match=match) as raised:
        run(*words)
    assert raised.value.returncode == code


def test_invalid_settings_end_the_command_with_a_message() -> None:
    """With --json the message is on stdout, too."""
    out = io.StringIO()
    with project({"rules": [{"limits": "5/minit"}]}), pytest.raises(CommandError, match="minit"):
        call_command("ratelimit", "check", "--json", stdout=out)
    assert "minit" in json.loads(out.getvalue())["error"]


def test_the_command_shows_the_system_checks() -> None:
    """An error is a problem, and so is a warning about limits without an effect."""
    out = io.StringIO()
    with (
        project({"rules": [{"name": "everyone", "limits": "100/minute"}]}, middleware=OTHERS),
        pytest.raises(CommandError, match="see the problems above"),
    ):
        call_command("ratelimit", "check", stdout=out)
    assert "problem: MIDDLEWARE does not list RateLimitMiddleware" in out.getvalue()
    routes = path("", limit("5/minute", name="home")(hello))
    out = io.StringIO()
    with project({}, routes, middleware=OTHERS), pytest.raises(CommandError, match="see the problems above"):
        call_command("ratelimit", "check", stdout=out)
    assert "problem: Decorators limit views, but MIDDLEWARE does not list" in " ".join(out.getvalue().split())


@each(("key", "word"), [("user", "problem"), ("user|ip", "note")])
def test_a_rule_of_an_unknown_user(key: str, word: str) -> None:
    """Before the authentication, a rule by user never applies, and one by "user|ip" counts by IP address."""
    out = io.StringIO()
    with project({"rules": [{"name": "everyone", "key": [key], "limits": "100/minute"}]}, middleware=MIDDLEWARE):
        if word == "problem":
            with pytest.raises(CommandError, match="see the problems above"):
                call_command("ratelimit", "check", stdout=out)
        else:
            call_command("ratelimit", "check", stdout=out)
            with pytest.raises(CommandError, match="see the"):
                call_command("ratelimit", "check", "--strict", stdout=io.StringIO())
    assert f"{word}: A rule counts by user, but RateLimitMiddleware runs before" in " ".join(out.getvalue().split())


def test_the_command_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without click the command prints how to install it, with exit code 2."""
    monkeypatch.setitem(sys.modules, "click", None)
    with shop(), pytest.raises(CommandError, match=r"pip install \"ratelimit-mw\[cli\]") as raised:
        run("check")
    assert raised.value.returncode == 2


PROJECT = """
import sys
from django.core.management import execute_from_command_line
from ratelimit_mw.django import limit
SECRET_KEY = "for this test only"
ROOT_URLCONF = __name__
MIDDLEWARE = ["ratelimit_mw.django.RateLimitMiddleware"]
INSTALLED_APPS = ["ratelimit_mw.django"]
RATELIMIT_MW = {"rules": [{"name": "everyone", "limits": "100/minute"}]}
urlpatterns = []
"""


@pytest.mark.slow
@each(
    "words",
    [
        ["ratelimit", "--settings=shop_settings", "check"],
        ["ratelimit", "check", "--settings", "shop_settings"],
        ["help", "ratelimit", "--settings=shop_settings"],
    ],
)
def test_the_settings_may_have_any_place(words: list[str], tmp_path: Path) -> None:
    """``--settings`` may come before and after the name of the command, and ``help`` shows the commands."""
    (tmp_path / "shop_settings.py").write_text(PROJECT)
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    result = subprocess.run(
        [sys.executable, "-m", "django", *words], capture_output=True, text=True, check=False, env=environment
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert ("Commands:" if words[0] == "help" else "everyone  settings  all") in result.stdout
