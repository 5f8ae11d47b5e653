"""Bisection finds a client in networks. Addresses that no client can have are errors where the key is known."""

import ipaddress
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from calls import ask
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.routing import Route
from starlette_apps import application, hello
from tables import case, expect_error

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.keys.ip import (
    Network,
    Networks,
    canonical_ip,
    embedded_ipv4,
    ip_key,
    parse_network,
    widened,
)
from ratelimit_mw.keys.key import KeyMaker, parse_key
from ratelimit_mw.keys.parts import as_counted
from ratelimit_mw.starlette import limit
from ratelimit_mw.wsgi.middleware import RateLimitMiddleware as WSGIMiddleware

# Few leading bits, so that random networks touch, overlap and contain one another.
NUMBERS = st.builds(lambda top, low: top << 28 | low, st.integers(0, 15), st.sampled_from([0, 1, 2**28 - 1]))
IPV4 = st.builds(lambda n, bits: ipaddress.IPv4Network((n, bits), strict=False), NUMBERS, st.integers(0, 32))
IPV6 = st.builds(
    lambda n, bits: ipaddress.IPv6Network((0x3 << 124 | n << 92, bits), strict=False), NUMBERS, st.integers(4, 128)
)

ONE_CLIENT = ipaddress.IPv6Network("2001:db8:1:2::/64")
APART = [ipaddress.ip_network(text) for text in ("10.0.0.0", "10.0.0.2", "2001:db8:1:2:8000::/65")]


def is_in_one(client: Network, networks: list[Network]) -> bool:
    """Compare with every address range in turn. Networks that touch count together, as they do for a client."""
    merged = ipaddress.collapse_addresses(network for network in networks if network.version == client.version)  # type: ignore[type-var]
    return any(client.subnet_of(network) for network in merged)  # type: ignore[arg-type]


@given(st.lists(IPV4 | IPV6, max_size=12), st.lists(IPV4 | IPV6, min_size=1, max_size=12))
@example([*ONE_CLIENT.subnets()], [ONE_CLIENT])
@example(APART, [ONE_CLIENT, ipaddress.IPv4Network("10.0.0.1")])
def test_bisection_agrees_with_a_comparison_of_each_network(networks: list[Network], clients: list[Network]) -> None:
    """Networks may overlap, touch or repeat, in both versions and in any order."""
    merged = Networks(networks)
    for client in (*clients, *networks):
        assert (str(client) in merged) == is_in_one(client, networks)


def test_a_text_that_is_no_ip_address_is_in_no_network() -> None:
    """Neither malformed text nor a number is a client. ``::/0`` contains no IPv4 client."""
    for client in ("", "unknown", "10.0.0.1/8", "10.0.0.256", "1" * 9999, None, 167772161):
        assert client not in Networks(map(parse_network, ("0.0.0.0/0", "::/0")))
    for client, network, is_in in (
        ("192.0.2.7", "::/0", False),
        ("192.0.2.7", "0.0.0.0/0", True),
        ("2001:db8::/64", "::/0", True),
        ("2001:db8::/64", "0.0.0.0/0", False),
    ):
        assert (client in Networks([parse_network(network)])) == is_in


def test_a_client_of_a_tunnel_that_holds_a_private_address_is_in_a_network() -> None:
    """Its address is not unwrapped, so it counts as IPv6."""
    client = ip_key("2001::f5ff:fffe")
    assert client == "2001::/64"
    assert client in Networks([parse_network("2000::/3")])


# -- IPv4 addresses in IPv6 --------------------------------------------------------------------------------


def test_the_ipv4_address_of_a_tunnel_or_translator() -> None:
    """A private address in a tunnel is forged, so it never becomes the private client or a trusted proxy."""
    for text, ipv4 in (
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("64:ff9b::192.0.2.7", "192.0.2.7"),
        ("64:FF9B:0::c000:207", "192.0.2.7"),
        ("2002:c000:207::1", "192.0.2.7"),
        ("2002:c000:207:9:8:7:6:5", "192.0.2.7"),
        ("2001::3fff:fdf8", "192.0.2.7"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "192.0.2.45"),  # the example of RFC 4380
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::192.0.2.7", None),
        ("64:ff9b:1::192.0.2.7", None),
        ("64:ff9b::1:192.0.2.7", None),
        ("2001:1::3fff:fdf8", None),
        ("2003:c000:207::1", None),
        ("64:ff9b::10.0.0.1", None),
        ("2002:7f00:1::1", None),
        ("2002:a00:1::1", None),
        ("2001::f5ff:fffe", None),  # 10.0.0.1 inverted
    ):
        found = embedded_ipv4(IPv6Address(text))
        assert (found and str(found)) == ipv4, text
        assert canonical_ip(text) == (ipv4 or text)


