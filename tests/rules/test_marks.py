"""Decorators accept only views, which never run without a decision. Automatic rule names work for views of any name."""

import asyncio
import importlib
import json
from functools import partial
from typing import Any

import pytest
from flask import Blueprint, Flask
from flask_calls import ask as ask_flask
from header_scene import parsed
from tables import each, expect_error

from ratelimit_mw import ConfigError, Limiter, RateLimitExceeded, Rule, load_settings
from ratelimit_mw.errors import MissingMiddlewareError
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.rules.decorators import exempt, limit, make_mark, messages
from ratelimit_mw.rules.marks import Destination, ViewMarks, marks_of, merge_marks
from ratelimit_mw.rules.names import ascii_name


def test_the_decorators_are_the_same_in_all_frameworks() -> None:
    for framework in ("starlette", "fastapi", "flask", "django"):
        module = importlib.import_module(f"ratelimit_mw.{framework}")
        assert (module.limit, module.exempt) == (limit, exempt)


NO_VIEW = "expected a view, .*; got 3$"
MISTAKES: list[tuple[str, Any, str]] = [
    ("limit", lambda: limit("5/minuet"), "limits: cannot parse quota '5/minuet'"),
    ("limit", lambda: limit("5/minute", foo=1), "foo: unknown option. Expected one of key, "),
    ("limit", lambda: limit("5/minute", method="POST"), "method: a field of match. Write it there, as in match = "),
    ("limit", lambda: limit("5/minute", key=["user-agent"]), r"key\[0\]: expected a feature"),
    ("limit", lambda: limit("5/minute", match={"path": "/x"}), r"match\.path: a decorated view has the path of its"),
    ("limit", lambda: limit("5/minute")(3), NO_VIEW),
    ("limit", lambda: limit("5/minute")(partial(len)), "expected a view, .*; got functools.partial"),
    ("exempt", lambda: exempt("5/minute")(3), NO_VIEW),
    ("exempt", lambda: exempt(5), "expected names of rules; got "),
    ("exempt", lambda: exempt("api", None), "expected names of rules; got "),
    ("exempt", lambda: exempt(["api"]), "expected names of rules; got "),
    ("messages", lambda: messages("5/minute", over="clos"), "over: expected 'close' or 'drop'; got "),
    ("messages", lambda: messages("5/minute", ovre="drop"), r"ovre: unknown option\. Did you mean 'over'\?"),
    ("messages", lambda: messages("5/minute")(3), NO_VIEW),
]


@each(("name", "decorate", "message"), MISTAKES)
def test_a_mistake_of_a_decorator_is_an_error_in_its_line(name: str, decorate: Any, message: str) -> None:
    """At the start: no limit and no exemption is missing in silence."""
    line = decorate.__code__.co_firstlineno
    expect_error(rf"^@{name} at {__file__}:{line}: {message}", decorate)


def test_one_limit_on_two_views_is_one_rule() -> None:
    """One limit object may be on several views. They share its count, under the name of the first one.

    The order in which the routes are read does not matter, and a limit with a name takes no number.
    """

    def first() -> None: ...

    thrice = limit("3/minute", key=[])
    views = [thrice(first), limit("9/minute")(thrice(lambda: 1)), limit("3/minute")(lambda: 2)]
    named = limit("5/minute", name="burst")(lambda: 3)
    marks = [mark for view in (*views, named) for mark in marks_of(view).marks]
    name = "test_marks.test_one_limit_on_two_views_is_one_rule.<locals>."
    for read in (marks, marks[::-1]):
        rate = Limiter()
        rate.reloads.adopt(read)
        assert sorted(rate.rules.by_name) == ["burst", f"{name}<lambda>", f"{name}<lambda>#2", f"{name}first"]
        plans = [rate.rules.plan("GET", "/", to=Destination(marks=marks_of(view))) for view in views]
        shared = plans[0].rules[0]
        assert (shared.name, shared.source.quotas) == (f"{name}first", Rule(limits="3/minute").quotas)
        assert [shared in plan.rules for plan in plans] == [True, True, False]
        assert [bool(rate.decide(plan, {"ip": "192.0.2.7"})) for plan in plans[:2] * 2] == [True, True, True, False]


