"""Several throttles of REST framework on one view. The framework decides whether they reject the request."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.urls import path
from django_calls import MIDDLEWARE, project, still

from ratelimit_mw.django import check
from ratelimit_mw.django.drf import Throttle, UserRateThrottle

# REST framework reads Django's settings on import. The import of django_calls configures them.
from rest_framework.response import Response  # isort: skip
from rest_framework.throttling import BaseThrottle  # isort: skip
from rest_framework.views import APIView  # isort: skip

RATES = {"REST_FRAMEWORK": {"DEFAULT_THROTTLE_RATES": {"user": "1/day", "b": "3/min"}}}
RULES = [
    {"name": "one", "limits": "1/day", "match": {"scope": "one"}},
    {"name": "two", "limits": "3/minute", "match": {"scope": "two"}},
]
OTHERS = ["django.middleware.common.CommonMiddleware"]


class Items(APIView):
    permission_classes = ()
    authentication_classes = ()
    throttle_classes: ClassVar[Any] = ()

    def get(self, request: Any) -> Response:
        return Response({})


class B(UserRateThrottle):
    scope = "b"


class Soft(UserRateThrottle):
    """Only observes."""

    def throttle_failure(self) -> bool:
        return True


class Logging(UserRateThrottle):
    """Only observes, too, and reads the wait."""

    def allow_request(self, request: Any, view: Any) -> bool:
        assert super().allow_request(request, view) or self.wait()
        return True


class Either(BaseThrottle):
    pair: tuple[type, type] = (UserRateThrottle, B)

    def allow_request(self, request: Any, view: Any) -> bool:
        first, second = self.pair
        return bool(first().allow_request(request, view) or second().allow_request(request, view))


class EitherRule(Either):
    pair = (type("One", (Throttle,), {"scope": "one"}), type("Two", (Throttle,), {"scope": "two"}))


def view_of(*throttles: type, **more: Any) -> Any:
    return type("View", (Items,), {"throttle_classes": throttles, **more}).as_view()


@pytest.mark.parametrize("middleware", [MIDDLEWARE, OTHERS], ids=["with", "without"])
@pytest.mark.parametrize("throttles", [(Soft, B), (B, Soft), (Logging, B), (B, Logging)])
def test_a_throttle_that_only_observes_leaves_the_others_alone(
    throttles: tuple[type, ...], middleware: list[str]
) -> None:
    """The other throttle counts. An allowed request is no rejection in its headers."""
    with project(still(), path("", view_of(*throttles)), middleware=middleware, **RATES) as served:
        responses = [served.ask() for _ in range(5)]
    assert [response.status_code for response in responses] == [200, 200, 200, 429, 429]
    assert not {"retry-after", "cache-control"} & {name.lower() for name in responses[2].headers}
    assert responses[3]["retry-after"] == "60"


@pytest.mark.parametrize("throttle", [Either, EitherRule])
def test_one_of_two_throttles_may_allow(throttle: type) -> None:
    """One request a day, and three a minute after it. Only both together reject."""
    with project(still({"rules": RULES}), path("", view_of(throttle)), **RATES) as served:
        assert served.statuses(times=6) == [200, 200, 200, 200, 429, 429]


def test_a_view_may_ask_a_throttle() -> None:
    """REST framework does not reject there, so each throttle counts."""

    def get(self: Any, request: Any) -> Response:
        UserRateThrottle().allow_request(request, self)
        return Response({}, 200 if B().allow_request(request, self) else 409)

    with project(still(), path("", view_of(get=get)), **RATES) as served:
        assert served.statuses(times=5) == [200, 200, 200, 409, 409]


def test_a_view_may_go_on_when_it_is_throttled() -> None:
    """Its own ``throttled`` raises no error, so nothing is refunded: after 3 requests, both have rejected."""
    seen: list[float | None] = []
    view = view_of(UserRateThrottle, B, throttled=lambda self, request, wait: seen.append(wait))
    with project(still(), path("", view), path("b", view_of(B)), **RATES) as served:
        assert served.statuses(times=3) == [200] * 3
        assert (len(seen), served.ask("/b").status_code) == (2, 429)


def test_a_rejection_refunds_the_throttles_of_its_view_only() -> None:
    """A view that calls another one, and responds for it, has consumed from its own throttles."""
    inner = view_of(UserRateThrottle)

    def get(self: Any, request: Any) -> Response:
        return Response([inner(request._request).status_code])

    with project(still(), path("", view_of(B, get=get)), **RATES) as served:
        assert served.statuses(times=5) == [200, 200, 200, 429, 429]


def test_a_throttle_of_another_package_refunds_too() -> None:
    """A request that REST framework rejects consumes nothing from any throttle."""

    class Bad(BaseThrottle):
        def allow_request(self, request: Any, view: Any) -> bool:
            return "bad" not in request.query_params

    for throttles in ((Bad, B), (B, Bad)):
        with project(still(), path("", view_of(*throttles)), **RATES) as served:
            assert served.statuses("/?bad=1", 5) == [429] * 5
            assert served.statuses(times=4) == [200, 200, 200, 429]


def test_a_rejection_by_a_check_is_not_cached() -> None:
    """As that of a throttle. A view that handles it responds as it wants to."""

    def get(self: Any, request: Any) -> Response:
        check(request, "post")
        return Response({})

    with project(
        still({"rules": [{"name": "post", "limits": "1/minute", "match": {"view": ""}}]}), path("", view_of(get=get))
    ) as served:
        assert [served.ask().headers.get("cache-control") for _ in range(2)] == [None, "no-store"]
