"""The routes of a project are those of Django's resolver, with one template in all languages."""

from functools import partial, wraps
from typing import Any

import pytest
from calls import http_scope
from django.conf.urls.i18n import i18n_patterns
from django.http import HttpResponse
from django.urls import Resolver404, URLResolver, get_resolver, include, path, re_path
from django.utils.deprecation import MiddlewareMixin
from django.utils.functional import lazy
from django.utils.translation import get_language, override
from django_calls import MIDDLEWARE, hello, one_rule, project, still, urls
from hypothesis import example, given
from hypothesis import strategies as st
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.urlpatterns import format_suffix_patterns
from rest_framework.viewsets import ViewSet
from rest_views import Items
from tables import each

from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.django import limit
from ratelimit_mw.django.routes import URLRoutes, route_template
from ratelimit_mw.django.source import open_source
from ratelimit_mw.keys.features import UNMATCHED

both = each("is_async", [False, True])
LOCALE = ["django.middleware.locale.LocaleMiddleware", *MIDDLEWARE]


def view() -> Any:
    """Return a separate view for each route, so that a test can distinguish them."""
    return lambda request, *args, **kwargs: HttpResponse()


INNER = [
    path("", view()),
    path("<int:pk>/", view()),
    path("<int:pk>/edit", view(), {"mode": "edit"}),
    path("new/", view()),
    re_path(r"^(?P<year>[0-9]{4})/$", view()),
    re_path(r"^(\w+)\.json$", view()),
]
ZOO = urls(
    path("", view()),
    path("items/", include(INNER)),
    path("items/<slug:pk>/", view()),
    path("t/<slug:tenant>/", include([path("items/", include(INNER), {"kind": "inner"}), path("all", view())])),
    path("api", include([path("", view()), path("v1/", view()), path("-docs/<path:rest>", view())])),
    path("about", view()),
    path("about/", view()),
    path("/twice//x/", view()),
    re_path(r"^a/|^b/", view()),
    re_path(r"^new/?", include([path("x", view()), path("/x", view())])),
    re_path(r"^c/{0,1}d$", view()),
    re_path(r"^years/+(?P<year>\d+)", view()),
    re_path(r"^plain/$", view()),
    re_path(r"(?i)^loud/$", view()),
    re_path(r"end/$", view()),
    path("fixed/<slug:mode>", view(), {"mode": "edit"}),
    path("<path:rest>!", view()),
)
SEGMENTS = (
    *("items", "t", "api", "api-docs", "about", "a", "b", "c", "cd", "d", "new", "x", "years", "2024", "7", "edit"),
    *("plain", "loud", "LOUD", "end", "all", "v1", "twice", "tea.json", "a|b", "é", "%2F", "!", "..", "\n"),
)


@given(st.lists(st.sampled_from(["/", "/", "/", "//", "", *SEGMENTS]), max_size=10).map("".join))
@example("fixed/plain")
def test_routes_agree_with_the_resolver_of_django(path: str) -> None:
    """For any path, the view, the parameters and the template are those of Django's own resolver."""
    resolver = get_resolver(ZOO)
    route, params = KNOWN.setdefault("routes", URLRoutes(resolver)).resolve("/" + path, None)
    try:
        match = resolver.resolve("/" + path)
    except Resolver404:
        assert route.destination("GET").endpoint == UNMATCHED
        return
    assert (route.target, params, route.endpoint) == (match.func, match.kwargs, route_template(match.route))


KNOWN: dict[str, URLRoutes] = {}


def test_a_path_is_resolved_once() -> None:
    """Up to 10,000 short paths are remembered, and none without a route: a converter may find it later."""
    asked: list[str] = []
    resolver = get_resolver(urls(path("<slug:page>", view())))

    def resolve(path: str) -> Any:
        asked.append(path)
        return type(resolver).resolve(resolver, path)

    resolver.resolve = resolve
    routes = URLRoutes(resolver)

    def resolved(*paths: str) -> list[str]:
        asked.clear()
        for where in paths:
            if (None, where, "GET") not in routes.cached:
                routes.find(None, where, "GET")
        return [*asked]

    assert resolved("/a", "/a", "/b", "/a") == ["/a", "/b"]
    assert resolved("/no/where", "/no/where") == ["/no/where"] * 2
    assert resolved("/" + "a" * 256, "/" + "a" * 256) == ["/" + "a" * 256] * 2
    assert len(resolved(*(f"/{i}" for i in range(10_000)))) == 10_000
    assert resolved("/9999", "/a") == ["/a"]
    resolver.resolve = get_resolver(urls(path("late/<name>", view()))).resolve
    assert routes.find(None, "/late/a", "GET")[0].endpoint == "/late/{name}"


