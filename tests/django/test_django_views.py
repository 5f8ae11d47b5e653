"""Limits on Django's views: functions, coroutines, classes and methods by method_decorator, and on their routes."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from django.contrib.syndication.views import Feed
from django.http import HttpResponse
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.vary import vary_on_headers
from django.views.generic import TemplateView
from django_calls import ahello, hello, one_rule, project
from tables import each

from ratelimit_mw.django import exempt, limit
from ratelimit_mw.errors import MissingMiddlewareError
from ratelimit_mw.testmode import limits_off

both = each("is_async", [False, True])


def test_a_decorated_coroutine_stays_a_coroutine_function() -> None:
    """Django sees that a limited async view is async."""
    assert asyncio.iscoroutinefunction(limit("1/minute")(ahello))


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
    """A limit on the class, its base, its view function or its dispatch holds for all its methods."""
    limited = WAYS[way](base)
    view = limited.as_view() if isinstance(limited, type) else limited
    with project(None, path("", view), is_async=is_async) as served:
        assert [served.ask().status_code, served.ask(method="POST").status_code] == [200, 429]


def test_rules_of_method_decorator_are_named_after_the_class() -> None:
    """When method_decorator hides the decorated function, the class on the route gives the name."""
    view = WAYS["method_decorator"](Items)
    post = subclass(Items, post=method_decorator(limit("1/minute"))(Items.post))
    with project(None, path("", view.as_view()), path("post", post.as_view())) as served:
        assert '"Limited";q=1' in served.ask()["ratelimit-policy"]
        assert '"post";q=1' in served.ask("/post", "POST")["ratelimit-policy"]


@each("base", [Items, AsyncItems])
def test_a_limit_in_the_urlconf_is_named_after_the_class(base: type) -> None:
    """All functions that ``as_view`` makes have one name, so the class gives a unique one."""
    with project(None, path("", limit("2/minute")(base.as_view()))) as served:
        assert f'"{base.__name__}"' in served.ask()["ratelimit"]


def test_one_decorator_for_two_classes_is_one_count() -> None:
    """Two classes with one limit object share its count."""
    decorator = method_decorator(limit("1/minute"), name="dispatch")
    one, two = (decorator(subclass(Items, __qualname__=name)).as_view() for name in ("One", "Two"))
    with project(None, path("one", one), path("two", two)) as served:
        assert [served.ask(where).status_code for where in ("/one", "/two", "/one")] == [200, 429, 429]


@each("stacked", [True, False])
def test_stacked_limits_all_hold(stacked: bool) -> None:
    """Two limits through method_decorator, in one list or stacked, both apply. So does an exemption."""
    few, many, free = limit("2/minute", name="few"), limit("9/minute", name="many"), exempt("api")
    view = subclass(Items)
    if stacked:
        for decorator in (free, many, few):
            view = method_decorator(decorator, name="dispatch")(view)
    else:
        view = method_decorator([few, many, free], name="dispatch")(view)
    with project(one_rule("1/minute"), path("", view.as_view())) as served:
        first = served.ask()
        policies = sorted(policy.strip() for policy in first["ratelimit-policy"].split(","))
        assert policies == ['"few";q=2;w=60', '"many";q=9;w=60']
        assert served.statuses(times=2) == [200, 429]


def test_a_limit_on_one_method_of_a_class_holds_only_for_it() -> None:
    """Limits on get and post count separately, HEAD counts as GET, and an overriding subclass keeps the limit."""
    limited = subclass(
        Items,
        get=limit("2/minute")(Items.get),
        post=method_decorator(limit("1/minute"))(Items.post),
    )
    overriding = subclass(limited, post=lambda self, request: limited.post(self, request))
    with project(None, path("", overriding.as_view())) as served:
        assert served.statuses(method="POST", times=2) == [200, 429]
        assert [served.ask(method="HEAD").status_code, *served.statuses(times=2)] == [200, 200, 429]


def test_an_exempt_method_of_a_class_is_exempt_for_head_too() -> None:
    """HEAD counts as GET: the site's limit holds for neither of them, and for POST it does."""
    free = subclass(Items, get=exempt(Items.get))
    with project(one_rule("1/minute"), path("", free.as_view())) as served:
        statuses = [served.ask(method=method).status_code for method in ("HEAD", "GET", "HEAD", "POST", "POST")]
        assert statuses == [200] * 4 + [429]


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


