"""Several throttles of REST framework on one view are decided together."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import path
from django_calls import project, still
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_views import rates, view_of
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.django.drf import Throttle, UserRateThrottle
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

RATES = rates(user="1/day", b="3/min")


class B(UserRateThrottle):
    scope = "b"


def routes(*throttles: type, **members: Any) -> Any:
    """Return ``/`` with these throttles, and ``/b`` with the throttle ``B`` alone."""
    return path("", view_of(*throttles, **members).as_view()), path("b", view_of(B).as_view())


@each("is_first", [True, False])
@each("kind", [Throttle, UserRateThrottle])
def test_a_rejection_refunds_the_other_throttles_and_waits_for_all(kind: type, is_first: bool) -> None:
    """All or nothing: a rejected request consumes nothing, in either order. Retry-After is the longest wait."""
    clock = ManualClock(999_960.0)
    rule = Rule(name="ruled", limits="1/hour", match={"scope": "ruled"}, key=[], algorithm="sliding-window-log")
    few = type("Few", (kind,), {"scope": "user" if kind is UserRateThrottle else "ruled"})
    with project(
        Limiter([rule], clock=clock), *routes(*[few, B][:: 1 if is_first else -1]), **rates(user="1/hour", b="2/day")
    ) as served:
        assert served.statuses(times=4) == [200, 429, 429, 429]
        assert served.ask("/b")["x-ratelimit-remaining"] == "0"
        assert served.ask()["retry-after"] == "86400"
        clock.advance(86_400 * 2)
        assert served.ask().status_code == 200


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
    with project(still(), *routes(UserRateThrottle, B, ByTeam, Again), **RATES) as served:
        assert (served.ask().status_code, steps) == (200, [3])
        assert (served.ask().status_code, steps) == (429, [3, 3])


class ButVip(UserRateThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        return "vip" in request.query_params or super().allow_request(request, view)


@each("throttles", [(ButVip, B), (B, ButVip)])
def test_a_throttle_with_its_own_decision_is_decided_alone(throttles: Any) -> None:
    """It may leave a request out, and then the other throttle neither counts for it nor rejects it."""
    for where, statuses in (("/?vip", [200, 200, 200, 429]), ("/", [200, 429])):
        with project(still(), *routes(*throttles), **RATES) as served:
            assert served.statuses(where, len(statuses)) == statuses


def test_a_view_may_ask_a_throttle() -> None:
    """REST framework does not reject there, so each throttle counts."""

    def get(self: Any, request: Any) -> Response:
        UserRateThrottle().allow_request(request, self)
        return Response({}, 200 if B().allow_request(request, self) else 409)

    with project(still(), *routes(get=get), **RATES) as served:
        assert served.statuses(times=5) == [200, 200, 200, 409, 409]


def test_a_view_may_go_on_when_it_is_throttled() -> None:
    """Its own ``throttled`` raises no error. The rejected requests have consumed nothing."""
    seen: list[float | None] = []
    view = {"throttled": lambda self, request, wait: seen.append(wait)}
    with project(still(), *routes(UserRateThrottle, B, **view), **RATES) as served:
        assert served.statuses(times=3) == [200] * 3
        assert (seen, served.statuses("/b", 3)) == ([86400.0] * 2, [200, 200, 429])


class Bad(BaseThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        return "bad" not in request.query_params


@each("throttles", [(Bad, B), (B, Bad)])
def test_a_throttle_of_another_package_may_reject(throttles: Any) -> None:
    """The throttles of this package are decided without it, so a request that it rejects counts."""
    with project(still(), *routes(*throttles), **RATES) as served:
        assert [served.ask(where).status_code for where in ("/?bad", "/", "/", "/")] == [429, 200, 200, 429]
