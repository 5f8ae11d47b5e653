"""Several throttles of REST framework on one view are decided together."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.urls import path
from django_calls import project, still

from ratelimit_mw.django import check
from ratelimit_mw.django.drf import UserRateThrottle
from ratelimit_mw.stores import MemoryStore

# REST framework reads Django's settings on import. The import of django_calls configures them.
from rest_framework.response import Response  # isort: skip
from rest_framework.throttling import BaseThrottle  # isort: skip
from rest_framework.views import APIView  # isort: skip

RATES = {"REST_FRAMEWORK": {"DEFAULT_THROTTLE_RATES": {"user": "1/day", "b": "3/min"}}}


class Items(APIView):
    permission_classes = ()
    authentication_classes = ()
    throttle_classes: ClassVar[Any] = ()

    def get(self, request: Any) -> Response:
        return Response({})


class B(UserRateThrottle):
    scope = "b"


def view_of(*throttles: type, **more: Any) -> Any:
    return type("View", (Items,), {"throttle_classes": throttles, **more}).as_view()


def test_one_step_of_the_store_decides_all_throttles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each has a key of its own. Two with the same scope, rate and key have one count."""
    steps: list[int] = []
    apply = MemoryStore.apply

    def count(self: MemoryStore, hits: Any, *others: Any) -> Any:
        steps.append(len(hits))
        return apply(self, hits, *others)

    class ByTeam(B):
        def get_cache_key(self, request: Any, view: Any) -> str:
            return "team"

    class Again(B):
        pass

    monkeypatch.setattr(MemoryStore, "apply", count)
    with project(still(), path("", view_of(UserRateThrottle, B, ByTeam, Again)), **RATES) as served:
        assert (served.ask().status_code, steps) == (200, [3])
        assert (served.ask().status_code, steps) == (429, [3, 3])


def test_a_throttle_with_its_own_decision_is_decided_alone() -> None:
    """It may leave a request out, and then the other throttle neither counts for it nor rejects it."""

    class ButVip(UserRateThrottle):
        def allow_request(self, request: Any, view: Any) -> bool:
            return "vip" in request.query_params or super().allow_request(request, view)

    for throttles in ((ButVip, B), (B, ButVip)):
        with project(still(), path("", view_of(*throttles)), **RATES) as served:
            assert served.statuses("/?vip") == [200] * 3
            assert served.ask("/?vip").status_code == 429  # by the other one
        with project(still(), path("", view_of(*throttles)), **RATES) as served:
            assert served.statuses(times=2) == [200, 429]


def test_a_view_may_ask_a_throttle() -> None:
    """REST framework does not reject there, so each throttle counts."""

    def get(self: Any, request: Any) -> Response:
        UserRateThrottle().allow_request(request, self)
        return Response({}, 200 if B().allow_request(request, self) else 409)

    with project(still(), path("", view_of(get=get)), **RATES) as served:
        assert served.statuses(times=5) == [200, 200, 200, 409, 409]


def test_a_view_may_go_on_when_it_is_throttled() -> None:
    """Its own ``throttled`` raises no error. The rejected requests have consumed nothing."""
    seen: list[float | None] = []
    view = view_of(UserRateThrottle, B, throttled=lambda self, request, wait: seen.append(wait))
    with project(still(), path("", view), path("b", view_of(B)), **RATES) as served:
        assert served.statuses(times=3) == [200] * 3
        assert (seen, served.statuses("/b", 3)) == ([86400.0] * 2, [200, 200, 429])


def test_a_view_that_calls_another_one_has_its_own_throttles() -> None:
    """The rejection of the inner view refunds nothing of the outer one."""
    inner = view_of(UserRateThrottle)

    def get(self: Any, request: Any) -> Response:
        return Response([inner(request._request).status_code])

    with project(still(), path("", view_of(B, get=get)), **RATES) as served:
        assert served.statuses(times=5) == [200, 200, 200, 429, 429]


def test_a_throttle_of_another_package_may_reject() -> None:
    """The throttles of this package are decided without it, so a request that it rejects counts."""

    class Bad(BaseThrottle):
        def allow_request(self, request: Any, view: Any) -> bool:
            return "bad" not in request.query_params

    for throttles in ((Bad, B), (B, Bad)):
        with project(still(), path("", view_of(*throttles)), **RATES) as served:
            assert [served.ask(where).status_code for where in ("/?bad", "/", "/", "/")] == [429, 200, 200, 429]


def test_a_rejection_by_a_check_is_not_cached() -> None:
    """As that of a throttle. A view that handles it responds as it wants to."""

    def get(self: Any, request: Any) -> Response:
        check(request, "post")
        return Response({})

    with project(
        still({"rules": [{"name": "post", "limits": "1/minute", "match": {"view": ""}}]}), path("", view_of(get=get))
    ) as served:
        assert [served.ask().headers.get("cache-control") for _ in range(2)] == [None, "no-store"]