@each(
    "view",
    [
        hello,
        subclass(Items, options=Items.get).as_view(),
    ],
)
@both
def test_options_that_reach_other_code_count(view: Any, is_async: bool) -> None:
    """A function, and a method of your own, may check a password, so OPTIONS counts."""
    with project(one_rule(), path("", view), is_async=is_async) as served:
        assert served.statuses(method="OPTIONS") == [200, 200, 429]


@each("keeps", [True, False])
def test_a_decorator_in_between_hides_no_limit(keeps: bool) -> None:
    """A decorator above @limit may keep the function's attributes, as functools.wraps does, or drop them."""

    def plain(view: Any) -> Any:
        def inner(request: Any) -> Any:
            return view(request)

        return functools.wraps(view)(inner) if keeps else inner

    with project(None, path("", plain(limit("1/minute")(hello)))) as served:
        assert served.statuses(times=2) == [200, 429]


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
    ],
)
@both
def test_unusual_kinds_of_views_are_limited(view: Any, is_async: bool) -> None:
    """Partials, callable objects, bound methods and views in Django's own decorators are limited."""
    with project(None, path("", view), is_async=is_async) as served:
        assert served.statuses(times=2) == [200, 429]


def test_parameters_come_from_all_parts_of_a_route() -> None:
    """A limit may use a parameter of a path, a regular expression, an include or the route's extra arguments."""
    view = limit("1/minute", key=["path:town", "path:street", "path:number", "path:kind"])(hello)
    streets = [re_path(r"^(?P<street>[a-z]+)/", include([path("<int:number>", view, {"kind": "house"})]))]
    with project(None, path("<slug:town>/", include(streets))) as served:
        assert [served.ask(f"/rome/appia/{n}").status_code for n in (1, 2, 1)] == [200, 200, 429]


@both
@each("way", [*WAYS, "function", "method"])
def test_a_limit_without_the_middleware_is_an_error(way: str, is_async: bool) -> None:
    """A limited view without the middleware raises an error, in whatever way it was limited."""
    if way == "function":
        limited = limit("1/minute")(hello)
    elif way == "method":
        limited = subclass(Items, get=method_decorator(limit("1/minute"))(Items.get))
    else:
        limited = WAYS[way](Items)
    view = limited.as_view() if isinstance(limited, type) else limited
    nothing = ["django.middleware.common.CommonMiddleware"]
    with project(None, path("", view), is_async=is_async, middleware=nothing) as served:
        if way == "overridden":  # Its own dispatch never calls the limited one.
            assert served.ask().status_code == 200
            return
        assert served.ask().status_code == 500
        with limits_off():
            assert served.ask().status_code == 200


def test_a_decision_does_not_carry_over_to_the_next_request() -> None:
    """A view called directly, after a decided request in the same thread, raises the error about the middleware."""
    view = limit("5/minute")(lambda request: hello(request))
    with project(None, path("", view)) as served:
        assert served.ask().status_code == 200
        with pytest.raises(MissingMiddlewareError):
            view(None)


def test_a_template_view_is_limited() -> None:
    """A view class of Django can be limited in the URLconf."""
    view = limit("1/minute", name="page")(TemplateView.as_view(template_name="page.html"))
    templates = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", {"page.html": "hello"})]},
        }
    ]
    with project(None, path("", view), TEMPLATES=templates) as served:
        assert served.statuses(times=2) == [200, 429]
