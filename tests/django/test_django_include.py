"""``exempt`` and ``limit`` on what ``include`` returns, and on the URLs of the admin."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from django.urls import include, path, reverse
from django_calls import hello, one_rule, project, urls
from tables import each

from ratelimit_mw import ConfigError
from ratelimit_mw.django import exempt, limit
from ratelimit_mw.testing import limits_off


def inner(**views: Any) -> ModuleType:
    return urls(*(path(name, view, name=name) for name, view in views.items()))


def statuses(served: Any, *paths: str) -> list[int]:
    return [served.ask(each).status_code for each in paths]


@each("is_async", [False, True])
def test_an_exempt_include_is_exempt_with_all_its_views(is_async: bool) -> None:
    """Nested ones, too. Another include of the same module is not."""
    shop = inner(a=hello, b=hello)
    outer = urls(path("deep/", include(shop)))
    patterns = [path("free/", exempt(include(outer))), path("shop/", include(outer)), path("", hello)]
    with project(one_rule("1/minute"), *patterns, is_async=is_async) as served:
        assert statuses(served, "/free/deep/a", "/free/deep/b", "/free/deep/a") == [200] * 3
        assert statuses(served, "/shop/deep/a", "/shop/deep/b", "/") == [200, 429, 429]
        assert statuses(served, "/free/deep/a", "/free//deep/a", "/free/deep/x", "/FREE/deep/a") == [200, 429, 429, 429]


def test_an_exemption_may_name_rules() -> None:
    """The innermost exemption counts, as elsewhere."""
    views = {"all": hello, "own": limit("1/minute", name="own")(hello), "none": exempt("own")(hello)}
    with project(one_rule("1/minute"), path("x/", exempt("api")(include(inner(**views))))) as served:
        assert statuses(served, "/x/all", "/x/all", "/x/own", "/x/own") == [200, 200, 200, 429]
        assert statuses(served, "/x/none", "/x/none") == [200, 429]


def test_urls_of_the_admin_are_exempt() -> None:
    """``admin.site.urls`` is a list with two names, by which Django builds its URLs."""
    marked = exempt(([path("login/", hello, name="login")], "admin", "admin"))
    with project(one_rule("1/minute"), path("admin/", marked), path("", hello)) as served:
        assert reverse("admin:login") == "/admin/login/"
        assert statuses(served, "/admin/login/", "/admin/login/", "/", "/") == [200, 200, 200, 429]


def test_a_limit_on_an_include_is_one_count() -> None:
    """Its rule has the name of the module. Clients see the last part of this name."""
    module = inner(a=hello, b=hello)
    module.__name__ = "shop.urls"
    once = limit("1/minute")
    twice = limit("2/minute")(once(include(module)))
    with project(None, path("x/", twice), path("y/", once(include((module, "shop"), namespace="eu")))) as served:
        first = served.ask("/x/a")
        assert {name.strip() for name in first["ratelimit-policy"].split(",")} == {
            '"urls";q=1;w=60',
            '"urls#2";q=2;w=60',
        }
        assert statuses(served, "/x/b", "/y/a") == [429, 429]


def test_urls_that_are_still_imported_are_read_later() -> None:
    """A module that includes itself in a circle has no patterns yet when it is marked."""
    module = ModuleType("late")
    marked = exempt((module, None, None))
    module.urlpatterns = [path("a", hello)]  # type: ignore[attr-defined]
    with project(one_rule("1/minute"), path("x/", marked)) as served:
        assert statuses(served, "/x/a", "/x/a") == [200, 200]


def test_a_tuple_that_is_no_include_is_an_error() -> None:
    """A text in its place would be imported later than the mark is read."""
    with pytest.raises(ConfigError, match="expected names of rules; got"):
        exempt(("shop.urls", None, None))  # type: ignore[call-overload]
    with limits_off(), project(None, path("x/", limit("1/minute")(include(inner(a=hello))))) as served:
        assert statuses(served, "/x/a", "/x/a") == [200, 200]


def test_an_exempt_include_keeps_its_own_limits() -> None:
    """So it can have a limit instead of those of the settings, in either order."""
    own = limit("2/minute", name="own")
    patterns = [path("x/", own(exempt(include(inner(a=hello))))), path("y/", exempt(own(include(inner(b=hello)))))]
    with project(one_rule("1/minute"), *patterns) as served:
        assert statuses(served, "/x/a", "/y/b", "/x/a", "/y/b") == [200, 200, 429, 429]


def test_a_limit_inside_of_an_exempt_include_applies() -> None:
    """The rules of the settings do not."""
    views = {"few": limit("2/minute")(hello), "all": hello}
    with project(one_rule("1/minute"), path("x/", exempt(include(inner(**views))))) as served:
        assert statuses(served, "/x/all", "/x/all", "/x/few", "/x/few", "/x/few") == [200, 200, 200, 200, 429]
