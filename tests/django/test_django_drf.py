"""Django REST framework behind the middleware: its kinds of views, and the throttle class."""

import base64
import json
import pickle
import sys
from typing import Any, ClassVar

import pytest
from django.test import Client
from django.urls import include, path
from django.utils.decorators import method_decorator
from django_calls import command, hello, one_rule, project, run
from rest_framework.authentication import BasicAuthentication
from rest_framework.decorators import action, api_view, throttle_classes
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.parsers import BaseParser, FormParser, MultiPartParser
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.test import APIRequestFactory
from rest_framework.viewsets import ViewSet
from rest_views import ALL, BODIES, UPLOADS, Items, Uploads, ruled, statuses_of, view_of
from shared_store import SharedStore
from tables import each

from ratelimit_mw import ConfigError, Event, Limiter, RateLimitExceeded, Rule
from ratelimit_mw.django import RateLimitMiddleware, check, exempt, limit
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


def test_a_scope_without_a_rule_stops_django() -> None:
    """A throttle whose scope no rule matches stops the start, and the error names the view. A key has no scope."""
    by_route = view_of(throttle_scope="uploads").as_view(throttle_classes=[Throttle])
    by_throttle = view_of(type("Few", (Throttle,), {"scope": "uploads"})).as_view()
    for view in (Uploads.as_view(), by_route, by_throttle):
        error = pytest.raises(ConfigError, match=r"the throttle of [\w.]+: no rule .* scope = 'uploads'")
        with project(one_rule(match={"scope": "downloads"}), path("", view)), error:
            RateLimitMiddleware(hello)
    of_default = view_of(Throttle, throttle_scope="user").as_view()  # by default, its rate in REST framework is None
    with project(ruled(ALL), path("", of_default)), pytest.raises(ConfigError, match=r"no rule .* scope = 'user' "):
        RateLimitMiddleware(hello)
    by_scope = {**UPLOADS, "key": ["scope", "ip"]}
    with project(ruled(by_scope)), pytest.raises(ConfigError, match="'uploads': key: a scope is no part of a key"):
        RateLimitMiddleware(hello)


def test_a_dynamic_scope_without_a_rule_is_an_error() -> None:
    """A scope that a view sets during the request is checked then. A view without a scope is not checked."""

    def throttles(self: Any) -> list[Throttle]:
        return [type("Late", (Throttle,), {"scope": "uploads"})()]

    late = view_of(get_throttles=throttles).as_view()
    without = view_of(base=Uploads, throttle_scope=None).as_view()
    rule, views = {"match": {"scope": "downloads"}}, (path("", late), path("without", without))
    with project(one_rule(**rule), *views), pytest.raises(ConfigError, match=r"no throttle .* scope 'downloads'\. Add"):
        RateLimitMiddleware(hello)
    with project(one_rule(**rule, unrouted=True), *views) as served:
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
    """A denied or banned client gets 403 and has an event, and a store failure gives 503."""
    denying = {"rules": [UPLOADS], "lists": {"deny": {"user": ["bob"]}, "allow": {"user": ["ann"]}}}
    events: list[Event] = []
    with project(Limiter.from_settings(denying, observers=[events.append]), path("", Uploads.as_view())) as served:
        assert served.ask(headers={"x-token": "bob"}).status_code == 403
        assert served.statuses(headers={"x-token": "ann"}) == [200] * 3
    assert [event.outcome for event in events] == ["denied"] + ["allowed"] * 3
    banning = ruled(UPLOADS)
    banning.clients.ban(None, {"user": "eve"}, "1h")
    with project(banning, path("", Uploads.as_view())) as served:
        response = served.ask(headers={"x-token": "eve"})
        assert (response.status_code, response.headers["retry-after"]) == (403, "3600")
        assert response.json()["detail"].endswith("this action.")
    store = SharedStore()
    store.down = True
    rule = Rule(name="uploads", limits="2/minute", match={"scope": "uploads"}, on_store_error="deny")
    with project(Limiter([rule], store), path("", Uploads.as_view())) as served:
        response = served.ask()
        assert (response.status_code, "busy" in response.json()["detail"]) == (503, True)


# -- exempt ----------------------------------------------------------------------------------------------------

PARTLY = view_of(base=Uploads, get=exempt(Uploads.get)).as_view()
NAMED = exempt("uploads")(view_of(base=Uploads)).as_view()
OTHER = exempt("all")(view_of(base=Uploads)).as_view()


@api_view(["GET", "POST"])
@throttle_classes([type("Few", (Throttle,), {"scope": "uploads"})])
@exempt("uploads")
def exempted(request: Any) -> Response:
    return Response({})


class Actions(ViewSet):
    throttle_classes = (Throttle,)
    throttle_scope = "uploads"

    @exempt("uploads")
    def list(self, request: Any) -> Response:
        return Response({})

    def create(self, request: Any) -> Response:
        return Response({})


BY_ACTION = Actions.as_view({"get": "list", "post": "create"})


@each("is_async", [False, True])
@each("view", [exempt(Uploads.as_view()), NAMED, PARTLY, exempted, BY_ACTION])
def test_an_exempt_view_is_exempt_from_its_throttle(view: Any, is_async: bool) -> None:
    """@exempt by name or from all rules, on a view, class, method, action or function, applies to the throttle."""
    with project(ruled(UPLOADS), path("", view), is_async=is_async) as served:
        response = served.ask()
        assert (response.has_header("ratelimit"), served.statuses()) == (False, [200] * 3)


