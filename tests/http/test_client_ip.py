"""No client can forge its IP address or appear as many clients."""

import ipaddress
from io import BytesIO
from typing import Any

import pytest
from calls import OK, ask, http_scope, limited, limiter, send_bare
from django.core.handlers.asgi import ASGIRequest as DjangoASGIRequest
from hypothesis import given
from hypothesis import strategies as st
from sites import ASGISite, WSGISite
from tables import each
from wsgi_calls import Served, listing

from ratelimit_mw import ConfigError, Rule, load_settings
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.django.request import DjangoRequest
from ratelimit_mw.http import features
from ratelimit_mw.http.client_ip import ClientIP
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.keys.ip import embedded_ipv4, ip_key
from ratelimit_mw.wsgi import RateLimitMiddleware

PROXIES = ["10.0.0.0/8", "2001:db8:ffff::/48"]
PROXY, REAL = "10.0.0.1", "203.0.113.9"


def xff(*lines: str, peer: str | None = PROXY, trusted: Any = PROXIES) -> str | None:
    return ClientIP(trusted).resolve(peer, list(lines))


# -- IP addresses ------------------------------------------------------------------------------------------


@each(
    ("text", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:4711", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:c000:207", "192.0.2.7"),
        ("::FFFF:C000:0207", "192.0.2.7"),
        ("[::ffff:192.0.2.7]:4711", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::9", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]:80", "2001:db8:1:2::/64"),
        ("2001:db8::1.2.3.4", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("[fe80::1%eth0]:80", "fe80::/64"),
        ("::1", "::/64"),
        ("64:ff9b::192.0.2.7", "192.0.2.7"),
        ("[2002:c000:207:1::9]:4711", "192.0.2.7"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdf8", "192.0.2.7"),
        ("2002:a00:1::9", "2002:a00:1::/64"),
    ],
)
def test_every_spelling_of_an_ip_address_is_one_key(text: str, key: str) -> None:
    """Ports, brackets, zones, case and IPv4-mapped forms give the same key. IPv6 counts by network."""
    assert ip_key(text) == key


@each(
    "text",
    [
        *("", " ", "unknown", "_hidden", "unix:", "localhost", "testclient", "0.0.0.0", "::", "::ffff:0.0.0.0"),
        *(
            "192.0.2.7 ",
            " 192.0.2.7",
            "192.0.2.7\n",
            "192.0.2.07",
            "192.0.2",
            "192.0.2.256",
            "0xc0000207",
            "3221225991",
        ),
        *("\uff11\uff19\uff12.0.2.7", "192.0.2.7:", "192.0.2.7:port", "192.0.2.7%eth0", "192.0.2.7/32", "3221225991"),
        *("fe80::1%", "fe80::1%eth0\n", "fe80::1%a b", "fe80::1%a%b", "[fe80::1%]", "fe80::1%[x]"),
        *("[::1", "::1]", "[::1]:", "[::1]:x", "[::1]80", "[[::1]]", ":::1", "12345::", "::ffff:192.0.2.256"),
    ],
)
def test_text_that_is_no_ip_address_has_no_key(text: str) -> None:
    """Names, blanks, line ends, disguised numbers and unspecified addresses have no key."""
    assert ip_key(text) is None


@each(
    ("prefix", "key"),
    [(128, "2001:db8:1:2:3:4:5:6"), (56, "2001:db8:1::/56"), (48, "2001:db8:1::/48"), (1, "::/1")],
)
def test_the_ipv6_prefix_is_a_setting(prefix: int, key: str) -> None:
    """``ipv6_prefix`` cuts IPv6 addresses in every notation. IPv4 addresses stay whole."""
    client_ip = ClientIP(ipv6_prefix=prefix)
    assert client_ip.resolve("2001:db8:1:2:3:4:5:6") == key
    assert client_ip.resolve("::ffff:192.0.2.7") == client_ip.resolve("192.0.2.7") == "192.0.2.7"


@given(st.ip_addresses())
def test_a_key_names_the_network_of_the_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """The key of an address is the address itself or a network that contains it. A key is its own key."""
    key = ip_key(str(address))
    if address.is_unspecified or (address.version == 6 and embedded_ipv4(address)):
        return
    assert key is not None
    assert address in ipaddress.ip_network(key)
    assert ip_key(key.removesuffix("/64")) in (key, None)


@given(st.text(max_size=80))
def test_no_key_contains_unsafe_text(text: str) -> None:
    """For any text, the key is None or short printable ASCII without blanks."""
    key = ip_key(text)
    assert key is None or (key.isascii() and key.isprintable() and " " not in key and len(key) <= 43)


# -- X-Forwarded-For ---------------------------------------------------------------------------------------


@each(
    ("lines", "client"),
    [
        ([], PROXY),
        ([""], PROXY),
        ([" , ,"], PROXY),
        ([REAL], REAL),
        ([f" {REAL}\t"], REAL),
        ([f"1.1.1.1, {REAL}"], REAL),
        ([f"1.1.1.1, {REAL}, 10.9.9.9"], REAL),
        ([f"1.1.1.1, {REAL}, , 10.9.9.9,"], REAL),
        (["1.1.1.1", REAL], REAL),
        ([REAL, "10.9.9.9"], REAL),
        ([REAL, "10.9.9.9, 10.9.9.8", "2001:db8:ffff::1"], REAL),
        ([f"{REAL}:4711, 10.9.9.9:80"], REAL),
        (["2001:db8:1:2::9, ::ffff:10.1.1.1"], "2001:db8:1:2::/64"),
        (["[2001:db8:1:2::9]:4711, [2001:db8:ffff::1]:80"], "2001:db8:1:2::/64"),
        (["::ffff:203.0.113.9"], REAL),
        (["::ffff:cb00:7109"], REAL),
        (["fe80::1%eth0"], "fe80::/64"),
        (["10.1.1.1, 10.2.2.2"], PROXY),
        (["1.1.1.1, junk"], PROXY),
        (["1.1.1.1, unknown, 10.1.1.1"], PROXY),
        (["1.1.1.1, 0.0.0.0"], PROXY),
        (["1.1.1.1, ::"], PROXY),
        (["1.1.1.1, fe80::1%eth0\n"], PROXY),
        (["1.1.1.1, unix:"], PROXY),
        (["1.1.1.1, " + "9" * 65], PROXY),
        (["1.1.1.1; 2.2.2.2"], PROXY),
        (['"1.1.1.1"'], PROXY),
    ],
)
def test_the_rightmost_untrusted_address_is_the_client(lines: list[str], client: str) -> None:
    """The search runs from the right over all lines. It skips trusted proxies and stops at invalid text."""
    assert xff(*lines) == client


@each("header", ["x-forwarded-for", "forwarded"])
@each("peer", [REAL, "2001:db8:1:2::9", "::ffff:203.0.113.9"])
def test_an_untrusted_peer_cannot_name_another_client(peer: str, header: str) -> None:
    """The middleware ignores every forwarding header of an untrusted peer."""
    for lines in (["1.1.1.1"], ["for=1.1.1.1"], ["10.0.0.1"], ["junk"], [""]):
        assert ClientIP(PROXIES, header).resolve(peer, lines) == ip_key(peer)


def test_without_trusted_proxies_no_header_is_read() -> None:
    """By default only the peer of the socket counts."""
    assert not ClientIP().reads_header
    assert xff("1.1.1.1", trusted=[]) == PROXY


@each(
    ("peer", "client"),
    [
        *(("::ffff:10.0.0.1", REAL), ("::ffff:a00:1", REAL), ("2001:db8:ffff::7", REAL), ("2001:db8:fffe::7", None)),
        # A tunnel does not end at a private address, so these are no proxies.
        *(("2002:a00:1::1", None), ("64:ff9b::10.0.0.1", None), ("2001::f5ff:fffe", None)),
    ],
)
def test_a_trusted_peer_matches_in_every_notation(peer: str, client: str | None) -> None:
    """The comparison unwraps IPv4-mapped peers."""
    assert xff(REAL, peer=peer) == (client or ip_key(peer))


def test_a_trusted_network_may_be_ipv4_mapped() -> None:
    """``::ffff:10.0.0.0/104`` trusts the same peers as ``10.0.0.0/8``, and no IPv6 peer."""
    assert xff(REAL, trusted=["::ffff:10.0.0.0/104"]) == REAL
    assert xff(f"{REAL}, 11.1.1.1", trusted=["::ffff:10.0.0.0/103"]) == REAL
    assert xff(REAL, trusted=["::/0"]) == PROXY
    assert xff(REAL, trusted=["::/0"], peer="::1") == REAL


@each(
    ("peer", "lines", "client"),
    [
        (None, [REAL], REAL),
        ("", [REAL], REAL),
        ("unix:/run/app.sock", [REAL], REAL),
        (None, [f"1.1.1.1, {REAL}, unix:"], REAL),
        (None, ["unix:"], None),
        (None, [], None),
        (None, ["junk"], None),
        (REAL, ["1.1.1.1"], REAL),
    ],
)
def test_a_unix_socket_is_trusted_when_the_settings_name_it(
    peer: str | None, lines: list[str], client: str | None
) -> None:
    """With "unix" as a trusted proxy, a peer without an address names the client. nginx's "unix:" is skipped."""
    assert xff(*lines, peer=peer, trusted=["unix"]) == client


@each(("port", "statuses"), [("None", ["200", "429", "200"]), ("4711", ["200", "429", "429"])])
def test_a_unix_socket_of_waitress_is_one(port: str, statuses: list[str]) -> None:
    """waitress gives the peer of a Unix socket a name, and the text of None as its port."""
    app = RateLimitMiddleware(listing, limiter=limiter("1/minute"), trusted_proxies=["unix"])
    peer = {"REMOTE_ADDR": "localhost", "REMOTE_PORT": port}
    clients = (REAL, f"1.1.1.1, {REAL}", "203.0.113.10")
    assert [Served(app, **peer, HTTP_X_FORWARDED_FOR=client).status[:3] for client in clients] == statuses


@each(("server", "last"), [(("127.0.0.1", 8000), 429), (("/run/app.sock", None), 200), (("/", "r"), 200), (None, 200)])
def test_a_client_that_has_reset_its_connection_is_no_unix_socket(server: Any, last: int) -> None:
    """Neither has an address under uvicorn, but only a proxy on a Unix socket may name the client."""
    app = limited(OK, trusted_proxies=["unix"])
    scopes = [http_scope(client=None, server=server, headers=[(b"x-forwarded-for", b"1.1.1.%d" % i)]) for i in range(3)]
    assert [send_bare(app, scope)[0]["status"] for scope in scopes] == [200, 200, last]
    for scope in scopes:
        assert DjangoRequest(DjangoASGIRequest(scope, BytesIO())).peer == ASGIRequest(scope).peer


@each("peer", [None, "", "unix:/run/app.sock", "junk", "9" * 9000])
def test_a_peer_without_an_address_is_untrusted_by_default(peer: str | None) -> None:
    """Without "unix" among the proxies, the middleware ignores the headers of a peer without an address."""
    assert xff(REAL, peer=peer) is None
    assert ClientIP().resolve(peer, [REAL]) is None


def test_at_most_32_hops_are_read() -> None:
    """The search stops after 32 hops, counted from the right."""
    assert xff(", ".join([REAL, *["10.1.1.1"] * 31])) == REAL
    assert xff(", ".join([REAL, *["10.1.1.1"] * 32])) == PROXY
    assert xff(*[REAL], *["10.1.1.1"] * 32) == PROXY


def test_at_most_8_kib_are_read_from_the_right() -> None:
    """The search ignores text further left, and a hop that the bound cuts in two."""
    assert xff("1.1.1.1," * 5000 + REAL) == REAL
    assert xff("x" * 100_000 + "," + REAL) == REAL
    assert xff("x" * 100_000) == PROXY
    cut = "1" + "203.0.113.9" + "," + " " * (8192 - 12)  # The last 8 KiB begin after the first character.
    assert len(cut) == 8193
    assert xff(cut) == PROXY


@given(st.text(st.characters(max_codepoint=255), max_size=60), st.integers(0, 5), st.booleans())
def test_no_client_text_hides_the_address_of_the_proxy(forged: str, proxies: int, own_line: bool) -> None:
    """For any text before it, the address that the trusted proxy appends is the client."""
    appended = ", ".join([REAL, *["10.1.1.1"] * proxies])
    lines = [forged, appended] if own_line else [f"{forged}, {appended}"]
    assert xff(*lines) == REAL


# -- proxies that the settings do not name ------------------------------------------------------------------


def test_only_the_first_requests_are_watched_for_proxies(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for a proxy costs later requests nothing."""
    monkeypatch.setattr(features, "_MAX_CHECKED", 1)
    with ASGISite(Rule(limits="9/minute")) as site:
        for headers in ({}, {"x-forwarded-for": "1.1.1.1"}):
            assert site.call(client="10.0.0.1", headers=headers).status_code == 200
    assert not caplog.records


@pytest.mark.parametrize("options", [{}, {"trusted_proxies": ["192.168.7.0/24"]}])
@pytest.mark.parametrize("kind", [ASGISite, WSGISite])
def test_a_proxy_that_the_settings_do_not_name_is_reported_once(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], kind: Any
) -> None:
    """Without the warning, all clients behind the proxy share one limit in silence."""
    with kind(Rule(limits="9/minute"), **options) as site:
        site.call(client="10.0.0.1")
        site.call(client="8.8.8.8", headers={"x-forwarded-for": "1.1.1.1"})
        site.call(client="192.168.7.1" if options else "10.0.0.1", headers={"forwarded": "for=1.1.1.1"})
        assert not caplog.records
        for _ in range(3):
            site.call(client="10.0.0.1", headers={"x-forwarded-for": "1.1.1.1"})
    (record,) = caplog.records
    assert record.message == (
        "a request from 10.0.0.1 has the header x-forwarded-for, but 10.0.0.1 is not one of trusted_proxies."
        " If it is your proxy, all clients behind it share one limit by ip. Add it to trusted_proxies"
    )


@each("peer", ["100.64.0.5", "fd00::7", "169.254.1.1"])
def test_every_address_of_a_private_network_is_reported(peer: str, caplog: pytest.LogCaptureFixture) -> None:
    """100.64.0.0/10 is that of the proxies of some platforms. Python calls it neither private nor global."""
    ClientIP().warn_of_proxy(peer, [REAL])
    assert f"{peer} is not one of trusted_proxies" in caplog.text


def test_a_trusted_proxy_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the named proxy nor a peer without an address causes the warning."""
    client_ip = ClientIP(PROXIES)
    for peer in (PROXY, "", "unix:", "junk", "9" * 99, "2001:4860::7", None):
        client_ip.warn_of_proxy(peer, [REAL])
    client_ip.warn_of_proxy("10.0.0.1", [])
    # The server has read the header: 10.0.0.1 is the client.
    ClientIP().warn_of_proxy("10.0.0.1", [f"10.0.0.1, {REAL}"])
    assert not caplog.records


# -- through the middleware --------------------------------------------------------------------------------


@pytest.mark.parametrize("trusted", [[], ["10.0.0.0/8"]])
def test_the_test_client_is_unknown_without_a_warning(trusted: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Starlette's TestClient has no address. The warning about Unix sockets would mislead."""
    app = limited(OK, trusted_proxies=trusted)
    statuses = [send_bare(app, http_scope(client=("testclient", 50000)))[0]["status"] for _ in range(3)]
    assert (statuses, caplog.messages) == ([200, 200, 429], [])
    assert send_bare(app, http_scope(client=None))[0]["status"] == 429
    assert "a request has no client address" in caplog.text


# -- a header that holds one address ---------------------------------------------------------------------------


CLOUDFLARE, CLOUDFRONT = "cf-connecting-ip", "cloudfront-viewer-address"


@each(
    ("header", "lines", "client"),
    [
        *((header, [text], PROXY) for header in (CLOUDFLARE, CLOUDFRONT) for text in ("", " ")),
        (CLOUDFLARE, [], PROXY),
        (CLOUDFLARE, [REAL], REAL),
        (CLOUDFLARE, [f" {REAL}\t"], REAL),
        (CLOUDFLARE, [f"{REAL}:4711"], REAL),
        (CLOUDFLARE, ["2001:db8:1:2::17"], "2001:db8:1:2::/64"),
        (CLOUDFLARE, ["10.2.3.4"], PROXY),
        *((CLOUDFLARE, [text], INVALID) for text in (f"1.1.1.1, {REAL}", "unknown", "0.0.0.0", "9" * 65)),
        *((CLOUDFLARE, lines, INVALID) for lines in (["1.1.1.1", REAL], [REAL, REAL], [REAL, ""])),
        (CLOUDFRONT, ["198.51.100.10:46532"], "198.51.100.10"),
        (CLOUDFRONT, ["2001:db8:1:2:3:4:5:6:46532"], "2001:db8:1:2::/64"),
        (CLOUDFRONT, ["2001:db8::1:8080"], "2001:db8::/64"),
        (CLOUDFRONT, ["[2001:db8:1:2::1]:80"], "2001:db8:1:2::/64"),
        (CLOUDFRONT, ["198.51.100.10"], "198.51.100.10"),
        (CLOUDFRONT, ["198.51.100.10:1", "198.51.100.11:2"], INVALID),
        *((CLOUDFRONT, [text], INVALID) for text in (":80", "junk:1")),
    ],
)
def test_the_header_holds_one_address(header: str, lines: list[str], client: object) -> None:
    """A list, two lines and other text are invalid: the proxy then did not overwrite the client's header.

    CloudFront adds a port without brackets, even to IPv6.
    """
    assert ClientIP(PROXIES, header).resolve(PROXY, lines) == client


def test_a_peer_that_is_not_a_proxy_names_no_client() -> None:
    """The key of a client that reaches the server directly is the address of the socket."""
    client_ip = ClientIP(PROXIES, "cf-connecting-ip")
    assert client_ip.resolve("198.51.100.1", [REAL]) == "198.51.100.1"
    assert client_ip.resolve(None, [REAL]) is None


def test_a_header_without_trusted_proxies_stops_the_start() -> None:
    """The middleware would never read the header, and all clients behind the proxy would share one count."""
    assert load_settings({"forwarded_header": "CF-Connecting-IP"}).forwarded_header == "cf-connecting-ip"
    with pytest.raises(ConfigError, match=r"forwarded_header: .*Set trusted_proxies"):
        limited(OK, forwarded_header="cf-connecting-ip")
    app = limited(OK, limiter("1/minute"), forwarded_header="forwarded")
    assert ask(app, headers={"forwarded": "for=1.1.1.1"}).status_code == 200
