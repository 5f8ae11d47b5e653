"""Django REST framework behind the middleware: its kinds of views, and the throttle class."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from calls import http_scope
from django.conf.urls.i18n import i18n_patterns
from django.test import Client
from django.urls import get_resolver, include, path, re_path
from django.utils.decorators import method_decorator
from django_calls import MIDDLEWARE, hello, one_rule, project, still, urls
from shared_store import SharedStore
from tables import each

from ratelimit_mw import ConfigError, Event, Limiter, Rule
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.django import RateLimitMiddleware, limit
from ratelimit_mw.django.drf import Throttle
from ratelimit_mw.django.routes import URLRoutes
from ratelimit_mw.django.source import DjangoSource
from ratelimit_mw.errors import MissingMiddlewareError
from ratelimit_mw.testmode import limits_off

# REST framework reads Django's settings on import. The import of django_calls configures them.
from rest_framework.authentication import BaseAuthentication, BasicAuthentication  # isort: skip
from rest_framework.decorators import action, api_view, throttle_classes  # isort: skip
from rest_framework.exceptions import AuthenticationFailed  # isort: skip
from rest_framework.response import Response  # isort: skip
from rest_framework.routers import DefaultRouter, SimpleRouter  # isort: skip
from rest_framework.test import APIRequestFactory  # isort: skip
from rest_framework.throttling import BaseThrottle  # isort: skip
from rest_framework.urlpatterns import format_suffix_patterns  # isort: skip
from rest_framework.views import APIView  # isort: skip
from rest_framework.viewsets import ViewSet  # isort: skip


class Items(APIView):
    permission_classes = ()

    def get(self, request: Any, **_: Any) -> Response:
        return Response({"rules": request.ratelimit.rules})

    def post(self, request: Any) -> Response:
        for rule in request.ratelimit.rules:
            request.ratelimit[rule].settle(3)
        return Response({}, status=int(request.data.get("status", 200)))


class Login(APIView):
    """Checks a password with each request, even with OPTIONS."""

    class Passwords(BasicAuthentication):
        tried: ClassVar[list[str]] = []

        def authenticate_credentials(self, userid: str, password: str, request: Any = None) -> Any:
            self.tried.append(password)
            raise AuthenticationFailed

    authentication_classes = (Passwords,)
    permission_classes = ()

    def post(self, request: Any) -> Response:
        return Response({})


class Things(ViewSet):
    @limit("1/minute", name="list")
    def list(self, request: Any) -> Response:
        return Response([])

    @method_decorator(limit("2/minute", name="create"))
    def create(self, request: Any) -> Response:
        return Response({})

    @action(detail=False, methods=["get"])
    @limit("1/minute", name="extra")
    def extra(self, request: Any) -> Response:
        return Response({})

    @action(detail=False)
    def free(self, request: Any) -> Response:
        return Response({})


@limit("1/minute")
@api_view(["GET", "POST"])
def above(request: Any) -> Response:
    return Response({})


@api_view(["GET", "POST"])
@limit("1/minute")
def below(request: Any) -> Response:
    return Response({})


@each("view", [above, below, limit("1/minute")(type("Limited", (Items,), {})).as_view()])
@each("is_async", [False, True])
def test_views_of_all_kinds_are_limited(view: Any, is_async: bool) -> None:
    """@limit above @api_view, below it, and on a class, for every method of the view."""
    with project(None, path("", view), is_async=is_async) as served:
        assert [served.ask().status_code, served.ask(method="POST").status_code] == [200, 429]


def test_actions_of_a_view_set_have_their_own_limits() -> None:
    """A limit on an action of a view set holds only for the routes of that action."""
    router = SimpleRouter()
    router.register("things", Things, basename="thing")
    with project(None, path("", include(router.urls))) as served:
        assert served.statuses("/things/", 2) == [200, 429]
        assert served.statuses("/things/", method="POST") == [200, 200, 429]
        assert served.statuses("/things/extra/", 2) == [200, 429]
        assert served.statuses("/things/free/") == [200] * 3


class Uploads(Items):
    throttle_classes = (Throttle,)
    throttle_scope = "uploads"


UPLOADS = {"name": "uploads", "limits": "2/minute", "match": {"scope": "uploads"}, "key": ["user|ip"]}
ALL = {"name": "all", "limits": "9/minute"}
PATHS = (path("a/<int:pk>", Uploads.as_view()), path("b/<int:pk>", Uploads.as_view()))


class Open(BaseThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        return True


def test_other_throttles_are_left_alone() -> None:
    """A view may have several throttles, and some of them may come from other packages."""
    view = type("Mixed", (Uploads,), {"throttle_classes": (Open, Throttle)}).as_view()
    with project(still({"rules": [UPLOADS]}), path("", view)) as served:
        assert served.statuses() == [200, 200, 429]


def test_a_throttle_decides_rules_of_its_scope() -> None:
    """The throttle of a view decides the rules that match its scope. No other code decides them."""
    with project(
        still({"rules": [UPLOADS, ALL]}), path("", Uploads.as_view()), path("free", Items.as_view())
    ) as served:
        first, second, third = (served.ask() for _ in range(3))
        assert first.json() == {"rules": ["all", "uploads"]}
        assert first["ratelimit-policy"] == '"all";q=9;w=60, "uploads";q=2;w=60'
        assert (second["ratelimit"], third.status_code) == ('"all";r=7;t=60, "uploads";r=0;t=60', 429)
        assert (third["retry-after"], third["ratelimit"]) == ("60", '"uploads";r=0;t=60')
        assert "throttled" in third.json()["detail"]
        assert served.ask("/free").json() == {"rules": ["all"]}


def test_a_rejection_of_the_throttle_keeps_the_first_decision() -> None:
    """When the throttle rejects a request, it has been authenticated: the cost of the middleware stays consumed."""
    with project(
        still({"rules": [UPLOADS, ALL]}), path("", Uploads.as_view()), path("free", Items.as_view())
    ) as served:
        assert served.statuses(times=6) == [200, 200, 429, 429, 429, 429]
        assert served.ask("/free")["x-ratelimit-remaining"] == "2"


def test_several_throttles_are_all_or_nothing() -> None:
    """When one of two throttles rejects, the other consumes nothing, in either order."""
    few = type("Few", (Throttle,), {"scope": "few"})
    rules = {"rules": [UPLOADS, {"name": "few", "limits": "1/minute", "match": {"scope": ["few", "rare"]}}]}
    for classes in ((few, Throttle), (Throttle, few)):
        view = type("Both", (Uploads,), {"throttle_classes": classes}).as_view()
        with project(still(rules), path("", view), path("one", Uploads.as_view())) as served:
            assert served.statuses(times=3) == [200, 429, 429]
            assert served.ask("/one")["x-ratelimit-remaining"] == "0"
            assert served.ask("/one").status_code == 429


class Tokens(BaseAuthentication):
    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("x-token")
        return (SimpleNamespace(pk=name, is_authenticated=True), None) if name else None


def test_a_throttle_knows_the_user_of_the_framework() -> None:
    """The user of a throttle is REST framework's user, which the middleware cannot know. Others count by IP address."""
    view = type("Authenticated", (Uploads,), {"authentication_classes": (Tokens,)}).as_view()
    with project(still({"rules": [{**UPLOADS, "limits": "1/minute"}]}), path("", view)) as served:
        requests = [{"x-token": "ann"}, {"x-token": "bob"}, {}, {"x-token": "ann"}, {}]
        assert [served.ask(headers=headers).status_code for headers in requests] == [200, 200, 200, 429, 429]


