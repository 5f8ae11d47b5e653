"""Automatic rule names work for views of any name, in headers, messages and references."""

from __future__ import annotations

import json
from typing import Any

from flask import Blueprint, Flask
from flask_calls import ask as ask_flask
from header_scene import parsed
from tables import expect_error

from ratelimit_mw import Limiter, RateLimitExceeded, load_settings
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.rules.decorators import exempt, limit
from ratelimit_mw.rules.marks import Destination, ViewMarks, marks_of
from ratelimit_mw.rules.names import printable

SHOWN = r"gr\xf6\xdfe"


def test_a_blueprint_with_any_name_is_served_and_limited() -> None:
    """The policy has the name in escaped form, because HTTP fields are ASCII. So has the body of a rejection."""
    app = Flask("app")
    blueprint = limit("2/minute", algorithm="sliding-window-log")(Blueprint("größe", "shop"))
    blueprint.add_url_rule("/", view_func=lambda: "42")
    app.register_blueprint(blueprint)
    RateLimiter(app)
    responses = [ask_flask(app) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    for response in responses:
        for field in ("ratelimit-policy", "ratelimit"):
            assert [name for name, _ in parsed(response.headers[field])] == [SHOWN]
    assert json.loads(responses[2].data)["violated-policies"] == [SHOWN]


def test_clients_see_no_modules_of_rules_without_a_name() -> None:
    """They see its last part, numbered where another rule has that name. Operators and keys keep the whole name."""

    def view(module: str) -> Any:
        async def login() -> None: ...

        login.__module__, login.__qualname__ = module, "login"
        return limit("5/minute; 9/hour")(login)

    rules = [{"name": "login-2", "limits": "1/s"}]
    views = [marks_of(view(name)) for name in ("shop.views", "shop.views", "shop.admin")]
    marks = [mark for each in views for mark in each.marks]
    for named, shown in (([], ["login", "login#2", "login#3"]), (rules, ["login#2", "login#3", "login#4"])):
        limiter = Limiter.from_settings({"rules": named})
        limiter.reloads.adopt(marks)
        marked = limiter.rules.rules[len(named) :]
        assert [rule.name for rule in marked] == ["shop.views.login", "shop.views.login#2", "shop.admin.login"]
        assert [limit.policy for rule in marked for limit in rule.limits] == [
            text for name in shown for text in (name, f"{name}-2")
        ]
        assert marked[0].limits[0].local_part(2).policy == shown[0]
        assert marked[0].limits[0].prefix.startswith("1|shop.views.login|")
        verdict = limiter.decide(limiter.rules.plan("GET", "/", to=Destination(marks=views[2])), {"ip": "a"}, cost=6)
        assert verdict.rules[-1] == "shop.admin.login"
        assert f"{shown[2]} (5/minute)" in str(RateLimitExceeded(verdict))


class Größe:
    async def __call__(self, request: Any) -> None: ...


def test_an_automatic_name_is_printable_and_refers_to_its_rule_in_either_spelling() -> None:
    """``overrides``, ``@exempt`` and ``reset`` accept the shown form of the name of any view."""
    name = r"test_names.Gr\xf6\xdfe"
    for written in ("test_names.Größe", name):
        limiter = Limiter.from_settings({"rules": [{"overrides": written, "limits": "1/minute"}]})
        marked = exempt(written)(limit("5/minute", key=[])(type("Größe", (Größe,), {"__qualname__": "Größe"})))
        view = marks_of(marked)
        limiter.reloads.adopt(view.marks)
        limiter.rules.check(view)
        assert [(rule.name, str(rule.source.quotas[0])) for rule in limiter.rules.rules] == [(name, "1/minute")]
        assert limiter.rules.plan("GET", "/", to=Destination(marks=view)).rules == ()
        plan = limiter.rules.plan("GET", "/", to=Destination(marks=ViewMarks(view.marks)))
        assert [limiter.decide(plan, {}).allowed for _ in range(2)] == [True, False]
        limiter.reset(written, {})
        assert limiter.decide(plan, {}).allowed


def test_a_rule_is_overridden_once_in_any_spelling() -> None:
    """The original and the shown form are one name."""
    rules = [{"overrides": written, "limits": "1/s"} for written in ("shop.größe", r"shop.gr\xf6\xdfe")]
    expect_error(r"^rules\[1\] '?.*: overrides: .* is already overridden above", load_settings, {"rules": rules})


def test_characters_outside_of_printable_ascii_are_escaped() -> None:
    """Control characters and surrogates are escaped, too, and no text is escaped twice."""
    for name, shown in (
        ("a.b", "a.b"),
        ("größe", r"gr\xf6\xdfe"),
        ("数\n", r"\u6570\n"),
        ("\x7f\ud800😀", r"\x7f\ud800\U0001f600"),
    ):
        assert printable(name) == printable(shown) == shown
