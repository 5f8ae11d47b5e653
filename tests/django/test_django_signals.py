"""The signal ``request_limited``, sync and async."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import django
import pytest
from django.http import HttpResponse
from django.urls import path
from django_calls import MIDDLEWARE, one_rule, project, raise_own, still
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_mw import RateLimitExceeded, Verdict
from ratelimit_mw.django import RateLimitMiddleware, check
from ratelimit_mw.django.drf import Throttle
from ratelimit_mw.django.signals import request_limited

both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
Received = list[tuple[type, str, tuple[str, ...]]]


@pytest.fixture
def received() -> Iterator[Received]:
    """What a receiver has received: the sender, the path of the request, and the rules that rejected it."""
    found: Received = []

    def receive(sender: type, request: Any, verdict: Verdict, **_: Any) -> None:
        found.append((sender, request.path, tuple(decision.rule for decision in verdict.rejected_by)))

    request_limited.connect(receive)
    yield found
    request_limited.disconnect(receive)


@both
def test_a_rejection_is_sent_once(is_async: bool, received: Received) -> None:
    """Allowed requests send nothing."""
    with project(one_rule("1/minute"), is_async=is_async) as served:
        served.statuses(times=2)
    assert received == [(RateLimitMiddleware, "/", ("api",))]


@both
def test_a_rejection_whose_page_raises_is_sent(is_async: bool, received: Received) -> None:
    """The client receives a 500, and the receiver the rejection."""

    def broken(request: Any, exception: Any) -> HttpResponse:
        raise ValueError("broken page")

    with project(one_rule("1/minute"), is_async=is_async, handler429=broken) as served:
        assert served.statuses(times=2) == [200, 500]
    assert received == [(RateLimitMiddleware, "/", ("api",))]


@both
def test_a_middleware_that_is_listed_twice_sends_once(is_async: bool, received: Received) -> None:
    """The entry that rejects sends the signal."""
    with project(one_rule("1/minute"), is_async=is_async, middleware=MIDDLEWARE * 2) as served:
        assert served.statuses(times=2) == [200, 429]
    assert len(received) == 1


@both
def test_a_rejection_in_the_view_is_sent(is_async: bool, received: Received) -> None:
    """RateLimitExceeded that leaves a view is a rejected request; one of a subclass of the middleware, too."""
    with project(one_rule(), path("", lambda request: raise_own()), is_async=is_async) as served:
        assert served.ask().status_code == 429
    with project(one_rule(), path("", lambda request: raise_own()), middleware=[f"{__name__}.OwnMiddleware"]) as served:
        served.ask()
    assert [*received] == [(RateLimitMiddleware, "/", ("own",)), (OwnMiddleware, "/", ("own",))]


class OwnMiddleware(RateLimitMiddleware):
    """A middleware of a project."""


@both
def test_a_rejection_that_the_view_handles_is_sent(is_async: bool, received: Received) -> None:
    """The verdict of the request is a rejection, whatever the view responds."""

    def view(request: Any) -> HttpResponse:
        try:
            check(request, "post")
        except RateLimitExceeded:
            return HttpResponse("later")
        return HttpResponse("now")

    limits = still({"rules": [{"name": "post", "limits": "1/minute", "match": {"view": ""}}]})
    with project(limits, path("", view), is_async=is_async) as served:
        assert served.statuses(times=2) == [200, 200]
    assert received == [(RateLimitMiddleware, "/", ("post",))]


def test_a_rejection_by_a_throttle_is_sent(received: Received) -> None:
    """REST framework responds to it."""

    class Uploads(APIView):
        throttle_classes = [Throttle]
        throttle_scope = "uploads"
        authentication_classes: list[Any] = []

        def get(self, request: Any) -> Response:
            return Response({})

    rule = {"name": "up", "limits": "1/minute", "match": {"scope": "uploads"}}
    with project(still({"rules": [rule]}), path("", Uploads.as_view())) as served:
        assert served.statuses(times=2) == [200, 429]
    assert received == [(RateLimitMiddleware, "/", ("up",))]


@both
def test_a_rule_in_shadow_mode_sends_nothing(is_async: bool, received: Received) -> None:
    with project(one_rule("1/minute", mode="shadow"), is_async=is_async) as served:
        assert served.statuses(times=2) == [200, 200]
    assert received == []


@both
def test_a_deny_list_sends_a_verdict_without_decisions(is_async: bool, received: Received) -> None:
    with project({"lists": {"deny": {"ip": ["192.0.2.7"]}}}, is_async=is_async) as served:
        assert served.ask().status_code == 403
    assert received == [(RateLimitMiddleware, "/", ())]


@both
def test_a_receiver_that_raises_changes_no_response(
    is_async: bool, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    """Django logs the error. The other receivers are called."""

    def broken(**_: Any) -> None:
        raise ValueError("broken receiver")

    request_limited.connect(broken)
    try:
        with caplog.at_level(logging.ERROR), project(one_rule("1/minute"), is_async=is_async) as served:
            assert served.statuses(times=2) == [200, 429]
    finally:
        request_limited.disconnect(broken)
    assert len(received) == 1
    assert "broken receiver" in caplog.text


@both
@pytest.mark.skipif(django.VERSION < (5, 0), reason="signals have async receivers since Django 5.0")
def test_an_async_receiver_is_awaited(is_async: bool, received: Received) -> None:
    """It may await, in both stacks, beside receivers that are not async."""
    paths: list[str] = []

    async def receive(request: Any, **_: Any) -> None:
        await asyncio.sleep(0)
        paths.append(request.path)

    request_limited.connect(receive)
    try:
        with project(one_rule("1/minute"), is_async=is_async) as served:
            served.statuses(times=2)
    finally:
        request_limited.disconnect(receive)
    assert (paths, len(received)) == (["/"], 1)
