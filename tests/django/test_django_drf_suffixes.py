"""A rule by path includes the paths of the same route with a format suffix of REST framework."""

from __future__ import annotations

from typing import Any

from calls import http_scope
from django.conf.urls.i18n import i18n_patterns
from django.urls import get_resolver, include, path, re_path
from django_calls import MIDDLEWARE, hello, one_rule, project, still, urls
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.urlpatterns import format_suffix_patterns
from rest_framework.viewsets import ViewSet
from rest_views import Items
from tables import each

from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.django.routes import URLRoutes
from ratelimit_mw.django.source import DjangoSource


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
    """A limit on the path of a route is one limit with that of the same route with a format suffix."""
    with project(one_rule(key=key, match={"path": "/api/users"}), path("api/", include(suffixed(how)))) as site:
        end = END.get(how, "")
        statuses = [site.ask(f"/api/users{tail}").status_code for tail in (end, ".json", ".json/", end)]
        assert (statuses[0], statuses[2:]) == (200, [429, 429])
        if key[0] == "path":  # the command shows the key that the request is counted under
            routed = DjangoSource("").route(ASGIRequest(http_scope(path="/api/users.json")))
            assert routed.features["path"].rstrip("/") == "/api/users"


@WAYS
@each("pattern", ["/en/users", "/en/users/", "/*/users"])
def test_a_rule_by_a_language_includes_format_suffixes(how: str, pattern: str) -> None:
    """A limit on the path of one language includes the format suffixes of its routes."""
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
def test_lists_by_path_and_format_suffixes(how: str) -> None:
    """A deny list of a path includes its format suffixes, and an exempt path does not."""
    for given, expected in (({"lists": {"deny": {"path": ["/users"]}}}, 403), ({"exempt": ["/users"]}, 429)):
        with project(still({"rules": [{"limits": "1/minute"}], **given}), path("", include(suffixed(how)))) as site:
            assert site.statuses("/users.json", 2)[-1] == expected


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
    assert [route.suffix for route in routes.all] == ["", ""]
