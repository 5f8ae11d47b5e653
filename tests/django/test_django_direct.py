"""Views that a test calls directly, with a request of a factory and without the middleware."""

from __future__ import annotations

import asyncio
import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django_calls import hello, one_rule, project, still
from override_stores import Recording
from servers import wait_for
from shared_store import SharedStore

from ratelimit_mw import Limiter, MissingMiddlewareError, RateLimitExceeded, Rule, load_settings
from ratelimit_mw.django import acheck, check, limit, usage
from ratelimit_mw.django.drf import ScopedRateThrottle, Throttle, UserRateThrottle
from ratelimit_mw.testing import limits_off

# REST framework and Django's users read the settings on import. The import of django_calls configures them.
from django.contrib.auth.models import AnonymousUser  # isort: skip
from rest_framework.decorators import api_view  # isort: skip
from rest_framework.exceptions import Throttled  # isort: skip
from rest_framework.parsers import BaseParser, FormParser  # isort: skip
from rest_framework.response import Response  # isort: skip
from rest_framework.test import APIRequestFactory, force_authenticate  # isort: skip
from rest_framework.views import APIView  # isort: skip

POST = {"name": "post", "limits": "2/minute", "key": ["user|ip"], "match": {"view": ""}}
UPLOADS = {"name": "uploads", "limits": "2/minute", "key": ["user|ip"], "match": {"scope": "uploads"}}
RATES = {"REST_FRAMEWORK": {"DEFAULT_THROTTLE_RATES": {"user": "2/min", "up": "2/min"}}}
ANN, BOB = (SimpleNamespace(pk=name, is_authenticated=True) for name in ("ann", "bob"))


class Plain(APIView):
    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Any) -> Response:
        return Response({"user": getattr(request.user, "pk", None)})

    def post(self, request: Any) -> Response:
        return Response(request.data)


def statuses(view: Any, times: int = 3, user: Any = None, request: Any = None) -> list[int]:
    """Call a view with requests of REST framework's factory, or several times with one request."""
    codes = []
    for _ in range(times):
        each = request or APIRequestFactory().get("/")
        force_authenticate(each, user)
        codes.append(view(each).status_code)
    return codes


@pytest.mark.parametrize(
    ("throttle", "more"),
    [(UserRateThrottle, {}), (ScopedRateThrottle, {"throttle_scope": "up"}), (Throttle, {"throttle_scope": "uploads"})],
)
def test_throttles_limit_requests_of_a_factory(throttle: type, more: dict[str, Any]) -> None:
    """A test calls the view itself. The forced user is the key, and a rejection is the response of REST framework."""
    view = type("View", (Plain,), {"throttle_classes": (throttle,), **more}).as_view()
    with project(still({"rules": [UPLOADS]}), **RATES):
        assert [statuses(view, user=user) for user in (ANN, BOB, None)] == [[200, 200, 429]] * 3
        request = APIRequestFactory().get("/")
        force_authenticate(request, SimpleNamespace(pk="cid", is_authenticated=True))
        responses = [view(request) for _ in range(4)]  # one request, several times
        assert [response.status_code for response in responses] == [200, 200, 429, 429]
        assert responses[3]["retry-after"] == "60"
        assert request.ratelimit.rejected_by
        with limits_off():
            assert statuses(view, user=ANN) == [200] * 3


def test_throttles_without_the_middleware_apply_the_changes_of_other_processes() -> None:
    """Their first decision knows the overrides, and they look for later ones."""
    store = Recording()
    rule = {"name": "uploads", "limits": "1000000/hour", "key": ["ip"], "match": {"scope": "uploads"}}
    options = load_settings({"rules": [rule], "reload_interval": "1ms"})
    client, views = {"ip": "127.0.0.1"}, {"throttle_classes": (Throttle,), "throttle_scope": "uploads"}
    view = type("View", (Plain,), views).as_view()

    def limits_after(limits: str) -> int:
        """Change the limits in another process. Return the status of the next request."""
        other = Recording()
        other.states = store.states
        Limiter(options.rules, other, settings=options).set_override("uploads", client, limits)
        return statuses(view, 1)[0]

    with project(Limiter(options.rules, store, settings=options)):
        assert limits_after("1/day") == 200
        wait_for(lambda: statuses(view, 1) == [429], "the limit of the override")
        assert limits_after("1000000/day") in (200, 429)
        wait_for(lambda: statuses(view, 1) == [200], "the new limit")


