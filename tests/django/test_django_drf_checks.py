"""``check`` in views of REST framework: its errors, and the fields that the framework has parsed."""

from __future__ import annotations

import json
import pickle
from typing import Any

from django.urls import path
from django_calls import project, still
from shared_store import SharedStore

from ratelimit_mw import Limiter, RateLimitExceeded, Rule
from ratelimit_mw.django import check
from ratelimit_mw.django.drf import Throttle

# REST framework and Django's users read the settings on import. The import of django_calls configures them.
from rest_framework.exceptions import Throttled  # isort: skip
from rest_framework.parsers import BaseParser, FormParser  # isort: skip
from rest_framework.response import Response  # isort: skip
from rest_framework.views import APIView  # isort: skip

POST = {"name": "post", "limits": "2/minute", "key": ["user|ip"], "match": {"view": ""}}
UPLOADS = {"name": "uploads", "limits": "2/minute", "key": ["user|ip"], "match": {"scope": "uploads"}}


class Plain(APIView):
    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Any) -> Response:
        return Response({"user": getattr(request.user, "pk", None)})

    def post(self, request: Any) -> Response:
        return Response(request.data)


def test_a_rejection_by_check_is_a_429_of_the_framework() -> None:
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
        responses = [served.ask() for _ in range(3)]
        assert [response.status_code for response in responses] == [200, 200, 429]
        assert (responses[2]["retry-after"], str(responses[2].data["detail"])) == (
            "60",
            "Request was throttled. Expected available in 60 seconds.",
        )
        assert isinstance(errors[0], Throttled)
        again = pickle.loads(pickle.dumps(errors[0]))
        assert (type(again), str(again), again.wait) == (type(errors[0]), str(errors[0]), errors[0].wait)
        assert isinstance(errors[0], RateLimitExceeded)
        assert responses[2]["ratelimit"] == '"post";r=0;t=60'
        assert served.ask(headers={"x-bad": "1"}).status_code == 403


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
