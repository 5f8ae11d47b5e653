"""The decorators by themselves: what they may stand on, and that nothing marked runs undecided."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

import pytest

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw.errors import MissingMiddlewareError
from ratelimit_mw.rules.decorators import exempt, limit, make_mark, messages
from ratelimit_mw.rules.marks import marks_of


@pytest.mark.parametrize("names", [(5,), ("api", None), (["api"],)])
def test_an_exemption_names_rules(names: tuple[Any, ...]) -> None:
    """Anything else is a mistake at the start."""
    line = sys._getframe().f_lineno + 2
    with pytest.raises(ConfigError, match=rf"^@exempt at {__file__}:{line}: expected names of rules; got "):
        exempt(*names)


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("5/minuet", {}, "limits: cannot parse quota '5/minuet'"),
    ("5/minute", {"foo": 1}, "foo: unknown option. Expected one of name, "),
    ("5/minute", {"key": ["usr"]}, r"key\[0\]: unknown feature 'usr'"),
    ("5/minute", {"match": {"path": "/x"}}, r"match\.path: a decorated view has the path of its route"),
]


@pytest.mark.parametrize("framework", ["rules.decorators", "starlette", "fastapi", "flask", "django"])
@pytest.mark.parametrize(("limits", "options", "message"), MISTAKES)
def test_a_limit_that_means_nothing_is_an_error_in_its_line(
    framework: str, limits: str, options: dict[str, Any], message: str
) -> None:
    """It is rejected when it is written, before it stands on any view, and names the file and line."""
    limited = importlib.import_module(f"ratelimit_mw.{framework}").limit
    line = sys._getframe().f_lineno + 2
    with pytest.raises(ConfigError, match=rf"^@limit at {__file__}:{line}: {message}"):
        limited(limits, **options)


@pytest.mark.parametrize("framework", ["rules.decorators", "starlette", "fastapi", "flask", "django"])
@pytest.mark.parametrize("decorator", ["limit", "exempt"])
def test_a_decorator_on_what_is_no_view_is_an_error_in_its_line(framework: str, decorator: str) -> None:
    """Neither a limit nor an exemption is silently of no use."""
    decorate = getattr(importlib.import_module(f"ratelimit_mw.{framework}"), decorator)
    line = sys._getframe().f_lineno + 2
    with pytest.raises(ConfigError, match=rf"^@{decorator} at {__file__}:{line}: expected a view, .*; got 3$"):
        decorate("5/minute")(3)


def test_mistakes_of_messages_are_errors_in_their_line() -> None:
    """A mistyped ``over`` and a number that is no view, as with ``@limit``."""
    line = sys._getframe().f_lineno + 2
    with pytest.raises(ConfigError, match=rf"^@messages at {__file__}:{line}: over: expected 'close' or 'drop'; got "):
        messages("5/minute", over="clos")
    with pytest.raises(ConfigError, match=rf"^@messages at {__file__}:{line + 2}: expected a view, .*; got 3$"):
        messages("5/minute")(3)  # type: ignore[type-var]


def test_one_limit_on_two_views_is_two_rules() -> None:
    """A limit that was made once may stand on several views; each counts by itself."""
    thrice = limit("3/minute")
    views = [thrice(lambda: None), thrice(lambda: 1)]
    rate = Limiter()
    rate.adopt(mark for view in views for mark in marks_of(view).marks)
    name = "test_marks.test_one_limit_on_two_views_is_two_rules.<locals>.<lambda>"
    assert [rule.name for rule in rate.rules.rules] == [name, f"{name}#2"]


@pytest.mark.parametrize("view", [len, [].append, {"a": 1}.get])
def test_a_view_that_is_no_function_of_python_is_guarded_too(view: Any) -> None:
    """A built-in or a method of one keeps its name and rejects to run undecided."""
    marked = limit("5/minute")(view)
    assert marked.__name__ == view.__name__
    with pytest.raises(MissingMiddlewareError):
        marked("a")


def test_a_replacement_gives_no_path() -> None:
    """A view has the path of its route, also where a settings file retunes its rule."""
    limiter = Limiter.from_settings({"rules": [{"overrides": "login", "match": {"path": "/login"}}]})
    with pytest.raises(ConfigError, match=r"^rules\[0\]\.match\.path: the view of 'login' has the path of its route"):
        limiter.adopt([make_mark("5/minute", {"name": "login"}, "views.login")])


REPLACING = {"rules": [{"name": "api", "limits": "5/minute"}, {"overrides": "login", "limits": "1/minute"}]}
NOBODY = r"^rules\[1\]\.overrides: no decorator has a rule named 'login'\. There is none$"


def test_nothing_is_decided_while_a_replaced_rule_is_missing() -> None:
    """A settings rule that changes a decorator's is never silently left out, however the limiter is asked."""
    limiter = Limiter.from_settings(REPLACING)
    for ask in (limiter.hit, limiter.peek, limiter.match, lambda some: limiter.slot(some).__enter__()):
        for _ in range(2):
            with pytest.raises(ConfigError, match=NOBODY):
                ask({"ip": "192.0.2.7"})
    for aask in (limiter.ahit, limiter.apeek):
        with pytest.raises(ConfigError, match=NOBODY):
            asyncio.run(aask({"ip": "192.0.2.7"}))
    with pytest.raises(ConfigError, match=NOBODY):
        limiter.adopt([])
    limiter.adopt([make_mark("5/minute", {"name": "login"}, "views.login")])
    assert limiter.hit({"ip": "192.0.2.7"}).rules == ("api",)
    assert str(limiter.rules.by_name["login"].source.quotas[0]) == "1/minute"


def test_a_missing_replaced_rule_is_named_among_those_there_are() -> None:
    """A slip in a name is found with what it should have been."""
    limiter = Limiter.from_settings(REPLACING)
    with pytest.raises(ConfigError, match=r"no decorator has a rule named 'login'\. Did you mean 'logon'"):
        limiter.adopt([make_mark("5/minute", {"name": "logon"}, "views.login")])


def test_a_name_that_a_decorator_and_the_settings_give_names_both_places() -> None:
    """So do two decorators."""
    limiter = Limiter.from_settings({"rules": [{"name": "a", "limits": "5/minute"}]})
    with pytest.raises(ConfigError, match=r"^the limit on shop\.a: the name 'a' is already used by rules\[0\]. "):
        limiter.adopt([make_mark("5/minute", {"name": "a"}, "shop.a")])
    marks = [make_mark("5/minute", {"name": "b"}, view) for view in ("shop.b", "shop.c")]
    with pytest.raises(
        ConfigError, match=r"^the limit on shop\.c: the name 'b' is already used by the limit on shop\.b. "
    ):
        Limiter().adopt(marks)