@each("view", [PARTLY, BY_ACTION, OTHER])
def test_an_exemption_of_another_method_or_rule_leaves_the_throttle(view: Any) -> None:
    """The throttle still applies to other methods and other rules."""
    with project(ruled(UPLOADS, ALL), path("", view)) as served:
        assert served.statuses(method="POST") == [200, 200, 429]


def test_a_deny_list_takes_precedence_over_an_exemption_from_a_throttle() -> None:
    """A client on a deny list that only the throttle can read is rejected by an exempt view, too."""
    view = exempt(view_of(base=Uploads)).as_view()
    with project(ruled(UPLOADS, lists={"deny": {"user": ["bob"]}}), path("", view)) as served:
        assert [served.ask(headers={"x-token": token}).status_code for token in ("bob", "ann")] == [403, 200]


def test_explain_agrees_with_the_throttle() -> None:
    """The command and the throttle agree on which views are exempt."""
    with project(ruled(UPLOADS, ALL), path("", PARTLY)):
        result, lines = command("explain", "GET", "/"), run("explain", "POST", "/")
        assert "uploads feature: scope is other, not uploads" in run("explain", "POST", "/", "--feature", "scope=other")
    assert (result.exit_code, "no rule limits this request" in result.stderr) == (1, True)
    assert "uploads the view is exempt" in " ".join(result.stdout.split())
    assert "uploads ip=unknown 2/minute sliding-window enforce 1" in lines


# -- check in views --------------------------------------------------------------------------------------------

POST = {"name": "post", "limits": "2/minute", "key": ["user|ip"], "match": {"view": ""}}


def checking(self: Any, request: Any) -> Response:
    """The method of a view, which may read the data before the check."""
    if "early" in request.query_params:
        assert request.data["name"] in ("ann", "bob")
    check(request, "post")
    return Response({})


def test_a_rejection_by_check_is_a_429_of_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejection in a view of REST framework has the form of its errors: the exception handler responds.

    Where the project does not load the framework, the error is that of this package.
    """
    errors: list[Any] = []

    def handle_exception(self: Any, error: Any) -> Any:
        errors.append(error)
        return Items.handle_exception(self, error)

    view = view_of(get=checking, handle_exception=handle_exception).as_view()
    with project(ruled(POST, lists={"deny": {"header:x-bad": ["1"]}}), path("", view)) as served:
        *allowed, rejected = (served.ask() for _ in range(3))
        assert [response.status_code for response in (*allowed, rejected)] == [200, 200, 429]
        assert str(rejected.data["detail"]) == "Request was throttled. Expected available in 60 seconds."
        assert (rejected["retry-after"], rejected["ratelimit"]) == ("60", '"post";r=0;t=60')
        assert (allowed[0].headers.get("cache-control"), rejected["cache-control"]) == (None, "no-store")
        assert isinstance(errors[0], Throttled)
        assert (type(errors[0].wait), errors[0].wait) == (int, 60)  # REST framework rounds down
        assert isinstance(errors[0], RateLimitExceeded)
        again = pickle.loads(pickle.dumps(errors[0]))
        assert (type(again), str(again), again.wait) == (type(errors[0]), str(errors[0]), errors[0].wait)
        assert served.ask(headers={"x-bad": "1"}).status_code == 403
        monkeypatch.delitem(sys.modules, "rest_framework.views")
        assert (served.ask().status_code, type(errors[-1])) == (429, RateLimitExceeded)


def test_an_unavailable_store_is_a_503_of_the_framework() -> None:
    """A rule with ``on_store_error = "deny"``."""
    store = SharedStore()
    store.down = True
    rule = Rule(name="post", limits="2/minute", match={"view": ""}, on_store_error="deny")
    with project(Limiter([rule], store), path("", view_of(get=checking).as_view())) as served:
        assert served.ask().status_code == 503


class Lines(BaseParser):
    """A parser that reads the stream, as those of other packages do."""

    media_type = "application/x-lines"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return dict(line.split("=") for line in stream.read().decode().splitlines())


class FastJSON(Lines):
    media_type = "application/json"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return json.loads(stream.read())


PARSERS = (Lines, FastJSON, FormParser, MultiPartParser)


def test_a_field_is_found_after_rest_framework_has_parsed_the_body() -> None:
    """A client has one count for all kinds of bodies, where the parser has consumed the stream, too.

    A body that is not parsed is invalid there.
    """
    view = view_of(post=checking, parser_classes=PARSERS).as_view()
    lines = ("application/x-lines", b"name=ann\n")
    with project(ruled({**POST, "key": ["field:name"]}), path("", view)) as served:
        for name in (b"ann", b"bob"):
            sent = [(kind, body.replace(b"ann", name)) for kind, body in (lines, *BODIES)]
            assert statuses_of(served, sent, "/?early") == [200, 200, 429, 429]
        assert statuses_of(served, [lines] * 3) == [200, 200, 429]  # of all bodies that cannot be read


def test_a_throttle_reads_a_field_before_and_after_the_data() -> None:
    """An authentication may read the data first. A throttle of a scope counts the same field."""

    def perform_authentication(self: Any, request: Any) -> None:
        if "early" in request.query_params:
            assert request.data

    view = view_of(base=Uploads, perform_authentication=perform_authentication, parser_classes=PARSERS).as_view()
    for where in ("/", "/?early"):
        with project(ruled({**UPLOADS, "key": ["field:name"]}), path("", view)) as served:
            assert statuses_of(served, BODIES, where) == [200, 200, 429]
