"""Each argument on the page of django-ratelimit has a test with two views, one behind each package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import django_ratelimit.core
import pytest
from django.core.cache import cache
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from django_calls import MIDDLEWARE, Project, hello, project
from django_ratelimit import UNSAFE
from django_ratelimit.core import get_usage, is_ratelimited
from django_ratelimit.decorators import ratelimit
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.django import limit
from ratelimit_mw.testing import ManualClock

pytestmark = pytest.mark.slow

NOW = 1_000_000.0


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear the counts and stop the clock."""
    monkeypatch.setattr(django_ratelimit.core, "time", SimpleNamespace(time=lambda: NOW))
    cache.clear()
    yield
    cache.clear()


class FakeUser:
    """A user that is signed in when it has a name."""

    def __init__(self, name: str | None) -> None:
        self.pk = name
        self.is_authenticated = name is not None


def signed_in(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Add a middleware that takes the user from a header of the client."""

    def handle(request: Any) -> Any:
        request.user = FakeUser(request.headers.get("X-Name"))
        return get_response(request)

    return handle


WITH_USERS = [f"{__name__}.signed_in", *MIDDLEWARE]


def served_requests(project: Project, where: str, *requests: dict[str, Any]) -> list[bool]:
    """Return which of the requests were served."""
    codes = [project.ask(**{**request, "where": where + request.get("where", "")}).status_code for request in requests]
    rejected = {"/theirs": 403, "/ours": 429}[where]
    assert set(codes) <= {200, rejected}
    return [status == 200 for status in codes]


def both_results(theirs: Any, ours: Any, *requests: dict[str, Any], **settings: Any) -> tuple[list[bool], list[bool]]:
    """Return which of the same requests django-ratelimit serves, and which this package serves."""
    limiter = Limiter(clock=ManualClock(NOW))
    views = [path("theirs", theirs(hello)), path("ours", ours(hello))]
    with project({"limiter": limiter, **settings}, *views, middleware=WITH_USERS) as served:
        return served_requests(served, "/theirs", *requests), served_requests(served, "/ours", *requests)


def same_results(theirs: Any, ours: Any, *requests: dict[str, Any], **settings: Any) -> list[bool]:
    """Return the results of both packages for the same requests, which must be equal."""
    before, after = both_results(theirs, ours, *requests, **settings)
    assert after == before
    return after


def form(**fields: str) -> dict[str, Any]:
    body = "&".join(f"{name}={value}" for name, value in fields.items())
    return {"method": "POST", "data": body, "content_type": "application/x-www-form-urlencoded"}


ANN, BOB, NOBODY = {"headers": {"X-Name": "ann"}}, {"headers": {"X-Name": "bob"}}, {}
KEYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ip": ({"client": "192.0.2.7"}, {"client": "192.0.2.8"}),
    "user": (ANN, BOB),
    "user_or_ip": (ANN, NOBODY),
    "get:q": ({"where": "?q=a"}, {"where": "?q=b"}),
    "post:username": (form(username="ann"), form(username="bob")),
    "header:x-cluster-client-ip": (
        {"headers": {"X-Cluster-Client-IP": "192.0.2.7"}},
        {"headers": {"X-Cluster-Client-IP": "192.0.2.8"}},
    ),
}


@each("key", KEYS)
def test_a_migrated_key_counts_the_same_clients_together(key: str) -> None:
    """The same key separates the same clients in both packages."""
    cache.clear()
    one, other = KEYS[key]
    assert (
        same_results(ratelimit(key=key, rate="1/d"), limit("1/d", key=key), one, one, other, other) == [True, False] * 2
    )


def test_several_values_of_a_field_share_one_count() -> None:
    """django-ratelimit counts the last value. Here a field with different values is invalid."""
    requests = [{"where": where} for where in ("?q=a&q=b", "?q=b", "?q=a", "?q=c&q=d")]
    assert both_results(ratelimit(key="get:q", rate="1/d"), limit("1/d", key="get:q"), *requests) == (
        [True, False, True, True],
        [True, True, True, False],
    )


def test_ipv6_clients_count_by_network() -> None:
    """Both packages count a /64 network as one client."""
    one, neighbour, other = ({"client": f"2001:db8:{net}::{host}"} for net, host in (("1", 1), ("1", 2), ("2", 1)))
    decorators = ratelimit(key="ip", rate="1/d"), limit("1/d", key="ip")
    assert same_results(*decorators, one, neighbour, other) == [True, False, True]


def test_method_becomes_a_match_on_methods() -> None:
    """``method`` becomes a match on methods. ``UNSAFE`` works unchanged as a list."""
    posted, read = {"method": "POST"}, {"method": "GET"}
    for method in ("POST", ["POST"], UNSAFE):
        decorators = ratelimit(key="ip", rate="1/d", method=method), limit("1/d", match={"methods": method})
        assert same_results(*decorators, posted, posted, read) == [True, False, True]
        cache.clear()


def test_functions_become_features_and_plans() -> None:
    """A key function becomes a feature function. A rate function becomes a plan with a table of limits."""

    def client(request: Any) -> str:
        return request.headers.get("X-Name", "")

    def rate(group: str, request: Any) -> str:
        return "2/d" if client(request) == "ann" else "1/d"

    theirs = ratelimit(key=lambda group, request: client(request), rate=rate)
    ours = limit("1/d", key="client", per={"client": {"ann": "2/d"}})
    served = same_results(theirs, ours, ANN, ANN, ANN, BOB, BOB, features={"client": client})
    assert served == [True, True, False, True, False]


def test_a_rate_of_none_is_a_match() -> None:
    """A function that returned ``None`` for some users becomes a match on the others."""

    def staff(request: Any) -> str:
        return "yes" if request.headers.get("X-Name") == "ann" else "no"

    theirs = ratelimit(key="ip", rate=lambda group, request: None if staff(request) == "yes" else "1/d")
    ours = limit("1/d", match={"staff": "no"})
    assert same_results(theirs, ours, ANN, ANN, BOB, BOB, features={"staff": staff}) == [True, True, True, False]


def test_a_rate_of_zero_is_a_deny_list() -> None:
    """A rate of zero becomes an entry on the deny list with the same status."""
    theirs = ratelimit(key="ip", rate=lambda group, request: "0/s" if request.user.pk == "mallory" else None)
    rules = {"lists": {"deny": {"user": ["mallory"]}}}
    views = [path("theirs", theirs(hello)), path("ours", hello)]
    with project(rules, *views, middleware=WITH_USERS) as served:
        codes = [
            served.ask(where, headers={"X-Name": name}).status_code
            for where in ("/theirs", "/ours")
            for name in ("mallory", "ann")
        ]
    assert codes == [403, 200, 403, 200]


def test_a_group_is_one_limit_on_several_views() -> None:
    """Views with one group, key and rate shared a count. One limit object on them has one count, too."""
    theirs, ours = ratelimit(group="api", key="ip", rate="3/d"), limit("3/d", name="api")
    views = [path("a", theirs(hello)), path("b", theirs(hello)), path("c", ours(hello)), path("d", ours(hello))]
    with project(Limiter(clock=ManualClock(NOW)), *views) as it:
        assert [it.ask(where).status_code for where in ("/a", "/b", "/a", "/b")] == [200, 200, 200, 403]
        assert [it.ask(where).status_code for where in ("/c", "/d", "/c", "/d")] == [200, 200, 200, 429]


def test_a_view_that_calls_the_limiter() -> None:
    """``is_ratelimited`` and ``get_usage`` become ``hit`` and ``peek`` of your own limiter."""
    limiter = Limiter([Rule(name="hints", limits="2/d", key="word")], clock=ManualClock(NOW))

    def theirs(request: Any) -> HttpResponse:
        options = {"group": "hints", "key": "get:word", "rate": "2/d"}
        limited = is_ratelimited(request, **options, increment=True)
        usage = get_usage(request, **options)
        assert usage is not None
        return HttpResponse(f"{limited} {max(0, usage['limit'] - usage['count'])}")

    def ours(request: Any) -> HttpResponse:
        features = {"word": request.GET.get("word")}
        limited = not limiter.hit(features)
        return HttpResponse(f"{limited} {limiter.peek(features, cost=0).decisions[0].remaining}")

    with project(None, path("theirs", theirs), path("ours", ours)) as served:
        bodies = [[served.ask(f"{where}?word=tea").content for _ in range(3)] for where in ("/theirs", "/ours")]
    assert bodies[0] == bodies[1] == [b"False 1", b"False 0", b"True 0"]


def test_a_view_that_reads_the_decision() -> None:
    """``block=False`` and ``request.limited`` become a shadow rule and its decision."""

    def theirs(request: Any) -> HttpResponse:
        return HttpResponse(f"{request.limited}")

    def ours(request: Any) -> HttpResponse:
        return HttpResponse(f"{any(not decision.allowed for decision in request.ratelimit.decisions)}")

    views = [
        path("theirs", ratelimit(key="ip", rate="1/d", block=False)(theirs)),
        path("ours", limit("1/d", mode="shadow")(ours)),
    ]
    with project({"limiter": Limiter(clock=ManualClock(NOW))}, *views) as served:
        bodies = [[served.ask(where).content for _ in range(3)] for where in ("/theirs", "/ours")]
    assert bodies[0] == bodies[1] == [b"False", b"True", b"True"]


def forbidden(request: Any, verdict: Any) -> HttpResponse:
    return HttpResponse("no", status=403)


def test_the_status_can_stay_403() -> None:
    """The default is 429 with ``Retry-After``. A custom rejection can send 403."""
    views = [path("theirs", ratelimit(key="ip", rate="1/d")(hello)), path("ours", limit("1/d")(hello))]
    with project({"limiter": Limiter(clock=ManualClock(NOW))}, *views) as served:
        theirs, ours = ([served.ask(where) for _ in range(2)][1] for where in ("/theirs", "/ours"))
    assert (theirs.status_code, theirs.has_header("Retry-After")) == (403, False)
    assert (ours.status_code, ours.has_header("Retry-After")) == (429, True)
    options = {"limiter": Limiter(clock=ManualClock(NOW)), "rejection": f"{__name__}.forbidden"}
    with project(options, path("ours", limit("1/d")(hello))) as served:
        assert served.statuses("/ours", 2) == [200, 403]


def test_users_who_are_not_signed_in() -> None:
    """``user`` counted all of them together as ``None``. Here the rule does not apply, or counts by IP address."""
    theirs, ours = ratelimit(key="user", rate="1/d"), limit("1/d", key="user")
    views = [
        path("theirs", theirs(hello)),
        path("ours", ours(hello)),
        path("either", limit("1/d", key="user_or_ip")(hello)),
    ]
    with project({"limiter": Limiter(clock=ManualClock(NOW))}, *views, middleware=WITH_USERS) as served:
        clients = [{"client": f"192.0.2.{number}"} for number in (1, 2, 2)]
        assert [served.ask("/theirs", **client).status_code for client in clients] == [200, 403, 403]
        assert [served.ask("/ours", **client).status_code for client in clients] == [200, 200, 200]
        assert [served.ask("/either", **client).status_code for client in clients] == [200, 200, 429]


def test_the_ip_address_from_a_header() -> None:
    """``RATELIMIT_IP_META_KEY`` trusted every sender of the header. ``trusted_proxies`` trusts only the proxies."""
    views = [path("theirs", ratelimit(key="ip", rate="1/d")(hello)), path("ours", limit("1/d")(hello))]
    limits = {"limiter": Limiter(clock=ManualClock(NOW)), "trusted_proxies": ["10.0.0.0/8"]}
    proxied = [{"client": "10.0.0.1", "headers": {"X-Forwarded-For": f"192.0.2.{number}"}} for number in (1, 1, 2)]
    with (
        override_settings(RATELIMIT_IP_META_KEY="HTTP_X_FORWARDED_FOR"),
        project(limits, *views) as served,
    ):
        assert (
            served_requests(served, "/theirs", *proxied)
            == served_requests(served, "/ours", *proxied)
            == [True, False, True]
        )
        forged = [{"client": "192.0.2.9", "headers": {"X-Forwarded-For": f"198.51.100.{i}"}} for i in (1, 2)]
        assert served_requests(served, "/theirs", *forged) == [True, True]
        assert served_requests(served, "/ours", *forged) == [True, False]


def test_ip_addresses_and_groups_with_an_accidentally_shared_count() -> None:
    """All IPv4-mapped addresses were one network. Group, rate and value were joined without a separator."""
    views = [
        path("theirs", ratelimit(key="ip", rate="1/d")(hello)),
        path("ours", limit("1/d")(hello)),
        path("one", ratelimit(group="x1", key="ip", rate="5/d")(hello)),
        path("other", ratelimit(group="x", key="ip", rate="15/d")(hello)),
    ]
    with project({"limiter": Limiter(clock=ManualClock(NOW))}, *views) as served:
        mapped = [{"client": f"::ffff:{address}"} for address in ("192.0.2.7", "198.51.100.9")]
        assert served_requests(served, "/theirs", *mapped) == [True, False]
        assert served_requests(served, "/ours", *mapped) == [True, True]
        assert served.statuses("/other", 6) == [200] * 6
        assert served.statuses("/one", 1) == [403]
