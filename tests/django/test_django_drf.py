"""Django REST framework behind the middleware: its kinds of views, and the throttle class."""

from __future__ import annotations

import base64
from typing import Any, ClassVar

import pytest
from django.test import Client
from django.urls import include, path
from django.utils.decorators import method_decorator
from django_calls import hello, one_rule, project
from rest_framework.authentication import BasicAuthentication
from rest_framework.decorators import action, api_view
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.test import APIRequestFactory
from rest_framework.viewsets import ViewSet
from rest_views import ALL, UPLOADS, Items, Uploads, ruled, view_of
from shared_store import SharedStore
from tables import each

from ratelimit_mw import ConfigError, Event, Limiter, Rule
from ratelimit_mw.django import RateLimitMiddleware, limit
from ratelimit_mw.django.drf import Throttle
from ratelimit_mw.errors import MissingMiddlewareError
from ratelimit_mw.testmode import limits_off


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


@each("view", [above, below, limit("1/minute")(view_of()).as_view()])
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


class Login(Items):
    """Checks a password with each request, even with OPTIONS."""

    class Passwords(BasicAuthentication):
        tried: ClassVar[list[str]] = []

        def authenticate_credentials(self, userid: str, password: str, request: Any = None) -> Any:
            self.tried.append(password)
            raise AuthenticationFailed

    authentication_classes = (Passwords,)


@each("is_async", [False, True])
def test_passwords_cannot_be_tried_with_options(is_async: bool) -> None:
    """REST framework authenticates before it responds to OPTIONS: of 50 passwords, 5 are tried at 5/minute."""
    Login.Passwords.tried.clear()
    with project(one_rule("5/minute"), path("", Login.as_view()), is_async=is_async) as served:
        for number in range(50):
            password = base64.b64encode(b"ann:%d" % number).decode()
            served.ask(method="OPTIONS", headers={"authorization": f"Basic {password}"})
    assert len(Login.Passwords.tried) == 5


# -- the throttle ----------------------------------------------------------------------------------------------


def test_a_throttle_decides_rules_of_its_scope() -> None:
    """No other code decides them. Its user is REST framework's, and the costs of the middleware stay consumed."""
    with project(ruled(UPLOADS, ALL), path("", Uploads.as_view()), path("free", Items.as_view())) as served:
        first, second, third = (served.ask(headers={"x-token": "ann"}) for _ in range(3))
        assert first.json() == {"rules": ["all", "uploads"]}
        assert first["ratelimit-policy"] == '"all";q=9;w=60, "uploads";q=2;w=60'
        assert (second["ratelimit"], third.status_code) == ('"all";r=7;t=60, "uploads";r=0;t=60', 429)
        assert (third["retry-after"], third["ratelimit"]) == ("60", '"uploads";r=0;t=60')
        assert "throttled" in third.json()["detail"]
        assert served.statuses() == [200, 200, 429]
        free = served.ask("/free")
        assert (free.json(), free["x-ratelimit-remaining"]) == ({"rules": ["all"]}, "2")


def test_a_view_settles_the_costs_of_both_decisions() -> None:
    """That of the middleware, and that of the throttle."""

    def settle(self: Any, request: Any) -> Response:
        for rule in request.ratelimit.rules:
            request.ratelimit[rule].settle(3)
        return Response({})

    with project(
        ruled({**UPLOADS, "limits": "9/minute"}, ALL), path("", view_of(base=Uploads, post=settle).as_view())
    ) as served:
        served.ask(method="POST")
        assert [d.remaining for d in served.ask().wsgi_request.ratelimit.decisions] == [5, 5]


def test_a_scope_without_a_rule_stops_django() -> None:
    """A throttle whose scope no rule matches stops the start, and the error names the view."""
    by_route = view_of(throttle_scope="uploads").as_view(throttle_classes=[Throttle])
    by_throttle = view_of(type("Few", (Throttle,), {"scope": "uploads"})).as_view()
    for view in (Uploads.as_view(), by_route, by_throttle):
        error = pytest.raises(ConfigError, match=r"the throttle of [\w.]+: no rule .* scope = 'uploads'")
        with project(one_rule(match={"scope": "downloads"}), path("", view)), error:
            RateLimitMiddleware(hello)


def test_a_dynamic_scope_without_a_rule_is_an_error() -> None:
    """A scope that a view sets during the request is checked then. A view without a scope is not checked."""

    def throttles(self: Any) -> list[Throttle]:
        return [type("Late", (Throttle,), {"scope": "uploads"})()]

    late = view_of(get_throttles=throttles).as_view()
    without = view_of(base=Uploads, throttle_scope=None).as_view()
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
    """A throttle can count by endpoint, path parameters and async feature functions, which others do not call."""
    asked: list[str] = []

    async def plan(request: Any) -> str | None:
        asked.append(request.path)
        return request.GET.get("plan")

    uploads = {**UPLOADS, "limits": "1/minute", "key": ["endpoint", "path:pk", "plan"]}
    routes = [path(f"{name}/<int:pk>", Uploads.as_view()) for name in "ab"]
    limits = {"limiter": ruled(uploads, ALL), "features": {"plan": plan}}
    with project(limits, *routes, path("free", Items.as_view())) as served:
        paths = ("/a/1?plan=x", "/a/2?plan=x", "/b/1?plan=x", "/a/1?plan=y", "/a/1?plan=x")
        assert [served.ask(where).status_code for where in paths] == [200, 200, 200, 200, 429]
        assert served.ask("/free").json() == {"rules": ["all"]}
    assert asked == [where.partition("?")[0] for where in paths]


def test_denied_clients_and_store_failures_have_their_own_status() -> None:
    """A denied client gets 403 and has an event, and a store failure gives 503."""
    denying = {"rules": [UPLOADS], "lists": {"deny": {"user": ["bob"]}, "allow": {"user": ["ann"]}}}
    events: list[Event] = []
    with project(Limiter.from_settings(denying, observers=[events.append]), path("", Uploads.as_view())) as served:
        assert served.ask(headers={"x-token": "bob"}).status_code == 403
        assert served.statuses(headers={"x-token": "ann"}) == [200] * 3
    assert [event.outcome for event in events] == ["denied"] + ["allowed"] * 3
    store = SharedStore()
    store.down = True
    rule = Rule(name="uploads", limits="2/minute", match={"scope": "uploads"}, on_store_error="deny")
    with project(Limiter([rule], store), path("", Uploads.as_view())) as served:
        response = served.ask()
        assert (response.status_code, "busy" in response.json()["detail"]) == (503, True)


def test_a_rejection_of_the_throttle_is_not_cached() -> None:
    """The rejection has Cache-Control unless the application sets it. Other responses are unchanged."""

    def set_cache_control(self: Any, request: Any, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = Items.finalize_response(self, request, response, *args, **kwargs)
        response.headers["Cache-Control"] = "private"
        return response

    own = view_of(base=Uploads, finalize_response=set_cache_control)
    for view, expected in ((Uploads, [None, None, "no-store"]), (own, ["private"] * 3)):
        with project(ruled(UPLOADS), path("", view.as_view())) as served:
            assert [served.ask().headers.get("cache-control") for _ in range(3)] == expected