def test_a_view_settles_the_costs_of_both_decisions() -> None:
    """That of the middleware, and that of the throttle."""
    rules = {"rules": [{**UPLOADS, "limits": "9/minute"}, ALL]}
    with project(still(rules), path("", Uploads.as_view())) as served:
        served.ask(method="POST", data="{}", content_type="application/json")
        assert [d.remaining for d in served.ask().wsgi_request.ratelimit.decisions] == [5, 5]


def test_a_scope_without_a_rule_stops_django() -> None:
    """A throttle whose scope no rule matches stops the start, and the error names the view."""
    by_route = type("Scoped", (Items,), {"throttle_scope": "uploads"}).as_view(throttle_classes=[Throttle])
    by_throttle = type("Own", (Items,), {"throttle_classes": (type("Few", (Throttle,), {"scope": "uploads"}),)})
    for view in (Uploads.as_view(), by_route, by_throttle.as_view()):
        error = pytest.raises(ConfigError, match=r"the throttle of [\w.]+: no rule .* scope = 'uploads'")
        with project(one_rule(match={"scope": "downloads"}), path("", view)), error:
            RateLimitMiddleware(hello)


def test_a_dynamic_scope_without_a_rule_is_an_error() -> None:
    """A scope that a view sets during the request is checked then. A view without a scope is not checked."""

    def throttles(self: Any) -> list[Throttle]:
        return [type("Late", (Throttle,), {"scope": "uploads"})()]

    late = type("Late", (Items,), {"get_throttles": throttles}).as_view()
    without = type("Without", (Uploads,), {"throttle_scope": None}).as_view()
    with project(one_rule(match={"scope": "downloads"}), path("", late), path("without", without)) as served:
        assert (served.ask().status_code, served.ask("/without").status_code) == (500, 200)