LANGUAGES = {"LANGUAGES": [("en", "English"), ("de", "Deutsch")], "LANGUAGE_CODE": "en", "USE_I18N": True}


@both
@each("prefixed", [True, False])
def test_a_route_is_one_endpoint_in_all_languages(is_async: bool, prefixed: bool) -> None:
    """Language prefixes and translated routes have one template, so another language does not give a new limit."""
    about = lazy(lambda: {"de": "ueber/"}.get(get_language() or "", "about/"), str)()
    limited = limit("1/minute", key=["endpoint"], name="page")
    routes = i18n_patterns(
        path("items/<int:pk>/", limited(hello)), path(about, hello), prefix_default_language=prefixed
    )
    first = "/en" if prefixed else ""
    with project(
        one_rule("1/minute", key=["endpoint"]), *routes, is_async=is_async, middleware=LOCALE, **LANGUAGES
    ) as served:
        paths = (f"{first}/items/1/", "/de/items/2/", f"{first}/about/", "/de/ueber/")
        assert [served.ask(where).status_code for where in paths] == [200, 429, 200, 429]
        assert served.ask("/de/about/").status_code == 404
        with override("de"):
            assert URLRoutes(get_resolver()).find("de", paths[1], "GET")[0].endpoint == "/{language}/items/{pk}/"
    with project(still(), path(about, limited(hello)), is_async=is_async, middleware=LOCALE, **LANGUAGES) as served:
        sent = (("/about/", "en"), ("/ueber/", "de"))
        codes = [served.ask(where, headers={"accept-language": language}).status_code for where, language in sent]
        assert codes == [200, 429]


@each("prefixed", [True, False])
def test_a_rule_without_language_applies_to_all_languages(prefixed: bool) -> None:
    """Where the default language has no prefix, its path is that of the route. With a prefix it is none."""
    limits = one_rule("1/minute", match={"path": "/{page}"}, unrouted=True)
    other = path("other/a/b", hello)
    routes = i18n_patterns(path("<slug:page>/", hello), prefix_default_language=prefixed)
    with project(limits, other, *routes, middleware=LOCALE, **LANGUAGES) as served:
        first = "/en/in/" if prefixed else "/in/"
        statuses = [served.ask(where).status_code for where in (first, "/de/in/", "/other/a/b")]
        assert statuses == ([200] * 3 if prefixed else [200, 429, 200])


@both
@each(
    ("given", "expected"),
    [
        ({}, [200] * 5),
        ({"USE_X_FORWARDED_HOST": True}, [200, 429, 429, 429, 200]),  # invalid: a client may have written it
        ({"USE_X_FORWARDED_HOST": True, "trusted": ["192.0.2.7"]}, [200, 429, 200, 429, 200]),
    ],
)
def test_the_host_is_that_of_django(is_async: bool, given: dict[str, Any], expected: list[int]) -> None:
    """With ``USE_X_FORWARDED_HOST``, views see the host of the proxy, and rules do."""
    settings: Any = {"rules": [{"limits": "1/day", "match": {"host": "api.example.com"}, "key": []}]}
    settings["trusted_proxies"] = given.get("trusted", [])
    django = {name: value for name, value in given.items() if name.isupper()}
    with project(settings, is_async=is_async, **django) as served:
        hosts = ("API.example.com:443", "api.example.com", "other.example.com", "no host", "testserver")
        sent = [served.ask(headers={"host": "testserver", "x-forwarded-host": host}) for host in hosts]
        assert served.ask(headers={"host": "testserver"}).status_code == 200
        assert [response.status_code for response in sent] == expected