def test_a_wrong_network_prefix_or_width_is_an_error() -> None:
    """The message names the setting, or shows the forms. A whole tunnel counts as IPv4 clients, so it never matches."""
    for text in ("64:ff9b::/96", "2002::/16", "2001::/32", "2001::/64", "2001:0:4136:e378::/64"):
        expect_error(r"counts as the IPv4 address in it\. Write IPv4 networks", parse_network, text)
    for part in ("ip/0", "ip/129", "ip/24/0", "ip/33/48", "ip/24/129", "ip/", "ip/x", "ip/024", "ip/1/2/3"):
        expect_error(r'^\[0\]: expected "ip/24" \(IPv4\), "ip/48" \(IPv6\) or "ip/24/48"', parse_key, [part])


def test_the_network_of_a_forged_tunnel_is_a_client() -> None:
    """Its requests are counted under this network, so the commands that show it also take it."""
    client = ip_key("2001:0:4136:e378:8000:63bf:f5ff:fffe")  # 10.0.0.1 inverted
    assert client == "2001:0:4136:e378::/64"
    assert as_counted({"ip": client}) == {"ip": client}


def test_a_network_in_ipv6_form_is_the_ipv4_network() -> None:
    """A list matches the clients in it, whose addresses are canonical_ip too."""
    for text, network in (
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("64:ff9b::203.0.113.0/120", "203.0.113.0/24"),
        ("2002:cb00:7100::/40", "203.0.113.0/24"),
        ("2002:cb00:7109::/64", "203.0.113.9/32"),
        ("2001::34ff:8e00/120", "203.0.113.0/24"),
        ("2001::34ff:8ef6", "203.0.113.9/32"),
        ("2002:a00::/24", "2002:a00::/24"),
        ("2000::/3", "2000::/3"),
    ):
        assert str(parse_network(text)) == network


@given(st.integers(0, 2**32 - 1))
def test_a_client_has_one_key_through_every_tunnel(number: int) -> None:
    """One host cannot multiply its limit by 6to4, Teredo and NAT64, whatever it appends to its prefix."""
    ipv4 = IPv4Address(number)
    forms = [
        IPv6Address(0x64FF9B << 96 | number),
        IPv6Address(0x2002 << 112 | number << 80 | 7),
        IPv6Address(0x20010000 << 96 | 99 << 64 | number ^ 0xFFFFFFFF),
    ]
    expected = {f"{{ip={ipv4}}}"} if embedded_ipv4(forms[0]) else {f"{{ip={form}}}" for form in forms}
    assert {KeyMaker(parse_key("ip")).build({"ip": str(form)}) for form in forms} == expected


# -- widths ------------------------------------------------------------------------------------------------


@given(st.ip_addresses(), st.integers(1, 32), st.integers(1, 128))
def test_a_wider_network_contains_the_client(address: IPv4Address | IPv6Address, ipv4: int, ipv6: int) -> None:
    """A client is in its network, which has at most so many bits. A network is its own network."""
    text = widened(str(address), ipv4, ipv6)
    network = ipaddress.ip_network(text)
    client = ipaddress.ip_address(canonical_ip(str(address)))
    assert client in network
    assert network.prefixlen <= (ipv4 if network.version == 4 else ipv6)
    assert widened(text, ipv4, ipv6) == text


def test_a_key_counts_by_a_wider_network() -> None:
    """``ip/24`` widens IPv4, ``ip/48`` widens IPv6. An address that is missing is one value, as with ``ip``."""
    for part, ip, key in (
        ("ip/24", "192.0.2.7", "ip/24=192.0.2.0/24"),
        ("ip/24", "::ffff:192.0.2.7", "ip/24=192.0.2.0/24"),
        ("ip/24", "2001:db8:1:2::/64", "ip/24=2001:db8:1:2::/64"),
        ("ip/48", "192.0.2.7", "ip/48=192.0.2.7"),
        ("ip/48", "2002:c000:207::1", "ip/48=192.0.2.7"),
        ("ip/48", "2001:db8:1:2::/64", "ip/48=2001:db8:1::/48"),
        ("ip/48", "2001:DB8:1:2::9%eth0", "ip/48=2001:db8:1::/48"),
        ("ip/32", "2001:db8:1:2::9", "ip/32=2001:db8::/32"),
        ("ip/24/48", "192.0.2.7", "ip/24/48=192.0.2.0/24"),
        ("ip/24/48", "2001:db8:1:2::/64", "ip/24/48=2001:db8:1::/48"),
        ("ip/24/48", None, "ip/24/48=unknown"),
        ("ip/24/48", "somewhere", "ip/24/48=somewhere"),
        ("user|ip/24", "192.0.2.7", "ip/24=192.0.2.0/24"),
    ):
        maker = KeyMaker(parse_key(part), warn=lambda: None)
        assert maker.build({"ip": ip}) == f"{{{key}}}"
        assert maker.with_prefix("p|")({"ip": ip}) == f"p|{{{key}}}"


