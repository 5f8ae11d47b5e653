"""The region comes from a database or from a header that only a trusted proxy can write."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from calls import BODY, START, http_scope, send_bare, sending
from command_line import run
from mmdb_writer import MMDBWriter
from netaddr import IPSet
from tables import each
from wsgi_calls import environ_of, listing

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.errors import MissingExtraError
from ratelimit_mw.http.client_ip import ClientIP
from ratelimit_mw.http.region import Region
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi.exchange import WSGIRequest
from ratelimit_mw.wsgi.middleware import RateLimitMiddleware as WSGIMiddleware

PLACES: dict[str, Any] = {
    "192.0.2.0/24": {"country": {"iso_code": "DE"}, "registered_country": {"iso_code": "FR"}},
    "198.51.100.0/25": {"country": {"iso_code": "AT"}},
    "198.51.100.128/25": {"registered_country": {"iso_code": "CH"}},
    "203.0.113.0/26": {"country": {"iso_code": "XX"}},
    "203.0.113.64/26": {"country": "Italy", "registered_country": {"names": {"en": "Italy"}}},
    "203.0.113.128/26": {"country": {"iso_code": "too long"}},
    "2001:db8:1:2:3::/80": {"country": {"iso_code": "IT"}},
}
PROXY = ["10.0.0.0/8"]


def write_database(path: Path, places: dict[str, Any], version: int = 6, kind: str = "Test-Country") -> str:
    writer = MMDBWriter(version, kind, ipv4_compatible=version == 6)
    for network, record in places.items():
        writer.insert_network(IPSet([network]), record)
    writer.to_db_file(str(path))
    return str(path)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_database(tmp_path_factory.mktemp("mmdb") / "countries.mmdb", PLACES)


@pytest.fixture
def full_region(database: str) -> Region:
    return Region(database, "", ClientIP((), "x-forwarded-for", 128))


def region_of(region: Region, peer: str | None, **headers: str) -> str | None:
    return region.lookup(WSGIRequest(environ_of(REMOTE_ADDR=peer, **headers)))


# -- the database ------------------------------------------------------------------------------------------


@each(
    ("address", "country"),
    [
        ("192.0.2.7", "DE"),
        ("::ffff:192.0.2.7", "DE"),
        ("198.51.100.1", "AT"),
        ("198.51.100.200", "CH"),  # Only the registered country is known, as for satellite networks.
        ("203.0.113.1", None),
        ("203.0.113.65", None),
        ("203.0.113.129", None),
        ("10.0.0.1", None),
        ("2001:db8:1:2:3::9", "IT"),
        ("2001:db8:1:2:4::9", None),  # In the same /64 network.
        ("junk", None),
        (None, None),
    ],
)
def test_the_lookup_uses_the_whole_ip_address(full_region: Region, address: str | None, country: str | None) -> None:
    """The lookup uses the whole address, not the counted network. An address without an entry has no region."""
    assert region_of(full_region, address) == country


def test_an_ipv4_database_has_no_ipv6_regions(tmp_path: Path) -> None:
    """A lookup of an IPv6 address raises no error."""
    path = write_database(tmp_path / "4.mmdb", {"192.0.2.0/24": PLACES["192.0.2.0/24"]}, 4)
    region = Region(path, "", ClientIP((), "x-forwarded-for", 128))
    assert (region_of(region, "192.0.2.7"), region_of(region, "2001:db8::1")) == ("DE", None)


def test_the_lookup_behind_a_proxy_uses_the_client_address(database: str) -> None:
    """The lookup uses the address of the feature ``ip`` before the prefix cuts it."""
    region = Region(database, "", ClientIP(PROXY, "x-forwarded-for", 128))
    assert region_of(region, "10.0.0.1", HTTP_X_FORWARDED_FOR="192.0.2.7, 2001:db8:1:2:3::9") == "IT"
    assert region_of(region, "198.51.100.1", HTTP_X_FORWARDED_FOR="192.0.2.7") == "AT"


def test_a_damaged_database_raises_no_error_in_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When the file is overwritten, regions are missing, and the log reports it once."""
    path = Path(write_database(tmp_path / "r.mmdb", PLACES))
    region = Region(str(path), "", ClientIP((), "x-forwarded-for", 128))
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"country") - 1)
        file.write(b"\xff" * 60)
    with caplog.at_level(logging.ERROR, "ratelimit_mw"):
        assert [region_of(region, "192.0.2.7") for _ in range(3)] == [None] * 3
    assert [record.message for record in caplog.records] == [
        "region_database cannot be read: the feature 'region' is missing until it can"
    ]


