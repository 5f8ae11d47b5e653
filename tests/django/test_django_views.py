"""Limits on Django's views: functions, coroutines, classes and methods by method_decorator, and on their routes."""

import functools
from inspect import iscoroutinefunction
from typing import Any

from django.contrib.syndication.views import Feed
from django.http import HttpResponse
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.vary import vary_on_headers
from django.views.generic import RedirectView
from django_calls import ahello, hello, one_rule, project
from tables import each

from ratelimit_mw.django import exempt, limit
from ratelimit_mw.testmode import limits_off

both = each("is_async", [False, True])


def test_a_decorated_coroutine_stays_a_coroutine_function() -> None:
    """Django sees that a limited async view is async."""
    assert iscoroutinefunction(limit("1/minute")(ahello))


class Items(View):
    def get(self, request: Any) -> HttpResponse:
        return HttpResponse("got")

    def post(self, request: Any) -> HttpResponse:
        return HttpResponse("posted")


class AsyncItems(View):
    async def get(self, request: Any) -> HttpResponse:
        return HttpResponse("got")

    async def post(self, request: Any) -> HttpResponse:
        return HttpResponse("posted")


def subclass(base: type, **members: Any) -> Any:
    return type("Limited", (base,), {"__module__": "shop", "__qualname__": "Limited", **members})


WAYS = {
    "class": lambda base: limit("1/minute")(subclass(base)),
    "base": lambda base: subclass(limit("1/minute")(subclass(base))),
    "view": lambda base: limit("1/minute")(subclass(base).as_view()),
    "method_decorator": lambda base: method_decorator(limit("1/minute"), name="dispatch")(subclass(base)),
    "overridden": lambda base: subclass(
        method_decorator(limit("1/minute"), name="dispatch")(subclass(base)),
        dispatch=lambda self, request: base.dispatch(self, request),
    ),
}


@both
@each("base", [Items, AsyncItems])
@each("way", WAYS)
def test_a_class_based_view_is_limited(way: str, base: type, is_async: bool) -> None:
    """A limit on the class, its base, its view function or its dispatch holds for all its methods.

    Without the middleware it is an error, but for a dispatch that never calls the limited one.
    """
    limited = WAYS[way](base)
    view = limited.as_view() if isinstance(limited, type) else limited
    with project(None, path("", view), is_async=is_async) as served:
        assert [served.ask().status_code, served.ask(method="POST").status_code] == [200, 429]
    nothing = ["django.middleware.common.CommonMiddleware"]
    with project(None, path("", view), is_async=is_async, middleware=nothing) as served:
        assert served.ask().status_code == (200 if way == "overridden" else 500)
        with limits_off():
            assert served.ask().status_code == 200


def test_rules_are_named_after_the_class() -> None:
    """When method_decorator or ``as_view`` hides the decorated function, the class on the route gives the name."""
    post = subclass(Items, post=method_decorator(limit("1/minute"))(Items.post))
    views = {
        "dispatch": (WAYS["method_decorator"](Items).as_view(), '"Limited";q=1'),
        "post": (post.as_view(), '"post";q=1'),
        "view": (limit("2/minute")(Items.as_view()), '"Items";q=2'),
        "async": (limit("2/minute")(AsyncItems.as_view()), '"AsyncItems";q=2'),
    }
    with project(None, *(path(name, view) for name, (view, _) in views.items())) as served:
        for name, (_, expected) in views.items():
            assert expected in served.ask(f"/{name}", "POST")["ratelimit-policy"]


def test_one_decorator_for_two_classes_is_one_count() -> None:
    decorator = method_decorator(limit("1/minute"), name="dispatch")
    one, two = (decorator(subclass(Items, __qualname__=name)).as_view() for name in ("One", "Two"))
    with project(None, path("one", one), path("two", two)) as served:
        assert [served.ask(where).status_code for where in ("/one", "/two", "/one")] == [200, 429, 429]
    with project(one_rule("1/minute", key=["view"]), *(path(name, Items.as_view()) for name in "ab")) as served:
        assert [served.ask(where).status_code for where in ("/a", "/b")] == [200, 429]