def test_limits_of_single_networks() -> None:
    """``per_key`` of a wide key lists networks of that width."""
    rule = {
        "key": "ip/24/48",
        "limits": "1/minute",
        "per_key": {"192.0.2.0/24": "9/minute", "2001:db8:1::/48": "8/minute"},
    }
    limiter = Limiter.from_settings({"rules": [rule]})
    limits = [limiter.peek({"ip": ip}).decisions[0].limit for ip in ("192.0.2.7", "2001:db8:1:2::/64", "192.0.3.7")]
    assert limits == [9, 8, 1]
    expect_error(
        r"192.0.2.0/20' is a network, not a client",
        load_settings,
        {"rules": [{**rule, "per_key": {"192.0.2.0/20": "9/minute"}}]},
    )


def test_a_width_beyond_the_setting_is_an_error() -> None:
    """``ipv6_prefix`` has cut the address before."""
    settings: Any = {"rules": [{"key": "ip/80", "limits": "1/minute"}]}
    expect_error(r"key: 'ip/80' cannot be counted: IPv6 clients are counted per /64", load_settings, settings)
    assert load_settings({**settings, "ipv6_prefix": 128})
    assert load_settings({"rules": [{"key": "ip/64", "limits": "1/minute"}]})


PREFIX = r"IPv6 clients are counted per /64 \(ipv6_prefix = 64\)"
NEVER = rf"2001:db8::1/128 never matches: {PREFIX}. Write '2001:db8::/64'"
ONE = r".* is a network, not a client. Write a rule with match = "
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"match": {"ip": "2001:db8::1"}}, f"match.ip: {NEVER}"),
    ({"match": {"ip": ["10.0.0.0/8", "2001:db8::1"]}}, f"match.ip: {NEVER}"),
    (
        {"per_key": {"2001:db8::1": "9/s"}},
        rf"per_key\['2001:db8::1'\]: 2001:db8::1 never matches: {PREFIX}. Write '2001:db8::/64'",
    ),
    ({"per_key": {"2001:db8::/48": "9/s"}}, rf"per_key\['2001:db8::/48'\]: {ONE}"),
    ({"per_key": {"10.0.0.0/8": "9/s"}}, rf"per_key\['10.0.0.0/8'\]: {ONE}"),
    ({"per_key": {"::ffff:10.0.0.0/104": "9/s"}}, rf"per_key\['::ffff:10.0.0.0/104'\]: {ONE}"),
    ({"per_key": {"192.0.2.7/32": "9/s"}}, r"per_key\['192.0.2.7/32'\]: not in canonical form. Write '192.0.2.7'"),
    ({"per_key": {"2001:DB8::/64": "9/s"}}, r"per_key\['2001:DB8::/64'\]: .*. Write '2001:db8::/64'"),
    ({"per_key": {"2001:db8::1/64": "9/s"}}, r"per_key\['2001:db8::1/64'\]: .*. Write '2001:db8::/64'"),
    ({"per_key": {"fe80::1%eth0": "9/s"}, "key": "user|ip"}, r"per_key\['fe80::1%eth0'\]: .*. Write 'fe80::/64'"),
    ({"per": {"ip": {"2001:db8::1": "9/s"}}}, r"per.ip\['2001:db8::1'\]: .*. Write '2001:db8::/64'"),
    ({"per": {"ip": {"10.0.0.0/8": "9/s"}}, "key": "user"}, rf"per.ip\['10.0.0.0/8'\]: {ONE}"),
]
RIGHT: list[dict[str, Any]] = [
    {"match": {"ip": ["2001:db8::/64", "2001:db8::/32", "10.1.2.3", "::ffff:10.1.2.3"]}},
    {"per_key": {"2001:db8::/64": "9/s", "10.1.2.3": "9/s", "::ffff:10.1.2.4": "9/s", "unknown": "9/s"}},
    {"per_key": {"client-42": "9/s"}, "key": "user|ip"},
    {"per_key": {"2001:db8::1": "9/s", "10.0.0.0/8": "9/s"}, "key": "header:x-net"},
    {"per": {"net": {"10.0.0.0/8": "9/s"}, "ip": {"10.1.2.3": "9/s"}}},
]


