"""The throttles of REST framework with their names, scopes and rates, decided by the limiter."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.test import override_settings
from django.urls import include, path
from django_calls import MIDDLEWARE, SESSIONS, command, hello, project, run, still
from rest_framework.decorators import action, api_view, throttle_classes
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.throttling import BaseThrottle
from rest_framework.viewsets import ViewSet
from rest_views import rates, ruled, view_of
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.django import RateLimitMiddleware, exempt, limiter, usage
from ratelimit_mw.django.apps import check_project
from ratelimit_mw.django.drf import AnonRateThrottle, ScopedRateThrottle, Throttle, UserRateThrottle
from ratelimit_mw.settings import load_settings
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

ANN: dict[str, Any] = {"headers": {"x-token": "ann"}}
BY_USER = view_of(UserRateThrottle)


def own(**members: Any) -> type:
    """Return a throttle with these members."""
    return type("Own", (UserRateThrottle,), members)


def timed() -> tuple[Limiter, ManualClock]:
    clock = ManualClock(999_960.0)
    return Limiter.from_settings(load_settings({"defaults": {"algorithm": "sliding-window-log"}}), clock=clock), clock


def test_the_rates_of_the_settings_are_read() -> None:
    """Users count by their key, other clients by address; the headers show the rates with the names of their scopes."""
    view = view_of(AnonRateThrottle, UserRateThrottle, ScopedRateThrottle).as_view()
    with project(still(), path("", view), **rates(anon="1/day", user="2/hour", other="1 a day")) as served:
        ann = [served.ask(**ANN) for _ in range(3)]
        assert [response.status_code for response in ann] == [200, 200, 429]
        assert ann[0]["ratelimit-policy"] == '"user";q=2;w=3600'
        assert (ann[2]["retry-after"], ann[2]["cache-control"]) == ("3600", "no-store")
        assert "throttled" in ann[2].json()["detail"]
        assert served.ask(headers={"x-token": "bob"}).status_code == 200
        anonymous = [served.ask() for _ in range(2)]
        assert [response.status_code for response in anonymous] == [200, 429]
        policies = anonymous[0]["ratelimit-policy"].split(", ")
        assert sorted(policies) == ['"anon";q=1;w=86400', '"user";q=2;w=3600']  # in the order of their first use
        assert served.ask(client="198.51.100.9").status_code == 200


@each("is_async", [False, True])
def test_the_user_is_that_of_rest_framework(is_async: bool) -> None:
    """The session of the same request has none."""
    given: Any = {"is_async": is_async, "middleware": [*SESSIONS, *MIDDLEWARE], **rates(user="1/min")}
    with project(still(), path("", BY_USER.as_view()), **given) as served:
        assert [served.ask(headers={"x-token": name}).status_code for name in "aba"] == [200, 200, 429]


def test_views_of_one_scope_share_a_count() -> None:
    """A scoped throttle counts per scope, not per view. A view without a scope is not limited."""
    views = [view_of(ScopedRateThrottle, throttle_scope=scope).as_view() for scope in ("up", "up", "down", None)]
    paths = [path(str(number), view) for number, view in enumerate(views)]
    with project(still(), *paths, **rates(up="2/min", down="1/min")) as served:
        assert [served.ask(f"/{number}").status_code for number in (0, 1, 0, 2, 2)] == [200, 200, 429, 200, 429]
        assert served.statuses("/3") == [200] * 3


def test_throttles_of_functions_and_actions_are_known() -> None:
    """@throttle_classes, and throttle_classes and throttle_scope of an @action."""

    @api_view(["GET"])
    @throttle_classes([UserRateThrottle])
    def function(request: Any) -> Response:
        return Response({})

    class Things(ViewSet):
        throttle_classes = (UserRateThrottle,)
        throttle_scope = None  # REST framework demands it for the action
        permission_classes = ()

        def list(self, request: Any) -> Response:
            return Response([])

        @action(detail=False, throttle_classes=[ScopedRateThrottle], throttle_scope="export")
        def export(self, request: Any) -> Response:
            return Response([])

    router = SimpleRouter()
    router.register("things", Things, basename="thing")
    routes = path("", function), path("", include(router.urls))
    with project(still(), *routes, **rates(user="2/min", export="1/min")) as served:
        assert [served.ask(where).status_code for where in ("/", "/things/", "/")] == [200, 200, 429]
        assert served.statuses("/things/export/", 2) == [200, 429]


def test_a_rate_of_the_class_precedes_the_settings() -> None:
    """A rate of None in the settings does not limit. Two rates of one scope count separately."""
    rate, clock = timed()
    routes = {
        "own": view_of(own(rate="1/min")),
        "new": view_of(own(rate="1/min", scope="new", get_cache_key=lambda *_: "all")),
        "none": view_of(UserRateThrottle, AnonRateThrottle),
        "two": view_of(own(rate="2/min"), own(rate="3/day")),
    }
    paths = [path(name, view.as_view()) for name, view in routes.items()]
    with project(rate, *paths, **rates(user=None, anon=None)) as served:
        statuses = [served.statuses(where, 2) for where in ("/own", "/new", "/none")]
        assert statuses == [[200, 429], [200, 429], [200, 200]]
        assert served.statuses("/two") == [200, 200, 429]
        clock.advance(60)
        assert served.statuses("/two", times=2) == [200, 429]


def test_the_key_of_an_own_throttle_is_counted() -> None:
    """``get_cache_key`` of a subclass makes the key, whose text counts; None does not limit. The case matters."""

    class PerCompany(UserRateThrottle):
        scope = "company"

        def get_cache_key(self, request: Any, view: Any) -> Any:
            company = request.query_params.get("company")
            if company == "5":
                return 5
            return company and self.cache_format % {"scope": self.scope, "ident": company}

    with project(still(), path("", view_of(PerCompany).as_view()), **rates(company="1/min")) as served:
        codes = [served.ask(f"/?company={name}").status_code for name in ("a", "A", "a", "5", "5")]
        assert codes == [200, 200, 429, 200, 429]
        assert served.statuses() == [200] * 3


def test_an_own_key_may_extend_that_of_the_class() -> None:
    """It exempts one user, and keeps the user or the address of all others, which a client cannot forge."""

    class ButBoss(UserRateThrottle):
        def get_cache_key(self, request: Any, view: Any) -> Any:
            return None if getattr(request.user, "pk", "") == "boss" else super().get_cache_key(request, view)

    class ByDevice(UserRateThrottle):
        def get_ident(self, request: Any) -> str:
            return str(request.headers.get("x-device"))

    paths = [path(name, view_of(kind).as_view()) for name, kind in (("", ButBoss), ("device", ByDevice))]
    with project(still(), *paths, **rates(user="1/min")) as served:
        assert [served.ask("/device", headers={"x-device": name}).status_code for name in "aba"] == [200, 200, 429]
        assert served.statuses(times=2, headers={"x-token": "boss"}) == [200, 200]
        assert served.statuses(times=2, **ANN) == [200, 429]
        sent = [served.ask(headers={"x-forwarded-for": f"203.0.113.{number}"}).status_code for number in range(2)]
        assert sent == [200, 429]
        assert served.ask(client="203.0.113.1").status_code == 200


def test_throttles_may_inherit_one_get_cache_key(caplog: pytest.LogCaptureFixture) -> None:
    """Each counts its own key, and nothing where its rate is None. With one scope the keys would be one: an error."""

    class ByHeader(Throttle):
        header = "x-company"

        def get_cache_key(self, request: Any, view: Any) -> Any:
            return request.headers.get(self.header)

    def by(scope: str, header: str) -> type:
        return type(scope, (ByHeader,), {"scope": scope, "header": header})

    view = view_of(by("team", "x-team"), by("company", "x-company"), by("off", "x-off"))
    one_scope = view_of(by("team", "x-team"), by("team", "x-company"))
    paths = [path("", view.as_view()), path("one", one_scope.as_view())]
    with project(still(), *paths, **rates(company="1/min", team="2/min", off=None)) as served:

        def status(company: str, team: str) -> int:
            return served.ask(headers={"x-company": company, "x-team": team}).status_code  # type: ignore[no-any-return]

        sent = ["a1", "a2", "b2", "c2", "d2"]
        assert [status(company, team) for company, team in sent] == [200, 429, 200, 200, 429]
        assert served.ask("/one", headers={"x-company": "a", "x-team": "1"}).status_code == 500
        assert "team: scope: two throttles of the view" in caplog.text


@each("name", ["get_rate", "parse_rate", "throttle_success", "throttle_failure", "THROTTLE_RATES"])
def test_a_member_that_is_never_used_is_an_error(name: str) -> None:
    """A rate is a rule, so code of a subclass, or of its other bases, cannot compute it for each request."""
    base = type("Base", (), {name: None})
    with pytest.raises(ConfigError, match=f"Own: {name} would have no effect"):
        type("Own", (base, UserRateThrottle), {})


@each(
    ("view", "given", "error"),
    [
        (
            view_of(ScopedRateThrottle, throttle_scope="uplods"),
            {"uploads": "1/min"},
            r"no rule .* scope = 'uplods' .*Did you mean 'uploads'",
        ),
        (BY_USER, {}, r"no rule .* scope = 'user' "),
        (view_of(own(get_cache_key=lambda *_: "")), {}, "Own: its own key is that of a rate"),
        (BY_USER, {"user": "5/minut"}, r"cannot parse quota '5/minut'"),
        (BY_USER, {"user": "0/min"}, r"expected the amount .* got 0"),
        (BY_USER, {"user": ["5/min"]}, r"UserRateThrottle: rate: expected .*5/minute.*got \['5/min'\]"),
    ],
)
def test_a_rate_that_cannot_work_stops_django(view: Any, given: dict[str, Any], error: str) -> None:
    """The error names the throttle, and the nearest scope."""
    with project(still(), path("", view.as_view()), **rates(**given)), pytest.raises(ConfigError, match=error):
        RateLimitMiddleware(hello)


def test_a_throttle_that_only_a_request_shows_is_checked_then() -> None:
    """``get_throttles`` of a view may name one. An unknown scope fails the request, and so does a rate of a request."""
    late, unknown, rated = (own(scope=scope) for scope in ("late", "unknown", "late"))
    rated.__init__ = lambda self: setattr(self, "rate", "9/min")  # type: ignore[misc]
    kinds = {"": late, "unknown": unknown, "rated": rated}

    def throttles(self: Any) -> list[Any]:
        return [kinds[self.request.META["QUERY_STRING"]]()]

    with project(still(), path("", view_of(get_throttles=throttles).as_view()), **rates(late="1/min")) as served:
        assert [served.ask(f"/?{kind}").status_code for kind in ("", "", "unknown", "rated")] == [200, 429, 500, 500]


def test_settings_override_a_rate() -> None:
    """Operators change a scope as they change the rule of a decorator: its limits, and those of single users."""
    change = {"overrides": "user", "limits": "2/min", "per": {"user": {"ann": ["3/min"]}}}
    with project(ruled(change), path("", BY_USER.as_view()), **rates(user="1/min")) as served:
        assert served.statuses(times=4, **ANN) == [200, 200, 200, 429]
        assert served.statuses(headers={"x-token": "bob"}) == [200, 200, 429]


def test_a_rate_is_a_rule_for_usage_reset_and_exempt() -> None:
    """Its name is the scope. Allow and deny lists apply, too."""
    shown: list[Any] = []

    def get(self: Any, request: Any) -> Response:
        shown.append(usage(request, "user")["user"]["remaining"])
        return Response({})

    paths = (
        path("", view_of(base=BY_USER, get=get).as_view()),
        path("free", exempt("user")(view_of(base=BY_USER)).as_view()),
    )
    lists = {"allow": {"user": ["boss"]}, "deny": {"user": ["eve"]}}
    with project(ruled(lists=lists), *paths, **rates(user="1/min")) as served:
        assert served.statuses(times=2, **ANN) == [200, 429]
        limiter().reset("user", {"user": "ann"})
        assert served.statuses(times=2, **ANN) == [200, 429]
        assert shown == [0, 0]
        assert served.statuses("/free", **ANN) == [200] * 3
        assert served.statuses(headers={"x-token": "boss"}) == [200] * 3
        assert served.ask(headers={"x-token": "eve"}).status_code == 403


def test_the_command_shows_rates_with_their_views() -> None:
    """``check`` lists a scope with its routes, and ``explain`` says which requests it applies to."""
    with project(still(), path("items", BY_USER.as_view()), path("free", hello), **rates(user="2/hour")):
        rows = run("check")
        assert any(row.startswith("user throttle ") and "/items" in row and "2/hour" in row for row in rows), rows
        explained = run("explain", "GET", "/items", "--feature", "user=ann")
        assert any("user=ann" in row and "2/hour" in row for row in explained), explained
        assert "no rule limits" in command("explain", "GET", "/free").stderr
        assert not [found for found in check_project() if found.id == "ratelimit_mw.W003"]


def test_overridden_rates_apply_from_the_next_request_on() -> None:
    """Tests override the setting of REST framework, which reads its own rates only once."""
    with project({"rules": []}, path("", BY_USER.as_view()), **rates(user="1/day")) as served:
        assert served.statuses(times=2) == [200, 429]
        with override_settings(**rates(user="2/day")):
            assert served.statuses() == [200, 200, 429]


def test_the_counts_are_exact_across_threads() -> None:
    """Two hundred requests at once: the limit is never exceeded."""
    with project(still(), path("", BY_USER.as_view()), **rates(user="50/day")) as served, ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: served.ask().status_code, range(200)))
    assert codes.count(200) == 50


# -- several throttles on one view are decided together --------------------------------------------------------

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
    options: Any = {"match": {"scope": "ruled"}, "key": [], "algorithm": "sliding-window-log", "unrouted": True}
    rule = Rule(name="ruled", limits="1/hour", **options)
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
    """Also where each has a scope or a key of its own. Two with the same scope, rate and key have one count."""
    steps: list[int] = []
    apply = MemoryStore.apply

    def count(self: MemoryStore, hits: Any, *others: Any) -> Any:
        steps.append(len(hits))
        return apply(self, hits, *others)

    class ByTeam(Throttle):
        scope = "team"

    class ByCompany(B):
        def get_cache_key(self, request: Any, view: Any) -> str:
            return "company"

    class Again(B):
        pass

    monkeypatch.setattr(MemoryStore, "apply", count)
    team = {"name": "team", "limits": "9/min", "key": ["query:team"], "match": {"scope": "team"}}
    with project(ruled(team), *routes(UserRateThrottle, B, ByTeam, ByCompany, Again), **RATES) as served:
        assert (served.ask("/?team=a").status_code, steps) == (200, [4])
        assert (served.ask("/?team=b").status_code, steps) == (429, [4, 4])


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
