"""The region comes from a database or from a header that only a trusted proxy can write."""

import sys
from pathlib import Path
from typing import Any

import pytest
from calls import OK, http_scope, send_bare
from command_line import run
from mmdb_writer import MMDBWriter
from netaddr import IPSet
from tables import each, expect_error
from wsgi_calls import environ_of

from ratelimit_mw import load_settings
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.errors import MissingExtraError
from ratelimit_mw.http.client_ip import ClientIP
from ratelimit_mw.http.region import Region
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.wsgi.exchange import WSGIRequest

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


def test_the_lookup_uses_the_client_address_of_rules(database: str, tmp_path: Path) -> None:
    """It is the address of the feature ``ip`` before the prefix cuts it. An IPv4 database has no IPv6 regions."""
    region = Region(database, "", ClientIP(PROXY, "x-forwarded-for", 128))
    assert region_of(region, "10.0.0.1", HTTP_X_FORWARDED_FOR="192.0.2.7, 2001:db8:1:2:3::9") == "IT"
    assert region_of(region, "198.51.100.1", HTTP_X_FORWARDED_FOR="192.0.2.7") == "AT"
    path = write_database(tmp_path / "4.mmdb", {"192.0.2.0/24": PLACES["192.0.2.0/24"]}, 4)
    region = Region(path, "", ClientIP((), "x-forwarded-for", 128))
    assert (region_of(region, "192.0.2.7"), region_of(region, "2001:db8::1")) == ("DE", None)


def test_a_file_that_is_no_database_stops_the_start(tmp_path: Path) -> None:
    """The error names the setting and the file. Without countries, rules by region would never apply."""
    path = tmp_path / "r.mmdb"
    for content in (b"", b"no database" * 100):
        path.write_bytes(content)
        expect_error(
            r"region_database: .*r\.mmdb cannot be read: ", RateLimitMiddleware, OK, {"region_database": str(path)}
        )
    asn = {"192.0.2.0/24": {"asn": 64496}, "198.51.100.0/24": "text"}
    write_database(path, asn, kind="Test-ASN")
    message = r"region_database: .*r\.mmdb holds no countries, it is a 'Test-ASN'"
    expect_error(message, RateLimitMiddleware, OK, settings={}, region_database=str(path))


def test_a_missing_database_is_found_when_settings_are_read(tmp_path: Path) -> None:
    """A relative path starts at the settings file. ``ratelimit-mw check`` opens the database, too."""
    settings = tmp_path / "r.toml"
    settings.write_text('region_database = "geo.mmdb"\n[[rules]]\nkey = "region"\nlimits = "5/s"')
    expect_error(r"region_database: .*file not found: .*geo\.mmdb", load_settings, settings)
    write_database(tmp_path / "geo.mmdb", PLACES)
    assert load_settings(settings).region_database == str(tmp_path / "geo.mmdb")
    assert run("check", str(settings)).exit_code == 0
    (tmp_path / "geo.mmdb").write_bytes(b"no database")
    result = run("check", str(settings))
    assert result.exit_code == 1
    assert "r.toml: region_database:" in " ".join(result.stderr.split())


def test_the_library_is_an_extra(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, the error shows the command that installs it."""
    monkeypatch.setitem(sys.modules, "maxminddb", None)
    with pytest.raises(MissingExtraError, match='pip install "ratelimit-mw\\[region\\]"'):
        RateLimitMiddleware(OK, settings={"region_database": database})


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


def test_the_database_is_used_when_the_header_is_missing(database: str) -> None:
    """The header of the proxy takes precedence, also on a Unix socket. Without it, the database has the address."""
    region = Region(database, "cf-ipcountry", ClientIP(["unix"], "x-forwarded-for", 128))
    assert region_of(region, None, HTTP_CF_IPCOUNTRY="AT") == "AT"
    region = Region(database, "cf-ipcountry", ClientIP(PROXY, "x-forwarded-for", 128))
    forwarded = {"HTTP_X_FORWARDED_FOR": "192.0.2.7"}
    assert region_of(region, "10.0.0.1", HTTP_CF_IPCOUNTRY="AT", **forwarded) == "AT"
    assert region_of(region, "10.0.0.1", HTTP_CF_IPCOUNTRY="XX", **forwarded) == "DE"
    assert region_of(region, "192.0.2.7", HTTP_CF_IPCOUNTRY="AT") == "DE"


@each(
    ("options", "expected"),
    [
        ({"rules": [{"limits": "1/minute", "key": ["region"]}]}, [200, 429]),
        ({"rules": [{"limits": "1/minute", "match": {"region": "AT"}}]}, [200, 429]),
        ({"lists": {"deny": {"region": ["AT"]}}}, [403, 403]),
    ],
)
def test_two_country_lines_are_invalid(options: dict[str, Any], expected: list[int]) -> None:
    """When the proxy adds a line to the client's line, neither can be trusted. They evade no rule and no list."""
    settings: Any = {**options, "trusted_proxies": PROXY, "region_header": "CF-IPCountry"}
    lines = [(b"CF-IPCountry", b"DE"), (b"cf-ipcountry", b"AT")]
    app = RateLimitMiddleware(OK, settings=settings)

    def status(*headers: tuple[bytes, bytes]) -> int:
        return int(send_bare(app, http_scope(client=("10.0.0.1", 1), headers=list(headers)))[0]["status"])

    assert status(lines[0]) == 200
    assert [status(*lines) for _ in range(2)] == expected


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
    settings: Any = {"region_header": "cf-ipcountry"}
    expect_error(r"region_header: .*Set trusted_proxies", RateLimitMiddleware, OK, settings=settings)
    RateLimitMiddleware(OK, settings=settings, trusted_proxies=PROXY)
    expect_error("region_header: ", load_settings, {"region_header": "no header"})