def rule_options(rule: dict[str, Any]) -> dict[str, Any]:
    return {"limits": "1/minute", **rule}


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_an_impossible_ip_address_is_rejected() -> None:
    """Settings show the path. The middleware checks the rules of a limiter, and the first request checks decorators."""
    for rule, message in WRONG:
        expect_error(rf"^rules\[1\]: {message}", load_settings, {"rules": [{"limits": "1/s"}, rule_options(rule)]})
        limiter = Limiter([Rule(name="api", **rule_options(rule))])
        for middleware in (RateLimitMiddleware, WSGIMiddleware):
            expect_error(rf"^rule 'api': {message}", middleware, app, limiter=limiter)
        expect_error(
            rf"^{__file__}:\d+: rule 'starlette_apps\.hello': {message}",
            ask,
            application([Route("/", limit(**rule_options(rule))(hello))]),
        )


def test_an_impossible_ip_address_in_an_override_is_rejected() -> None:
    """The check runs when settings are loaded, if they set the key, or else with the decorator."""
    for rule, message in WRONG:
        replacing = {"rules": [{"overrides": "login", "key": "ip", **rule}]}
        expect_error(rf"^rules\[0\] .login.: {message}", load_settings, replacing)
        view = limit("5/s", name="login", key=rule.get("key", "ip"))(hello)
        pattern = rf"^(rules\[0\] .login.: |{__file__}:\d+: rule .login.: ){message}"
        settings: Any = {"rules": [{"overrides": "login", **rule}]}
        with case(rule), pytest.raises(ConfigError, match=pattern):
            ask(application([Route("/", view)], limiter=Limiter.from_settings(settings)))


def test_an_override_may_have_a_key_with_other_values() -> None:
    """A table in an override belongs to the key of the decorator."""
    settings = {"rules": [{"overrides": "login", "per_key": {"2001:db8::1": "2/s"}}]}
    view = limit("1/s", name="login", key="header:x-net")(hello)
    app = application([Route("/", view)], limiter=Limiter.from_settings(settings))
    assert ask(app, headers={"x-net": "2001:db8::1"}).headers["x-ratelimit-limit"] == "2"


def test_possible_values_of_features_are_accepted() -> None:
    """The check applies only to text that parses as an IP address, and only for IP features."""
    for rule in RIGHT:
        assert load_settings({"rules": [rule_options(rule)]}).rules
        features = {"net": lambda request: None}
        assert RateLimitMiddleware(app, limiter=Limiter([Rule(**rule_options(rule))]), features=features)


def test_the_check_uses_the_prefix_of_the_settings_and_of_the_middleware() -> None:
    """With prefix 128 each IPv6 address is its own client. A list or rule that an argument disables stops the start."""
    rule = rule_options({"match": {"ip": "2001:db8::1"}, "per_key": {"2001:db8::1": "9/s"}})
    assert load_settings({"ipv6_prefix": 128, "rules": [rule]}).rules
    assert load_settings({"ipv6_prefix": 24, "lists": {"deny": {"ip": ["192.0.2.7"]}}}).lists.entries  # of IPv6 alone
    for settings, message in (
        ({"lists": {"deny": {"ip": ["2001:db8::/64"]}}}, r"lists\.deny\.ip: .* per /48 .*. Write '2001:db8::/48'"),
        ({"lists": {"allow": {"ip": ["2001:db8::/64"]}}}, r"lists\.allow\.ip: .* per /48 "),
        ({"rules": [rule_options({"match": {"ip": "2001:db8::/64"}})]}, r"rule 'rule-1': match\.ip: .* per /48 "),
        (
            {"rules": [rule_options({"per_key": {"2001:db8::/64": "9/s"}})]},
            r"rule 'rule-1': per_key\[.*. Write '2001:db8::/48",
        ),
    ):
        for middleware in (RateLimitMiddleware, WSGIMiddleware):
            expect_error(f"^{message}", middleware, app, settings=settings, ipv6_prefix=48)
            assert middleware(app, settings=settings, ipv6_prefix=64)


def test_a_custom_ip_feature_may_be_any_text() -> None:
    rule = Rule(**rule_options({"match": {"ip": "2001:db8::1"}}))
    guarded = RateLimitMiddleware(app, limiter=Limiter([rule]), features={"ip": lambda request: "2001:db8::1"})
    assert [ask(guarded).status_code for _ in range(2)] == [200, 429]