@each("content", [b"", b"no database" * 100])
def test_a_file_that_is_no_database_stops_the_start(tmp_path: Path, content: bytes) -> None:
    """The error names the setting and the file."""
    path = tmp_path / "r.mmdb"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"region_database: .*r\.mmdb cannot be read: "):
        RateLimitMiddleware(sending(), settings={"region_database": str(path)})


def test_a_database_without_countries_stops_the_start(tmp_path: Path) -> None:
    """Without countries every region would be missing, and rules by region would never apply."""
    path = write_database(
        tmp_path / "asn.mmdb", {"192.0.2.0/24": {"asn": 64496}, "198.51.100.0/24": "text"}, kind="Test-ASN"
    )
    with pytest.raises(ConfigError, match=r"region_database: .*asn\.mmdb holds no countries, it is a 'Test-ASN'"):
        RateLimitMiddleware(sending(), settings={}, region_database=path)


def test_a_missing_database_is_found_when_settings_are_read(tmp_path: Path) -> None:
    """``ratelimit-mw check`` reports it, too. A relative path starts at the settings file."""
    settings = tmp_path / "r.toml"
    settings.write_text('region_database = "geo.mmdb"')
    with pytest.raises(ConfigError, match=r"region_database: .*file not found: .*geo\.mmdb"):
        load_settings(settings)
    write_database(tmp_path / "geo.mmdb", PLACES)
    assert load_settings(settings).region_database == str(tmp_path / "geo.mmdb")


