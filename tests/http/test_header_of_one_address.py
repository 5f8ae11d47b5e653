"""A header that a proxy overwrites with the client's address: only a trusted proxy may send it, and only one value."""

from __future__ import annotations

import pytest
from calls import OK, ask, limited, limiter
from tables import each

from ratelimit_mw import ConfigError, load_settings
from ratelimit_mw.http.client_ip import ClientIP
from ratelimit_mw.keys.features import INVALID

PROXIES = ["10.0.0.0/8"]
PROXY, REAL = "10.0.0.1", "203.0.113.9"


@each(
    ("lines", "client"),
    [
        ([], PROXY),
        ([""], PROXY),
        ([" "], PROXY),
        ([REAL], REAL),
        ([f" {REAL}\t"], REAL),
        ([f"{REAL}:4711"], REAL),
        (["2001:db8:1:2::17"], "2001:db8:1:2::/64"),
        (["10.2.3.4"], PROXY),
        ([f"1.1.1.1, {REAL}"], INVALID),
        (["1.1.1.1", REAL], INVALID),
        ([REAL, REAL], INVALID),
        ([REAL, ""], INVALID),
        (["unknown"], INVALID),
        (["0.0.0.0"], INVALID),
        (["9" * 65], INVALID),
    ],
)
def test_the_header_holds_one_address(lines: list[str], client: object) -> None:
    """A list, two lines and other text are invalid: the proxy then did not overwrite the client's header."""
    assert ClientIP(PROXIES, "cf-connecting-ip").resolve(PROXY, lines) == client


@each(
    ("lines", "client"),
    [
        ([], PROXY),
        ([""], PROXY),
        (["198.51.100.10:46532"], "198.51.100.10"),
        (["2001:db8:1:2:3:4:5:6:46532"], "2001:db8:1:2::/64"),
        (["2001:db8::1:8080"], "2001:db8::/64"),
        (["2001:db8:1:2::1:80"], "2001:db8:1:2::/64"),
        (["[2001:db8:1:2::1]:80"], "2001:db8:1:2::/64"),
        (["198.51.100.10"], "198.51.100.10"),
        (["198.51.100.10:1", "198.51.100.11:2"], INVALID),
        (["198.51.100.10:1", "198.51.100.11"], INVALID),
        ([":80"], INVALID),
        (["junk:1"], INVALID),
    ],
)
def test_cloudfront_adds_a_port_without_brackets(lines: list[str], client: object) -> None:
    """The text after the last colon of ``CloudFront-Viewer-Address`` is the port, even in IPv6."""
    assert ClientIP(PROXIES, "cloudfront-viewer-address").resolve(PROXY, lines) == client


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