FEW, MANY, FREE = limit("2/minute", name="few"), limit("9/minute", name="many"), exempt("api")
STACKED = [method_decorator(decorator, name="dispatch") for decorator in (FEW, MANY, FREE)]
LISTED = [method_decorator([FEW, MANY, FREE], name="dispatch")]


@each("decorators", [STACKED, LISTED])
def test_stacked_limits_all_hold(decorators: list[Any]) -> None:
    """Two limits through method_decorator, in one list or stacked, both apply. So does an exemption."""
    view = functools.reduce(lambda inner, decorate: decorate(inner), decorators, subclass(Items))
    with project(one_rule("1/minute"), path("", view.as_view())) as served:
        policies = sorted(policy.strip() for policy in served.ask()["ratelimit-policy"].split(","))
        assert policies == ['"few";q=2;w=60', '"many";q=9;w=60']
        assert served.statuses(times=2) == [200, 429]


@each("view", [Items.as_view(), AsyncItems.as_view(), limit("9/minute")(subclass(Items)).as_view()])
@both
def test_options_that_django_answers_do_not_count(view: Any, is_async: bool) -> None:
    """Django's own ``View.options`` is left alone, by rules and by decorators, unless a limit names the method."""
    with project(one_rule(), path("", limit("1/minute")(view)), is_async=is_async) as served:
        assert served.statuses(method="OPTIONS") == [200] * 3
        assert served.statuses(times=2) == [200, 429]
    named = limit("1/minute", match={"methods": ["OPTIONS"]})(view)
    with project(None, path("", named), is_async=is_async) as served:
        assert served.statuses(method="OPTIONS", times=2) == [200, 429]
        assert served.statuses() == [200] * 3


@each("view", [hello, subclass(Items, options=Items.get).as_view()])
@both
def test_options_that_reach_other_code_count(view: Any, is_async: bool) -> None:
    """A function, and a method of your own, may check a password, so OPTIONS counts."""
    with project(one_rule(), path("", view), is_async=is_async) as served:
        assert served.statuses(method="OPTIONS") == [200, 200, 429]


class Called:
    """A callable object as a view, like Django's feeds."""

    @method_decorator(limit("1/minute", name="called"))
    def __call__(self, request: Any) -> HttpResponse:
        return HttpResponse("hello")


@limit("1/minute", name="feed")
class Latest(Feed):
    title = link = description = "news"

    def items(self) -> list[str]:
        return []


def unwrapped(view: Any) -> Any:
    """A view in a decorator without ``functools.wraps``."""
    return lambda request: view(request)


def bound(view: Any) -> Any:
    """A method as a view, as some libraries have them."""
    return type("Site", (), {"index": limit("1/minute", name="index")(view)})().index


@each(
    "view",
    [
        functools.partial(limit("1/minute")(lambda request, word: HttpResponse(word)), word="hello"),
        limit("1/minute")(functools.update_wrapper(functools.partial(hello, word="hello"), hello)),
        Called(),
        Latest(),
        bound(lambda self, request: HttpResponse("hello")),
        vary_on_headers("x")(csrf_exempt(limit("1/minute")(hello))),
        csrf_exempt(vary_on_headers("x")(limit("1/minute")(subclass(Items)).as_view())),
        limit("1/minute", name="page")(RedirectView.as_view(url="/elsewhere")),
        unwrapped(limit("1/minute")(hello)),
    ],
)
@both
def test_unusual_kinds_of_views_are_limited(view: Any, is_async: bool) -> None:
    """Partials, callable objects, bound methods, views of Django and views in decorators that drop their attributes."""
    with project(None, path("", view), is_async=is_async) as served:
        assert (served.ask().status_code in (200, 302), served.ask().status_code) == (True, 429)


def test_parameters_come_from_all_parts_of_a_route() -> None:
    """A limit may use a parameter of a path, a regular expression, an include or the route's extra arguments."""
    view = limit("1/minute", key=["path:town", "path:street", "path:number", "path:kind"])(hello)
    streets = [re_path(r"^(?P<street>[a-z]+)/", include([path("<int:number>", view, {"kind": "house"})]))]
    with project(None, path("<slug:town>/", include(streets))) as served:
        assert [served.ask(f"/rome/appia/{n}").status_code for n in (1, 2, 1)] == [200, 200, 429]