def test_the_library_is_an_extra(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, the error shows the command that installs it."""
    monkeypatch.setitem(sys.modules, "maxminddb", None)
    with pytest.raises(MissingExtraError, match='pip install "ratelimit-mw\\[region\\]"'):
        RateLimitMiddleware(sending(), settings={"region_database": database})


# -- the header --------------------------------------------------------------------------------------------


@each(
    ("peer", "header", "country"),
    [
        ("10.0.0.1", "DE", "DE"),
        ("10.0.0.1", " de ", "DE"),
        ("10.0.0.1", "T1", "T1"),
        ("10.0.0.1", "XX", None),
        ("10.0.0.1", "ZZ", None),
        ("10.0.0.1", "", None),
        ("10.0.0.1", "DE, AT", None),
        ("10.0.0.1", "Germany", None),
        ("10.0.0.1", "\u0414\u0415", None),
        ("10.0.0.1", None, None),
        ("192.0.2.7", "DE", None),
        ("x" * 65, "DE", None),
        (None, "DE", None),
    ],
)
def test_only_a_trusted_proxy_sets_the_country(peer: str | None, header: str | None, country: str | None) -> None:
    """The middleware ignores the header of an untrusted client. A value that is no country code is missing."""
    region = Region("", "cf-ipcountry", ClientIP(PROXY, "x-forwarded-for", 128))
    assert region_of(region, peer, **({} if header is None else {"HTTP_CF_IPCOUNTRY": header})) == country


def test_a_proxy_on_a_unix_socket_sets_the_country() -> None:
    """With "unix" trusted, a peer without an address is the proxy."""
    region = Region("", "x-country", ClientIP(["unix"], "x-forwarded-for", 128))
    assert region_of(region, None, HTTP_X_COUNTRY="AT") == "AT"


def test_the_database_is_used_when_the_header_is_missing(database: str) -> None:
    """The header of the proxy takes precedence. Without it, the database looks up the address."""
    region = Region(database, "cf-ipcountry", ClientIP(PROXY, "x-forwarded-for", 128))
    forwarded = {"HTTP_X_FORWARDED_FOR": "192.0.2.7"}
    assert region_of(region, "10.0.0.1", HTTP_CF_IPCOUNTRY="AT", **forwarded) == "AT"
    assert region_of(region, "10.0.0.1", HTTP_CF_IPCOUNTRY="XX", **forwarded) == "DE"
    assert region_of(region, "192.0.2.7", HTTP_CF_IPCOUNTRY="AT") == "DE"


def test_two_country_lines_are_invalid() -> None:
    """When the proxy adds a line to the client's line, neither can be trusted. All such requests share one count."""
    rule = {"name": "api", "key": ["region"], "limits": "1/minute"}
    settings = {"rules": [rule], "trusted_proxies": PROXY, "region_header": "CF-IPCountry"}
    app = RateLimitMiddleware(sending(START, BODY), settings=settings)
    lines = [(b"CF-IPCountry", b"DE"), (b"cf-ipcountry", b"AT")]
    requests = [lines, lines, lines[:1], lines[:1], lines[1:]]
    sent = [send_bare(app, http_scope(client=("10.0.0.1", 1), headers=headers)) for headers in requests]
    assert [messages[0]["status"] for messages in sent] == [200, 429, 200, 429, 200]


def test_two_country_lines_evade_no_list_and_no_match() -> None:
    """A rule and a deny list of a region hold for a client that sends the header itself."""
    lines = [(b"CF-IPCountry", b"DE"), (b"cf-ipcountry", b"AT")]
    for options, status in (
        ({"lists": {"deny": {"region": ["AT"]}}}, 403),
        ({"rules": [{"limits": "1/minute", "match": {"region": "AT"}}]}, 429),
    ):
        settings = {**options, "trusted_proxies": PROXY, "region_header": "CF-IPCountry"}
        app = RateLimitMiddleware(sending(START, BODY), settings=settings)
        sent = [send_bare(app, http_scope(client=("10.0.0.1", 1), headers=lines))[0] for _ in range(2)]
        assert sent[-1]["status"] == status


def test_the_database_decides_between_two_country_lines(database: str) -> None:
    """The address of the client is one value. An invalid address gives an invalid region."""
    request = ASGIRequest(
        http_scope(
            client=("10.0.0.1", 1),
            headers=[(b"cf-ipcountry", b"AT"), (b"cf-ipcountry", b"IT"), (b"forwarded", b"for=192.0.2.7")],
        )
    )
    client_ip = ClientIP(PROXY, "forwarded", 128)
    assert Region(database, "cf-ipcountry", client_ip).lookup(request) == "DE"
    request.native["headers"][-1] = (b"forwarded", b"192.0.2.7")
    assert Region(database, "cf-ipcountry", client_ip).lookup(request) is INVALID


def test_a_country_header_without_a_trusted_proxy_stops_the_start() -> None:
    """The middleware would never read the header, and every region would be missing."""
    with pytest.raises(ConfigError, match=r"region_header: .*Set trusted_proxies"):
        RateLimitMiddleware(sending(), settings={"region_header": "cf-ipcountry"})
    RateLimitMiddleware(sending(), settings={"region_header": "cf-ipcountry"}, trusted_proxies=PROXY)
    with pytest.raises(ConfigError, match="region_header: "):
        load_settings({"region_header": "no header"})


# -- rules -------------------------------------------------------------------------------------------------


def test_a_rule_by_region_needs_a_source_of_regions() -> None:
    """Without a database, a header or a function of your own, the error names the first two."""
    limiter = Limiter([Rule(limits="1/minute", key="region")])
    with pytest.raises(ConfigError, match="'region', but nothing provides it\\. Set region_database"):
        RateLimitMiddleware(sending(), limiter=limiter)
    RateLimitMiddleware(sending(), limiter=limiter, features={"region": lambda request: "DE"})


@each("middleware", ["asgi", "wsgi"])
def test_a_region_works_in_keys_matches_and_tables(database: str, middleware: str) -> None:
    """A region works as the key, as a match and as a table of limits."""
    rules = [
        {"name": "by-region", "key": ["region"], "limits": "2/minute", "per": {"region": {"AT": "1/minute"}}},
        {"name": "in-italy", "key": [], "limits": "1/minute", "match": {"region": ["IT"]}},
    ]
    settings = {"rules": rules, "region_database": database}
    limiter = Limiter.from_settings(settings, clock=ManualClock(1_000_000.0))
    peers = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1", "198.51.100.2", "2001:db8:1:2:3::1"] * 2
    if middleware == "asgi":
        app: Any = RateLimitMiddleware(sending(START, BODY), limiter=limiter)
        statuses = [send_bare(app, http_scope(client=(peer, 1)))[0]["status"] for peer in peers]
    else:
        statuses = []
        served = WSGIMiddleware(listing, limiter=limiter)
        for peer in peers:
            list(served(environ_of(REMOTE_ADDR=peer), lambda status, headers: statuses.append(int(status[:3]))))  # type: ignore[arg-type,return-value]
    assert statuses == [200, 200, 429, 200, 429, 200, 429, 429, 429, 429, 429, 429]


@each("content", [b"no database", None])
def test_check_opens_the_database(tmp_path: Path, content: bytes | None) -> None:
    """``ratelimit-mw check`` reports a bad file before a deployment and accepts a good one."""
    path, data = tmp_path / "r.toml", tmp_path / "geo.mmdb"
    path.write_text('region_database = "geo.mmdb"\n[[rules]]\nkey = "region"\nlimits = "5/s"')
    if content is None:
        write_database(data, PLACES)
        assert run("check", str(path)).exit_code == 0
        return
    data.write_bytes(content)
    result = run("check", str(path))
    assert result.exit_code == 1
    assert "r.toml: region_database:" in " ".join(result.stderr.split())