def test_a_throttle_without_the_middleware_is_an_error() -> None:
    """The throttle raises an error, unless limits are off."""
    others = ["django.middleware.common.CommonMiddleware"]
    rule = one_rule(match={"scope": "uploads"}, unrouted=True)
    with project(rule, path("", Uploads.as_view()), middleware=others):
        with pytest.raises(MissingMiddlewareError, match="Uploads"):
            Client().get("/")
        with limits_off():
            assert Throttle().allow_request(APIRequestFactory().get("/"), Uploads())


def test_a_throttle_counts_by_features_of_the_middleware() -> None:
    """A throttle can count by endpoint, path parameters and async feature functions."""

    async def plan(request: Any) -> str | None:
        return request.GET.get("plan")

    uploads = {**UPLOADS, "limits": "1/minute", "key": ["endpoint", "path:pk", "plan"]}
    with project({"limiter": still({"rules": [uploads]}), "features": {"plan": plan}}, *PATHS) as served:
        paths = ("/a/1?plan=x", "/a/2?plan=x", "/b/1?plan=x", "/a/1?plan=y", "/a/1?plan=x")
        assert [served.ask(where).status_code for where in paths] == [200, 200, 200, 200, 429]


def test_denied_clients_and_store_failures_have_their_own_status() -> None:
    """A denied client gets 403 and has an event, and a store failure gives 503."""
    view = type("Authenticated", (Uploads,), {"authentication_classes": (Tokens,)}).as_view()
    denying = {"rules": [UPLOADS], "lists": {"deny": {"user": ["bob"]}, "allow": {"user": ["ann"]}}}
    events: list[Event] = []
    with project(Limiter.from_settings(denying, observers=[events.append]), path("", view)) as served:
        assert served.ask(headers={"x-token": "bob"}).status_code == 403
        assert served.statuses(headers={"x-token": "ann"}) == [200] * 3
    assert [event.outcome for event in events] == ["denied"] + ["allowed"] * 3
    store = SharedStore()
    store.down = True
    rule = Rule(name="uploads", limits="2/minute", match={"scope": "uploads"}, on_store_error="deny")
    with project(Limiter([rule], store), path("", view)) as served:
        response = served.ask()
        assert (response.status_code, "busy" in response.json()["detail"]) == (503, True)


def test_the_middleware_ignores_rules_of_throttles() -> None:
    """The middleware does not read features of throttle rules for requests without a throttle."""

    def read_plan(request: Any) -> None:
        raise AssertionError

    rules = still({"rules": [{**UPLOADS, "key": ["plan"]}, ALL]})
    with project({"limiter": rules, "features": {"plan": read_plan}}, path("", Items.as_view())) as served:
        assert served.ask().json() == {"rules": ["all"]}


def test_a_throttled_function_view() -> None:
    """@throttle_classes works with @api_view, and the scope is on a subclass."""

    @api_view(["GET"])
    @throttle_classes([type("Few", (Throttle,), {"scope": "uploads"})])
    def view(request: Any) -> Response:
        return Response({})

    with project(still({"rules": [UPLOADS]}), path("", view)) as served:
        assert served.statuses() == [200, 200, 429]


def test_a_rejection_of_the_throttle_is_not_cached() -> None:
    """The rejection has Cache-Control unless the application sets it. Other responses are unchanged."""

    def set_cache_control(self: Any, request: Any, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = Items.finalize_response(self, request, response, *args, **kwargs)
        response.headers["Cache-Control"] = "private"
        return response

    own = type("Telling", (Uploads,), {"finalize_response": set_cache_control}).as_view()
    for view, expected in ((Uploads.as_view(), [None, None, "no-store"]), (own, ["private"] * 3)):
        with project(still({"rules": [UPLOADS]}), path("", view)) as served:
            assert [served.ask().headers.get("cache-control") for _ in range(3)] == expected


@each("is_async", [False, True])
def test_passwords_cannot_be_tried_with_options(is_async: bool) -> None:
    """REST framework authenticates before it responds to OPTIONS: of 50 passwords, 5 are tried at 5/minute."""
    Login.Passwords.tried.clear()
    with project(one_rule("5/minute"), path("", Login.as_view()), is_async=is_async) as served:
        for number in range(50):
            password = base64.b64encode(b"ann:%d" % number).decode()
            served.ask(method="OPTIONS", headers={"authorization": f"Basic {password}"})
    assert len(Login.Passwords.tried) == 5


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
        rules = {"rules": [{"limits": "1/minute"}], **given}
        with project(still(rules), path("", include(suffixed(how)))) as site:
            site.ask("/users.json")
            assert site.ask("/users.json").status_code == expected


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


@WAYS
def test_explain_shows_the_path_without_a_format_suffix(how: str) -> None:
    """The key that the command shows is the key that the request is counted under."""
    with project(one_rule(key=["path"], match={"path": "/users"}), path("", include(suffixed(how)))):
        routed = DjangoSource("").route(ASGIRequest(http_scope(path="/users.json")))
        assert routed.features["path"].rstrip("/") == "/users"
