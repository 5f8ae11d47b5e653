"""Every mistake that would disable a limit is an error that names the problem."""

import re
from pathlib import Path
from typing import Any

import pytest
from calls import ask
from misplaced import RULE, check_place, settings_file
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette_apps import application, hello, statuses
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.starlette import RateLimitMiddleware, check, exempt, limit


@exempt("missing")
async def mistyped(request: Any) -> Response:
    return PlainTextResponse("never")


def test_a_parameter_may_come_from_a_mount_or_only_one_route() -> None:
    """A limit by a parameter needs one route that has it. A rule for all routes needs an alternative in its key."""
    view = limit("1/minute", key=["path:tenant"])(hello)
    settings = {"rules": [{"name": "all", "key": ["path:missing|ip"], "limits": "99/minute"}]}
    routes = [Mount("/t/{tenant}", routes=[Route("/x", view)]), Route("/plain", view)]
    app = application(routes, limiter=Limiter.from_settings(load_settings(settings)))
    assert statuses(app, "/t/a/x", "/t/b/x", "/t/a/x", "/plain", "/plain") == [200, 200, 429, 200, 200]


def test_a_mistake_is_raised_until_it_is_fixed() -> None:
    """Without a lifespan every request raises it, so none is served without its limits. A route may come late."""
    app = application([Route("/", hello)])
    assert statuses(app, "/") == [200]
    app.routes.append(Route("/late", mistyped))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"@exempt on test_starlette_mistakes.mistyped: unknown rule 'missing'"):
            ask(app)
    app.routes.pop()
    assert statuses(app, "/") == [200]


LOGIN: Any = {"name": "login", "limits": "5/minute", "key": ["email"], "match": {"view": ""}}


@each("method", [check, check.reset])
def test_a_check_of_a_body_that_was_not_read_says_what_to_pass(method: Any) -> None:
    """The middleware reads bodies only for the rules that match. The view knows the value."""

    async def view(request: Any) -> Response:
        await method(request, "login", **request.query_params)
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/", view)])
    app.add_middleware(RateLimitMiddleware, settings={"rules": [LOGIN]})
    assert ask(app, "/?email=ann@x.org").status_code == 200
    with pytest.raises(ConfigError, match=r"check\('login'\): the middleware reads bodies only .* such as email=VALUE"):
        ask(app)


# -- the file, line and path of a mistake ----------------------------------------------------------------------


def serve(view: Any = hello, **options: Any) -> None:
    """Start an application with one route."""
    app = Starlette(routes=[Route("/login", view)])
    app.add_middleware(RateLimitMiddleware, **options)
    ask(app, "/login")


def mistake_of(*arguments: Any, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        serve(*arguments, **options)
    return caught.value


OVERRIDE = '[[rules]]\noverrides = "home"\n'
TAKEN = "the name 'login' is already used by the limit on starlette_apps.hello"


@each(
    ("text", "options", "message"),
    [
        (f'{OVERRIDE}match = {{ path = "/login" }}\n', {}, '3: rules[0] "home": match.path'),
        (f'{OVERRIDE}limits = "5/minute"\n', {"cost": 6}, '1: rules[0] "home": cost: the cost 6 is above'),
        ('[defaults]\nkey = "usr"\n', {}, "2: rule 'home': key: uses the feature 'usr'"),
        ('[[rules]]\nlimits = "1/s"\nname = "login"\n', {"name": "login"}, f'3: rules[0] "login": name: {TAKEN}'),
    ],
)
def test_an_option_of_a_decorators_rule_has_its_place(text: str, options: Any, message: str, tmp_path: Path) -> None:
    """The file sets it by an override, as a default, or as the rule of that name."""
    file = settings_file(tmp_path, text)
    error = mistake_of(limit("9/minute", **{"name": "home", **options})(hello), settings=file)
    check_place(error, file, message)
    assert str(error).endswith("The rule has key from [defaults]") is ("[defaults]" in text)


def test_what_is_wrong_in_a_decorator_is_not_in_the_file(tmp_path: Path) -> None:
    """The rule of the setting ``limits`` is called ``default``."""
    file = settings_file(tmp_path, f'{OVERRIDE}limits = "5/minute"\n')
    keyed = limit("9/minute", name="home", key=["usr"])(hello)
    assert re.match(rf"{__file__}:\d+: rule 'home': key: uses the feature 'usr'", str(mistake_of(keyed, settings=file)))
    taken = mistake_of(limit("5/minute", name="default")(hello), settings={"limits": "9/minute"})
    assert str(taken).startswith("the limit on starlette_apps.hello: the name 'default' is already used by limits. ")


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