def switching(other: Any) -> Any:
    """Return a middleware that sets the URLconf of each request."""

    class Switching(MiddlewareMixin):
        def process_request(self, request: Any) -> None:
            request.urlconf = other

    return Switching


def test_limits_of_a_urlconf_that_is_set_too_late_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """When an inner middleware switches the URLconf, limits of its decorators are errors, and others are unmatched."""
    other = urls(path("", hello), path("limited", limit("1/minute")(view())))
    monkeypatch.setattr("django_calls.switching", switching(other), raising=False)
    listed = [*MIDDLEWARE, "django_calls.switching"]
    with project(one_rule(key=["endpoint"]), path("<slug:page>", view()), middleware=listed) as served:
        assert served.ask().status_code == 200
        assert served.statuses("/limited", 2) == [500, 500]


@both
def test_views_that_an_agent_wraps_when_they_are_resolved_keep_their_limits(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New Relic's agent wraps each view that the resolver finds, once or twice. It is the same route."""
    resolve = URLResolver.resolve

    def resolve_wrapped(self: Any, path: str) -> Any:
        match = resolve(self, path)
        match.func = wraps(match.func)(partial(match.func))
        return match

    monkeypatch.setattr(URLResolver, "resolve", resolve_wrapped)
    routes = path("", limit("1/minute", name="page")(hello)), path("in/", include([path("", limit("2/hour")(hello))]))
    with project(None, *routes, is_async=is_async) as served:
        assert served.statuses() == [200, 429, 429]
        assert served.statuses("/in/") == [200, 200, 429]


@both
def test_a_urlconf_of_the_request_is_read(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """When an outer middleware sets request.urlconf, the views of that URLconf have their limits, too."""
    other = urls(path("", limit("1/minute", name="other")(hello)))
    monkeypatch.setattr("django_calls.switching", switching(other), raising=False)
    with project(None, is_async=is_async, middleware=["django_calls.switching", *MIDDLEWARE]) as served:
        assert served.statuses(times=2) == [200, 429]


@each(
    ("route", "template"),
    [
        ("", "/"),
        ("items/<int:pk>/", "/items/{pk}/"),
        ("/absolute/<slug>", "/absolute/{slug}"),
        ("plain(1)/<path:rest>", "/plain(1)/{rest}"),
        (r"^articles/(?P<year>[0-9]{4})/(\w+)/$", "/articles/{year}/{0}/"),
        (r"v<int:v>/^x\.(?P<kind>json|xml)\Z", "/v{v}/x.{kind}"),
        (r"^(?:a|b)/(?P<x>(one|two)+)/([^/)]+)/?$", "/a|b/{x}/{0}/"),
        (r"^blog/(page-(\d+)/)?(\d+)$", "/blog/{0}{1}"),
        (r"^items/[0-9]{2,}/(?=x)(?P<slug>[-\w\]]+)$", "/items/[0-9]/{slug}"),
        (r"^\d+-\(\w\)[^", r"/\d-(\w)[^"),
        (r"^(?i:a)(?s-m:b)(?i)c(?=d)(?P<x>e)$", "/abc{x}"),
    ],
)
def test_routes_become_templates(route: str, template: str) -> None:
    """Templates keep the parameter names of converters and regular expressions, and the patterns around them."""
    assert route_template(route) == template


EXPRESSIONS = [
    (re_path("^login$", hello), ["/login", "/login%0A"]),
    (re_path("^log(?:in|on)$", hello), ["/login", "/login%0A"]),
    (re_path("^(?i:login)/?$", hello), ["/login", "/LOGIN", "/Login/"]),
    (re_path("^(?i:log(?:in|on))$", hello), ["/login", "/LOGIN"]),
    (re_path("^", include([re_path(r"^(?P<what>\w+)$", hello)])), ["/login", "/login%0A"]),
    (path("<str:what>", hello), ["/login", "/login%0A"]),
]


@each(("route", "spellings"), EXPRESSIONS)
def test_a_rule_holds_for_every_path_of_an_expression(route: Any, spellings: list[str]) -> None:
    """An expression may accept any case. A line feed after the path counts, whether a route accepts it or not."""
    with project(one_rule("1/minute", key=[], match={"path": "/login"}), route) as site:
        assert site.ask(spellings[0]).status_code == 200
        assert [site.ask(where).status_code for where in spellings] == [429] * len(spellings)


# -- format suffixes of REST framework -------------------------------------------------------------------------


class Users(ViewSet):
    def list(self, request: Any, **_: Any) -> Response:
        return Response([])

    def retrieve(self, request: Any, **_: Any) -> Response:
        return Response({})


def suffixed(how: str) -> list[Any]:
    """Return the URLs of a view with format suffixes, under "/users" and "/users/7"."""
    view = Items.as_view()
    if how == "router":
        router = DefaultRouter()
        router.register("users", Users, basename="user")
        return router.urls
    if how == "regex":
        return format_suffix_patterns(
            [re_path("^users$", view), re_path(r"^users/(?P<pk>\w+)$", view)], allowed=["json"]
        )
    allowed = ["json", "api"] if how == "allowed" else None
    return format_suffix_patterns([path("users", view), path("users/<slug:pk>", view)], allowed=allowed)


WAYS = each("how", ["router", "regex", "path", "allowed"])
END = {"router": "/"}


@WAYS
@each("key", [["ip"], ["path", "ip"], ["endpoint", "ip"]])
def test_a_rule_by_path_includes_format_suffixes(how: str, key: list[str]) -> None:
    with project(one_rule(key=key, match={"path": "/api/users"}), path("api/", include(suffixed(how)))) as site:
        end = END.get(how, "")
        statuses = [site.ask(f"/api/users{tail}").status_code for tail in (end, ".json", ".json/", end)]
        assert (statuses[0], statuses[2:]) == (200, [429, 429])
        if key[0] == "path":  # the command shows the key that the request is counted under
            source = open_source("")
            assert source is not None
            given = source.route(ASGIRequest(http_scope(path="/api/users.json")))
            assert given["path"].rstrip("/") == "/api/users"


@WAYS
@each("pattern", ["/en/users", "/en/users/", "/*/users"])
def test_a_rule_by_a_language_includes_format_suffixes(how: str, pattern: str) -> None:
    patterns = i18n_patterns(path("", include(suffixed(how))))
    languages = {"USE_I18N": True, "middleware": ["django.middleware.locale.LocaleMiddleware", *MIDDLEWARE]}
    with project(one_rule(limits="1/minute", match={"path": pattern}), *patterns, **languages) as site:
        site.ask("/en/users.json/")
        assert site.ask("/en/users.json").status_code == 429


@WAYS
def test_a_parameter_in_the_path_has_no_format_suffix(how: str) -> None:
    """A key by a part of the path is one client with and without a format suffix."""
    rule = {"key": ["path:id"], "match": {"path": "/users/{id}"}}
    with project(one_rule(limits="1/minute", **rule), path("", include(suffixed(how)))) as site:
        assert site.ask(f"/users/7{END.get(how, '')}").status_code != 429
        assert site.ask("/users/7.json").status_code == 429
        assert site.ask("/users/8.json").status_code != 429
        assert site.ask("/users/8.json/").status_code == 429


@WAYS
def test_an_exempt_path_includes_no_format_suffixes(how: str) -> None:
    settings = {"rules": [{"limits": "1/minute"}], "exempt": ["/users"]}
    with project(still(settings), path("", include(suffixed(how)))) as site:
        assert site.statuses("/users.json", 2)[-1] == 429


@each(
    "patterns",
    [
        [path("users", hello), path("users<str:rest>", hello)],
        [path("users", hello), path("users.<str:rest>", still)],
        [path("", hello), path("<str:rest>", hello)],
        [path("us", hello), path("users.json", hello)],
    ],
)
def test_other_routes_that_start_alike_have_their_own_paths(patterns: list[Any]) -> None:
    """A parameter that does not begin with a dot, or has another view, is no format suffix."""
    routes = URLRoutes(get_resolver(urls(*patterns)))
    assert [route.to.suffix for route in routes.all] == ["", ""]
