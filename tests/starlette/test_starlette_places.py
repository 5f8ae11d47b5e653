"""A mistake that the start finds has its file, line and path in the message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import ask
from misplaced import RULE, check_place, settings_file
from starlette.applications import Starlette
from starlette.routing import Route
from starlette_apps import hello

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.starlette import RateLimitMiddleware, limit


def serve(view: Any = hello, **options: Any) -> None:
    """Start an application with one route."""
    app = Starlette(routes=[Route("/login", view)])
    app.add_middleware(RateLimitMiddleware, **options)
    ask(app, "/login")


def mistake_of(*arguments: Any, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        serve(*arguments, **options)
    return caught.value


def test_an_override_has_the_place_of_its_options(tmp_path: Path) -> None:
    """What is wrong in the decorator is not in the file."""
    file = settings_file(tmp_path, '[[rules]]\noverrides = "home"\nmatch = { path = "/login" }\n')
    check_place(
        mistake_of(limit("5/minute", name="home")(hello), settings=file), file, '3: rules[0] "home": match.path'
    )
    file = settings_file(tmp_path, '[[rules]]\noverrides = "home"\nlimits = "5/minute"\n')
    costly = limit("9/minute", name="home", cost=6)(hello)
    check_place(mistake_of(costly, settings=file), file, '1: rules[0] "home": cost: the cost 6 is above')
    keyed = limit("9/minute", name="home", key=["usr"])(hello)
    assert str(mistake_of(keyed, settings=file)).startswith(f"{__file__}:41: rule 'home': key: uses the feature 'usr'")


def test_a_default_of_a_decorators_rule_has_the_place_of_the_default(tmp_path: Path) -> None:
    """The decorator does not set the option, so the file is wrong."""
    file = settings_file(tmp_path, '[defaults]\nkey = "usr"\n')
    error = mistake_of(limit("9/minute", name="home")(hello), settings=file)
    check_place(error, file, "2: rule 'home': key: uses the feature 'usr'")
    assert str(error).endswith("The rule has key from [defaults]")


def test_a_name_that_a_decorator_has_too_is_an_error_of_the_file(tmp_path: Path) -> None:
    """The rule of the file and the decorator have one name."""
    view = limit("5/minute", name="login")(hello)
    message = "4: rules[0] \"login\": name: the name 'login' is already used by the limit on starlette_apps.hello"
    file = settings_file(tmp_path, RULE.replace('name = "login"\n', "") + 'name = "login"\n')
    check_place(mistake_of(view, settings=file), file, message)


def test_a_mistake_of_the_code_has_no_place(tmp_path: Path) -> None:
    """Neither arguments nor rules of the code are in the file, even if the file has a rule of that name."""
    file = settings_file(tmp_path, f'observers = ["json:dumps"]\nlimits = "5/minute"\n{RULE}')
    settings = load_settings(file)
    own = Limiter([Rule(name="login", limits="5/minute", key=["usr"])], settings=settings)
    errors = [
        mistake_of(settings=file, observers=["nope:x"]),
        mistake_of(settings=settings, region_header="x"),
        mistake_of(limiter=own),
    ]
    assert [str(error).partition(":")[0] for error in errors] == ["observers[0]", "region_header", "rule 'login'"]


def test_the_place_is_the_file_alone_when_it_has_gone(tmp_path: Path) -> None:
    """The settings are loaded before the application starts."""
    file = settings_file(tmp_path, f"{RULE}cost = 6\n")
    settings = load_settings(file)
    file.unlink()
    assert str(mistake_of(settings=settings)).startswith(f'{file}: rules[0] "login": cost: ')


def test_a_mistake_of_a_later_file_has_its_place(tmp_path: Path) -> None:
    """The message of a reload has the line in the new file."""
    file = settings_file(tmp_path, f"reload_interval = 0\n{RULE}")
    limiter = Limiter.from_settings(file)
    app = Starlette(routes=[Route("/login", hello)])
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    assert ask(app, "/login").status_code == 200
    file = settings_file(tmp_path, f"reload_interval = 0\n\n\n{RULE}cost = 6\n")
    with pytest.raises(ConfigError) as caught:
        limiter.reload()
    check_place(caught.value, file, '8: rules[0] "login": cost: ')


def test_a_decorator_cannot_have_the_name_of_the_limits(tmp_path: Path) -> None:
    """The rule of the setting ``limits`` is called ``default``."""
    view = limit("5/minute", name="default")(hello)
    error = mistake_of(view, settings={"limits": "9/minute"})
    assert str(error).startswith("the limit on starlette_apps.hello: the name 'default' is already used by limits. ")