def limited_views() -> dict[str, Any]:
    in_class = type("InClass", (Plain,), {"get": limit("2/minute", key="user|ip")(lambda self, request: Response())})
    decorated = method_decorator(limit("2/minute", key="user|ip"), name="dispatch")(type("Decorated", (Plain,), {}))
    return {
        "above": limit("2/minute", key="user|ip")(api_view(["GET"])(lambda request: Response())),
        "below": api_view(["GET"])(limit("2/minute", key="user|ip")(lambda request: Response())),
        "class": limit("2/minute", key="user|ip")(type("Limited", (Plain,), {})).as_view(),
        "method": in_class.as_view(),
        "method_decorator": decorated.as_view(),
    }


@pytest.mark.parametrize("kind", limited_views())
def test_limits_of_decorators_hold_for_requests_of_a_factory(kind: str) -> None:
    """Inside REST framework a rejection is its 429; outside it is the error that the middleware would respond to."""
    view = limited_views()[kind]
    with project(still()):
        assert statuses(view, 2, ANN) == [200, 200]
        assert statuses(view, 2, BOB) == [200, 200]
        if kind in ("below", "method"):
            assert statuses(view, 1, ANN) == [429]
        else:
            with pytest.raises(RateLimitExceeded):
                statuses(view, 1, ANN)


def test_a_view_of_django_is_limited_for_requests_of_a_factory() -> None:
    """Functions, classes and async functions; requests that a test has made, too."""

    class Page(View):
        @method_decorator(limit("2/minute"))
        def get(self, request: Any) -> HttpResponse:
            return hello(request)

    async def acalled(request: Any) -> HttpResponse:
        await acheck(request, "post")
        return hello(request)

    async_view = limit("2/minute", key=["field:name"])(acalled)
    calls = [
        (limit("2/minute")(hello), lambda: RequestFactory().get("/")),
        (limit("2/minute")(hello), HttpRequest),
        (Page.as_view(), lambda: RequestFactory().get("/")),
        (lambda request: asyncio.run(async_view(request)), lambda: AsyncRequestFactory().post("/", {"name": "ann"})),
    ]
    for view, make in calls:
        with project(still({"rules": [POST]})):
            assert [view(make()).status_code for _ in range(2)] == [200, 200]
            with pytest.raises(RateLimitExceeded):
                view(make())


def test_a_missing_middleware_is_an_error_for_other_requests() -> None:
    """Only a test that calls a view directly needs no middleware. The client of a test calls it as a server does."""
    others = ["django.middleware.common.CommonMiddleware"]
    checking = lambda request: HttpResponse(check(request, "post").rules)  # noqa: E731
    paths = path("", limit("1/minute")(hello)), path("check", checking)
    with project(still({"rules": [POST]}), *paths, middleware=others):
        for where in ("/", "/check"):
            with pytest.raises(MissingMiddlewareError):
                Client().get(where)
        with pytest.raises(MissingMiddlewareError):
            limit("1/minute")(lambda: None)()


def test_check_and_usage_work_for_requests_of_a_factory() -> None:
    """A rule by name, its usage, its cost and its reset, in a view that a test calls directly."""

    def view(request: Any) -> HttpResponse:
        check(request, "post")
        check.settle(request, "post", 1)
        return HttpResponse(json.dumps(usage(request, "post")["post"]["remaining"]))

    with project(still({"rules": [{**POST, "count_when": {"status": 200}}]})):
        request = RequestFactory().get("/")
        request.user = AnonymousUser()
        assert [view(request).content for _ in range(2)] == [b"1", b"0"]
        with pytest.raises(RateLimitExceeded):
            view(request)
        check.reset(request, "post")
        assert view(request).content == b"1"