def test_a_view_with_the_same_limit_twice_counts_once() -> None:
    """A class and its method, or a blueprint and its view, may have one limit object."""
    once = limit("1/minute", name="once")
    marks = merge_marks([once(type("Outer", (), {})), once(lambda: None)])
    rate = Limiter()
    rate.reloads.adopt(marks.marks)
    assert [rule.name for rule in rate.rules.plan("GET", "/", to=Destination(marks=marks)).rules] == ["once"]
    assert [rule.name for rule in rate.rules.plan_for_marks(marks.marks, "GET", "", None, None).rules] == ["once"]


@pytest.mark.parametrize("view", [len, [].append, {"a": 1}.get])
def test_a_builtin_as_a_view_is_guarded_too(view: Any) -> None:
    """A built-in function or method keeps its name and does not run without a decision."""
    marked = limit("5/minute")(view)
    assert marked.__name__ == view.__name__
    with pytest.raises(MissingMiddlewareError):
        marked("a")


def test_an_override_sets_no_path() -> None:
    """A view has the path of its route, even when a settings file overrides its rule."""
    limiter = Limiter.from_settings({"rules": [{"overrides": "login", "match": {"path": "/login"}}]})
    with pytest.raises(ConfigError, match=r"^rules\[0\]\.match\.path: the view of 'login' has the path of its route"):
        limiter.reloads.adopt([make_mark("5/minute", {"name": "login"}, "views.login")])


REPLACING = {"rules": [{"name": "api", "limits": "5/minute"}, {"overrides": "login", "limits": "1/minute"}]}
NOBODY = r"^rules\[1\]\.overrides: no decorator has a rule named 'login'\. There is none\b"


def test_no_decision_is_made_while_an_override_has_no_rule() -> None:
    """An override in the settings without its decorator raises an error in every method of the limiter."""
    limiter = Limiter.from_settings(REPLACING)
    for ask in (limiter.hit, limiter.peek, limiter.match, lambda features: limiter.slot(features).__enter__()):
        for _ in range(2):
            with pytest.raises(ConfigError, match=NOBODY):
                ask({"ip": "192.0.2.7"})
    for aask in (limiter.ahit, limiter.apeek):
        with pytest.raises(ConfigError, match=NOBODY):
            asyncio.run(aask({"ip": "192.0.2.7"}))
    with pytest.raises(ConfigError, match=NOBODY):
        limiter.reloads.adopt([])
    with pytest.raises(ConfigError, match=r"no decorator has a rule named 'login'\. Did you mean 'logon'"):
        limiter.reloads.adopt([make_mark("5/minute", {"name": "logon"}, "views.login")])
    limiter.reloads.adopt([make_mark("5/minute", {"name": "login"}, "views.login")])
    assert limiter.hit({"ip": "192.0.2.7"}).rules == ("api",)
    assert str(limiter.rules.by_name["login"].source.quotas[0]) == "1/minute"


def test_a_name_in_a_decorator_and_the_settings_names_both_places() -> None:
    """A name in two decorators names both places, too."""
    limiter = Limiter.from_settings({"rules": [{"name": "a", "limits": "5/minute"}]})
    with pytest.raises(ConfigError, match=r"^rules\[0\]\.name: the name 'a' is already used by the limit on shop\.a. "):
        limiter.reloads.adopt([make_mark("5/minute", {"name": "a"}, "shop.a")])
    marks = [make_mark("5/minute", {"name": "b"}, view) for view in ("shop.b", "shop.c")]
    with pytest.raises(
        ConfigError, match=r"^the limit on shop\.c: the name 'b' is already used by the limit on shop\.b. "
    ):
        Limiter().reloads.adopt(marks)


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
    limiter.reloads.adopt([make_mark(lambda ip: "5/minute", {}, "shop.home")])  # whose limits are not known yet
    assert limiter.rules.named("shop.home").shown_limits[0].policy == "home"


class Größe:
    async def __call__(self, request: Any) -> None: ...


def test_an_automatic_name_is_printable_and_refers_to_its_rule_in_either_spelling() -> None:
    """``overrides``, ``@exempt`` and ``reset`` accept the shown form of the name of any view."""
    name = r"test_marks.Gr\xf6\xdfe"
    for written in ("test_marks.Größe", name):
        limiter = Limiter.from_settings({"rules": [{"overrides": written, "limits": "1/minute"}]})
        marked = exempt(written)(limit("5/minute", key=[])(type("Größe", (Größe,), {"__qualname__": "Größe"})))
        view = marks_of(marked)
        limiter.reloads.adopt(view.marks)
        limiter.rules.check_exemptions(view)
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
        assert ascii_name(name) == ascii_name(shown) == shown
