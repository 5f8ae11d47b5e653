"""``check`` in views of REST framework: its errors, and the fields that the framework has parsed."""

from __future__ import annotations

import json
import pickle
from typing import Any

from django.urls import path
from django_calls import project
from rest_framework.exceptions import Throttled
from rest_framework.parsers import BaseParser, FormParser
from rest_framework.response import Response
from rest_views import BODIES, UPLOADS, Items, Uploads, ruled, statuses_of, view_of
from shared_store import SharedStore

from ratelimit_mw import Limiter, RateLimitExceeded, Rule
from ratelimit_mw.django import check

POST = {"name": "post", "limits": "2/minute", "key": ["user|ip"], "match": {"view": ""}}


def checking(self: Any, request: Any) -> Response:
    """The method of a view, which may read the data before the check."""
    if "early" in request.query_params:
        assert request.data["name"] in ("ann", "bob")
    check(request, "post")
    return Response({})


def test_a_rejection_by_check_is_a_429_of_the_framework() -> None:
    """A rejection in a view of REST framework has the form of its errors: the exception handler responds."""
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
        assert isinstance(errors[0], RateLimitExceeded)
        again = pickle.loads(pickle.dumps(errors[0]))
        assert (type(again), str(again), again.wait) == (type(errors[0]), str(errors[0]), errors[0].wait)
        assert served.ask(headers={"x-bad": "1"}).status_code == 403


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


def test_a_field_is_found_after_rest_framework_has_parsed_the_body() -> None:
    """A client has one count for all kinds of bodies, even where the view reads the data before the check."""
    with project(ruled({**POST, "key": ["field:name"]}), path("", view_of(post=checking).as_view())) as served:
        for name in (b"ann", b"bob"):
            sent = [(kind, body.replace(b"ann", name)) for kind, body in BODIES]
            assert statuses_of(served, sent, "/?early") == [200, 200, 429]


def test_a_field_of_any_type_is_found_after_the_framework_has_parsed_it() -> None:
    """The data counts where the parser has consumed the stream. A body that is not parsed is invalid there."""
    view = view_of(post=checking, parser_classes=(Lines, FastJSON, FormParser)).as_view()
    lines = ("application/x-lines", b"name=ann\n")
    with project(ruled({**POST, "key": ["field:name"]}), path("", view)) as served:
        assert statuses_of(served, [lines, *BODIES[:2]], "/?early") == [200, 200, 429]
        assert statuses_of(served, [lines] * 3) == [200, 200, 429]  # of all bodies that cannot be read


def test_a_throttle_reads_a_field_before_and_after_the_data() -> None:
    """An authentication may read the data first. A throttle of a scope counts the same field."""

    def perform_authentication(self: Any, request: Any) -> None:
        if "early" in request.query_params:
            assert request.data

    view = view_of(base=Uploads, perform_authentication=perform_authentication).as_view()
    for where in ("/", "/?early"):
        with project(ruled({**UPLOADS, "key": ["field:name"]}), path("", view)) as served:
            assert statuses_of(served, BODIES, where) == [200, 200, 429]
