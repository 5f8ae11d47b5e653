"""The country of a request: from a trusted proxy's header, or from a MaxMind database."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError, MissingExtraError, error_path
from ..keys.features import INVALID
from .client_ip import ClientIP
from .request import Request

if TYPE_CHECKING:
    from maxminddb import Reader

_CODE = re.compile(r"[A-Z][A-Z0-9]", re.ASCII)  # Cloudflare writes T1 for Tor
_NO_COUNTRY: Final = ("XX", "ZZ")
_RECORDS_CHECKED: Final = 1000


class Region:
    """Finds the ISO 3166 code of a country, such as "DE"."""

    def __init__(self, database: str, header: str, client_ip: ClientIP) -> None:
        """Open the database. ``client_ip`` keeps whole addresses, because networks of countries may be narrow."""
        if header:
            client_ip.require_proxies("region_header")
        self._client_ip = client_ip
        self._header = header
        with error_path("region_database"):
            self._database = _open(database) if database else None

    def lookup(self, request: Request) -> Any:
        """Return the code of the country; None where it is not known, INVALID for two headers or an invalid client."""
        lines = request.header_lines(self._header) if self._header and self._client_ip.trusts(request.peer) else ()
        if len(lines) == 1 and (code := _code(lines[0])):
            return code
        # The proxy writes one line. Of two, one is the client's own.
        if self._database is None:
            return INVALID if len(lines) > 1 else None
        return self._lookup_ip(request, self._database)

    def _lookup_ip(self, request: Request, database: Reader) -> Any:
        client_ip = self._client_ip
        lines = request.header_lines(client_ip.header) if client_ip.reads_header else ()
        address = client_ip.resolve(request.peer, lines)
        if address is INVALID:
            return INVALID
        try:
            return _country(database.get(address)) if address else None
        except ValueError:
            return None  # an IPv6 address in a database of IPv4 addresses


def _open(path: str) -> Reader:
    """Return the database; ``ConfigError`` for a file that is not one, or that has no countries."""
    try:
        import maxminddb  # optional: only projects that name a database need it
    except ImportError:
        raise MissingExtraError("a region database", "region") from None
    try:
        database = maxminddb.open_database(path)
    except (OSError, maxminddb.InvalidDatabaseError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not any(_country(record) for _, record in islice(database, _RECORDS_CHECKED)):
        kind = database.metadata().database_type
        database.close()
        raise ConfigError(f"{path} holds no countries, it is a {kind!r}; expected a database such as GeoLite2-Country")
    return database


def _country(record: Any) -> str | None:
    """Return the country of the address, else (as for satellites) the one where its network is registered."""
    if not isinstance(record, dict):
        return None
    for name in ("country", "registered_country"):
        country = record.get(name)
        if isinstance(country, dict) and (code := _code(str(country.get("iso_code")))):
            return code
    return None


def _code(text: str) -> str | None:
    code = text.strip().upper()
    return code if _CODE.fullmatch(code) and code not in _NO_COUNTRY else None
