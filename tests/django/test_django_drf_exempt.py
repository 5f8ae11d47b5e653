"""``@exempt`` applies to REST framework's throttle as to every other limit."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import path
from django_calls import project
from rest_framework.decorators import api_view, throttle_classes
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet
from rest_views import ALL, UPLOADS, Uploads, ruled, view_of
from tables import each

from ratelimit_mw.django import exempt
from ratelimit_mw.django.drf import Throttle

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


def test_explain_agrees_with_the_throttle(capsys: pytest.CaptureFixture[str]) -> None:
    """The command and the throttle agree on which views are exempt."""
    with project(ruled(UPLOADS, ALL), path("", PARTLY)):
        with pytest.raises(CommandError, match="no rule limits this request"):
            call_command("ratelimit", "explain", "GET", "/")
        call_command("ratelimit", "explain", "POST", "/")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "uploads the view is exempt" in lines
    assert "uploads {ip=unknown} 2/minute sliding-window enforce 1" in lines
