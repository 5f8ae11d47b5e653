"""The methods of a limiter mean the client that the requests of its middleware are counted under."""

import asyncio
from ipaddress import IPv6Address
from typing import Any

from calls import OK
from sites import ASGISite, Site, WSGISite
from tables import each, expect_error

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock

BAN: Any = {"after": 9, "within": "1m", "for": "1h"}


def limiter_of(**settings: Any) -> Limiter:
    rule = Rule(name="api", limits="2/minute", ban=BAN)
    return Limiter([rule], clock=ManualClock(1_000_000.0), settings=load_settings(settings))


def check_verbs(site: Site, limiter: Limiter, clients: list[str], named: str) -> None:
    """Check that the methods of a limiter mean the client of requests that come from these addresses."""
    features = {"ip": named}
    assert site.statuses(3, client=clients[0]) == [200, 200, 429]
    assert [decision.remaining for decision in limiter.clients.inspect("api", features).decisions] == [0]
    limiter.reset("api", features)
    assert site.statuses(1, client=clients[-1]) == [200]
    limiter.clients.ban("api", features)
    assert site.call(client=clients[0]).headers["retry-after"] == "3600"
    assert limiter.clients.unban("api", features)
    limiter.clients.override("api", features, "9/minute")
    assert site.call(client=clients[-1]).headers["x-ratelimit-limit"] == "9"
    assert limiter.clients.remove_override("api", features)


@each("kind", [ASGISite, WSGISite])
@each(
    ("settings", "client", "named"),
    [
        ({}, "2001:db8::7", "2001:db8::1"),
        ({}, "2001:db8::7", "2001:DB8::/64"),
        ({}, "192.0.2.7", "::ffff:192.0.2.7"),
        ({"ipv6_prefix": 128}, "2001:db8::1", "2001:DB8:0::1"),
    ],
)
def test_a_client_is_that_of_its_requests(kind: Any, settings: dict[str, Any], client: str, named: str) -> None:
    """You name an IP address in any form, or the network that a table shows."""
    with kind(limiter_of(**settings)) as site:
        check_verbs(site, site.limiter, [client], named)


def test_a_limiter_of_settings_means_the_clients_of_a_middleware() -> None:
    """A program without HTTP shares the store and the settings with the middleware."""
    table: Any = {"rules": [{"name": "api", "limits": "2/minute", "ban": BAN}], "ipv6_prefix": 56}
    with ASGISite(table) as site:
        program = Limiter.from_settings(table, site.clock, site.limiter.store)
        check_verbs(site, program, ["2001:db8:0:7::7", "2001:db8:0:ff::7"], "2001:db8::1")


@each(
    ("options", "banned"),
    [({"ipv6_prefix": 48}, "2001:db8:0:1::1"), ({"features": {"ip": lambda _: "2001:db8::1"}}, "2001:db8::1")],
)
def test_an_argument_of_the_middleware_decides(options: Any, banned: str) -> None:
    """A function of yours is one, whose value is taken as it is."""
    with ASGISite(limiter_of(), **options) as site:
        site.limiter.clients.ban("api", {"ip": banned})
        assert site.statuses(1, client="2001:db8:0:2::1") == [429]


@each("text", ["192.0.2", "office", "2001:db8::1::2", "x" * 100])
def test_a_client_without_an_ip_address_is_an_error(text: str) -> None:
    """A middleware counts no such client, so it would not be banned."""
    with ASGISite(limiter_of()) as site:
        expect_error("ip: expected an IP address or a network", site.limiter.clients.ban, "api", {"ip": text})


FORMS: Any = ["2001:db8::1", "2001:DB8::2%eth0", "[2001:db8::3]:80", "2001:db8::/64", IPv6Address("2001:db8::4")]


@each("has_middleware", [False, True])
@each("form", FORMS)
def test_hit_and_ban_of_one_limiter_mean_one_client(form: object, has_middleware: bool) -> None:
    limiter = Limiter.from_settings({"rules": [{"name": "api", "limits": "9/minute", "ban": BAN}]})
    app = RateLimitMiddleware(OK, limiter=limiter) if has_middleware else None
    limiter.clients.ban("api", {"ip": "2001:db8::9"})
    features = {"ip": form}
    assert limiter.hit(features).banned
    assert asyncio.run(limiter.ahit(features)).banned
    assert limiter.peek(features).banned
    assert asyncio.run(limiter.apeek(features)).banned
    assert limiter.clients.unban("api", features)
    assert limiter.hit(features).allowed
    del app


@each("text", ["192.0.2.0/24", "2001:db8::/48", "office"])
def test_a_limiter_of_settings_bans_clients_only(text: str) -> None:
    """A ban of another text would have no effect. ``hit`` counts it as it is."""
    limiter = Limiter.from_settings({"rules": [{"name": "api", "limits": "9/minute", "ban": BAN}]})
    assert limiter.hit({"ip": text}).decisions[0].client == f"ip={text}"
    clients = limiter.clients
    for method in (clients.ban, clients.unban, limiter.reset, clients.inspect, clients.remove_override):
        expect_error("ip: expected an IP address", method, "api", {"ip": text})
    expect_error("ip: expected an IP address", clients.override, "api", {"ip": text}, "1/minute")


def test_a_limiter_without_a_middleware_cuts_no_address() -> None:
    """Then ``hit`` counts what you pass, and so do the other methods."""
    limiter = limiter_of()
    limiter.clients.ban("api", {"ip": "2001:db8::1"})
    assert [limiter.hit({"ip": f"2001:db8::{i}"}).banned for i in (1, 2)] == [True, False]


def test_an_email_address_is_normalised() -> None:
    limiter = Limiter([Rule(name="mail", key=["email"], limits="2/minute", ban=BAN, match={"view": ""})])
    app = RateLimitMiddleware(OK, limiter=limiter)
    limiter.clients.ban("mail", {"email": "Ann@B\u00dcCHER.example"})
    plan = limiter.rules.plan_for_rule("mail", None)
    assert limiter.decide(plan, {"email": "ann@xn--bcher-kva.example"}).banned
    del app
