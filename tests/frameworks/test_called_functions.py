"""Limits of functions that a view calls: when they are added, by which name, and what a mistake in one of them does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sites import Build, Call, only

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.rules.decorators import limit
from ratelimit_mw.testing import ManualClock

Functions = dict[str, Callable[[], Any]]


def serve(site: Build, limiter: Limiter, functions: Functions) -> Callable[[str], int]:
    """Serve functions, which views call by name. More of them may be added."""

    async def view(call: Call) -> str:
        found = functions[call.parameters["name"]]
        return str(await found(call) if found.__name__ == "read" else found())  # type: ignore[call-arg]

    served = site(limiter, {"/{name}": view})
    return lambda name: int(served.call(path=f"/{name}").status_code)


def rate() -> Limiter:
    return Limiter([Rule(name="site", limits="100/minute")], clock=ManualClock(1_000_000.0))


def hidden(name: str) -> Callable[[], str]:
    """Return a function as a decorator without ``functools.wraps`` does: all have one name."""

    def wrapper() -> str:
        return name

    return wrapper


def test_a_mistake_in_one_function_leaves_the_others_alone(site: Build) -> None:
    """Each call of the wrong function is an error. Other functions and later routes have their limits."""
    good = limit("1/minute", unrouted=True)(hidden("good"))
    wrong = [
        limit("1/minute", key=["tenant"], unrouted=True)(hidden("by a feature that nothing provides")),
        limit("1/minute", name="site", unrouted=True)(hidden("by a name that is used")),
    ]
    functions: Functions = {"good": good, "tenant": wrong[0], "name": wrong[1]}
    status = serve(site, rate(), functions)
    assert [status(name) for name in ("tenant", "name", "good") * 2] == [500, 500, 200, 500, 500, 429]
    functions["later"] = limit("1/minute", unrouted=True)(hidden("later"))
    assert [status("later") for _ in range(2)] == [200, 429]


def test_functions_of_a_module_that_a_view_imports_have_their_own_limits(site: Build) -> None:
    """The line of the decorator distinguishes them, even when a view decorates them again in each request."""

    def function(number: int) -> str:
        functions = [
            limit("1/minute", unrouted=True)(hidden("mail")),
            limit("1/minute", unrouted=True)(hidden("sms")),
            limit("2/minute", unrouted=True)(hidden("fax")),
        ]
        return functions[number]()

    status = serve(site, rate(), {"mail": lambda: function(0), "sms": lambda: function(1), "fax": lambda: function(2)})
    assert [status(name) for name in ("sms", "mail", "fax") * 3] == [200] * 3 + [429, 429, 200] + [429] * 3


def test_a_function_that_is_called_later_changes_no_counts(site: Build) -> None:
    """Its rule is numbered after those that count."""
    mail = limit("1/minute", unrouted=True)(hidden("mail"))
    sms = limit("1/minute", unrouted=True)(hidden("sms"))
    status = serve(site, rate(), {"mail": mail, "sms": sms})
    assert [status(name) for name in ("sms", "mail", "sms", "mail")] == [200, 200, 429, 429]


def test_two_applications_of_one_limiter_call_one_function(site: Build) -> None:
    """Both know its rule, and it has one count."""
    limiter, mail = rate(), limit("2/minute", unrouted=True)(hidden("mail"))
    statuses = [serve(site, limiter, {"mail": mail}) for _ in range(2)]
    if "django" in site.name:  # one project is open at a time
        statuses = statuses[1:] * 2
    assert [status("mail") for status in statuses * 2] == [200, 200, 429, 429]


@pytest.mark.parametrize("use", ["usage", "peek"])
def test_a_function_has_its_name_before_its_first_call(site: Build, use: str) -> None:
    """It is its own name, or that of the function. Plain WSGI has no usage."""
    if (site.name, use) == ("wsgi", "usage"):
        return
    function, name = hidden("mail"), f"mail-{site.name[:5]}"
    if use == "peek":
        function.__qualname__ = function.__name__ = name
        name = f"{__name__}.{name}"
    mail = limit("1/minute", unrouted=True, **{} if use == "peek" else {"name": name})(function)

    async def read(call: Call) -> Any:
        return await (call.usage if use == "usage" else call.check.peek)(name)

    status = serve(site, rate(), {"left": read, "mail": mail})
    assert [status(path) for path in ("left", "mail", "mail", "left")] == [200, 200, 429, 200]


def test_two_functions_of_one_name_have_none_before_their_first_calls(site: Build) -> None:
    """Nobody knows which of them is meant, so the name is an error until then."""
    mail, sms = (limit("1/minute", unrouted=True)(hidden(name)) for name in ("mail", "sms"))

    async def read(call: Call) -> Any:
        return await call.check.peek(f"{__name__}.hidden.<locals>.wrapper")

    status = serve(site, rate(), {"left": read, "mail": mail, "sms": sms})
    assert [status(path) for path in ("left", "mail", "left")] == [500, 200, 200]


def test_the_settings_override_a_function_that_no_view_has_called(site: Build) -> None:
    """The application starts, and starts again in the next test: its decorator has one line."""
    settings = load_settings({"rules": [{"overrides": f"sms-{site.name[:5]}", "limits": "1/minute"}]})
    for _ in range(2):
        sms = [limit("9/minute", name=f"sms-{site.name[:5]}", unrouted=True)(hidden(each)) for each in "ab"]
        status = serve(site, Limiter.from_settings(settings, ManualClock(1_000_000.0)), {"sms": sms[0]})
        assert [status("sms") for _ in range(2)] == [200, 429]


@only({"starlette", "fastapi", "flask"})  # the others report it when they are built
def test_an_override_of_two_functions_is_still_an_error(site: Build) -> None:
    """Each of the two may belong to another application."""
    functions = [limit("9/minute", name="twice", unrouted=True)(hidden("a"))]
    functions.append(limit("9/minute", name="twice", unrouted=True)(hidden("b")))
    settings = load_settings({"rules": [{"overrides": "twice", "limits": "1/minute"}]})
    assert serve(site, Limiter.from_settings(settings), {"a": functions[0]})("a") == 500


def test_an_object_of_a_limited_class_is_limited_when_it_is_called(site: Build) -> None:
    """A class without any method that code could enter is an error at its decorator."""

    class Mailer:
        def __call__(self) -> str:
            return "sent"

    limited = limit("2/minute")(limit("1/minute", unrouted=True)(Mailer))
    status = serve(site, rate(), {"mail": lambda: limited()()})
    assert [status("mail") for _ in range(2)] == [200, 429]

    class Sender:
        def send(self) -> None: ...

    assert limit("1/minute")(Sender) is Sender  # a route may lead to it
    with pytest.raises(ConfigError, match=r"test_called_functions.py:\d+: .*Sender is a class without dispatch or __c"):
        limit("1/minute", unrouted=True)(Sender)