def test_slots_are_free_at_once_for_requests_of_a_factory() -> None:
    """No middleware sees the end of the response."""
    view = limit("1 concurrent")(hello)
    with project(still()):
        assert [view(RequestFactory().get("/")).status_code for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_rejection_by_check_is_a_429_of_the_framework(is_direct: bool) -> None:
    """A rejection in a view of REST framework has the form of its errors: the exception handler responds."""
    errors: list[Any] = []

    class Checking(Plain):
        def get(self, request: Any) -> Response:
            check(request, "post")
            return Response({})

        def handle_exception(self, exc: Any) -> Any:
            errors.append(exc)
            return super().handle_exception(exc)

    view = Checking.as_view()
    with project(still({"rules": [POST], "lists": {"deny": {"header:x-bad": ["1"]}}}), path("", view)) as served:
        ask = (lambda **more: view(APIRequestFactory().get("/", **more))) if is_direct else served.ask
        responses = [ask() for _ in range(3)]
        assert [response.status_code for response in responses] == [200, 200, 429]
        assert (responses[2]["retry-after"], str(responses[2].data["detail"])) == (
            "60",
            "Request was throttled. Expected available in 60 seconds.",
        )
        assert isinstance(errors[0], Throttled)
        again = pickle.loads(pickle.dumps(errors[0]))
        assert (type(again), str(again), again.wait) == (type(errors[0]), str(errors[0]), errors[0].wait)
        assert isinstance(errors[0], RateLimitExceeded)
        assert is_direct or responses[2]["ratelimit"] == '"post";r=0;t=60'
        if is_direct:
            assert ask(headers={"x-bad": "1"}).status_code == 403


BODIES: list[tuple[str, bytes]] = [
    ("application/json", b'{"name": "ann"}'),
    ("application/x-www-form-urlencoded", b"name=ann"),
    ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nann\r\n--b--\r\n'),
]


def test_a_field_is_found_after_rest_framework_has_parsed_the_body() -> None:
    """A client has one count for all kinds of bodies, even where the view reads the data before the check."""

    class Posting(Plain):
        def post(self, request: Any) -> Response:
            assert request.data["name"] in ("ann", "bob")
            check(request, "post")
            return Response({})

    rules = {"rules": [{**POST, "key": ["field:name"]}]}
    with project(still(rules), path("", Posting.as_view())) as served:
        for name in (b"ann", b"bob"):
            sent = [(kind, body.replace(b"ann", name)) for kind, body in BODIES]
            codes = [served.ask(method="POST", data=body, content_type=kind).status_code for kind, body in sent]
            assert codes == [200, 200, 429]
    with project(still(rules)):
        view = Posting.as_view()
        sent = [APIRequestFactory().generic("POST", "/", body, content_type=kind) for kind, body in BODIES]
        assert [view(request).status_code for request in sent] == [200, 200, 429]


class Lines(BaseParser):
    """A parser that reads the stream, as those of other packages do."""

    media_type = "application/x-lines"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return dict(line.split("=") for line in stream.read().decode().splitlines())


class FastJSON(Lines):
    media_type = "application/json"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return json.loads(stream.read())


def test_a_field_of_any_type_is_found_after_the_framework_has_parsed_it() -> None:
    """The data counts where the parser has consumed the stream. A body that is not parsed is invalid there."""

    class Posting(Plain):
        parser_classes = (Lines, FastJSON, FormParser)

        def post(self, request: Any) -> Response:
            if "early" in request.query_params:
                assert request.data["name"] == "ann"
            check(request, "post")
            return Response({})

    rules = {"rules": [{**POST, "key": ["field:name"]}]}
    lines = ("application/x-lines", b"name=ann\n")
    with project(still(rules), path("", Posting.as_view())) as served:
        sent = [lines, *BODIES[:2]]
        codes = [served.ask("/?early", "POST", data=body, content_type=kind).status_code for kind, body in sent]
        assert codes == [200, 200, 429]
        codes = [served.ask("/", "POST", data=body, content_type=kind).status_code for kind, body in [lines] * 3]
        assert codes == [200, 200, 429]  # of all bodies that cannot be read


def test_a_throttle_reads_a_field_before_and_after_the_data() -> None:
    """An authentication may read the data first. A throttle of a scope counts the same field."""

    class Reading(Plain):
        throttle_classes = (Throttle,)
        throttle_scope = "uploads"

        def perform_authentication(self, request: Any) -> None:
            if "early" in request.query_params:
                assert request.data

    rules = {"rules": [{**UPLOADS, "key": ["field:name"]}]}
    for where in ("/", "/?early"):
        with project(still(rules), path("", Reading.as_view())) as served:
            codes = [served.ask(where, "POST", data=body, content_type=kind).status_code for kind, body in BODIES]
            assert codes == [200, 200, 429]


def test_an_unavailable_store_is_a_503_of_the_framework() -> None:
    """A rule with ``on_store_error = "deny"``."""
    store = SharedStore()
    store.down = True
    rule = Rule(name="post", limits="2/minute", match={"view": ""}, on_store_error="deny")

    class Checking(Plain):
        def get(self, request: Any) -> Response:
            check(request, "post")
            return Response({})

    with project(Limiter([rule], store), path("", Checking.as_view())) as served:
        assert served.ask().status_code == 503


def test_one_rule_of_the_middleware_is_not_decided() -> None:
    """Rules by path are those of the middleware, so a test that calls the view directly does not consume them."""
    with project(one_rule("1/minute")):
        assert statuses(Plain.as_view()) == [200] * 3
