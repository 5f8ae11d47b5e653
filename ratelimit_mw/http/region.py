"""The country a request comes from: from a trusted proxy's header, or looked up in a MaxMind database."""

from __future__ import annotations

import logging
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError, MissingExtraError, placed
from ..settings import Settings
from .client_ip import ClientIP
from .request import Request

if TYPE_CHECKING:
    from maxminddb import Reader

__all__ = ["Region"]

_CODE = re.compile(r"[A-Z][A-Z0-9]", re.ASCII)  # Cloudflare writes T1 for Tor
_NOWHERE: Final = ("XX", "ZZ")
_ENOUGH: Final = 1000
_log = logging.getLogger("ratelimit_mw")


class Region:
    """Finds the code of a country as ISO 3166 has it, "DE"; None where it is unknown."""

    def __init__(self, database: str, header: str, client_ip: ClientIP) -> None:
        """``client_ip`` has to tell every address apart: networks of countries may be narrow."""
        if header and not client_ip.reads_header:
            raise ConfigError(
                "a header is only taken from a trusted proxy; name yours in trusted_proxies", "region_header"
            )
        self._client_ip = client_ip
        self._header = header
        self._warned = False
        with placed("region_database"):
            self._database = _opened(database) if database else None

    @classmethod
    def of_settings(cls, settings: Settings) -> Region | None:
        """None where nothing says how to find a country."""
        if not settings.region_database and not settings.region_header:
            return None
        client_ip = ClientIP(settings.trusted_proxies, settings.forwarded_header, 128)
        return cls(settings.region_database, settings.region_header, client_ip)

    def of(self, request: Request) -> str | None:
        if self._header and self._client_ip.trusts(request.peer):
            lines = request.header_lines(self._header)
            # The proxy writes one; of two, one may be the client's own.
            if len(lines) == 1 and (code := _code(lines[0])):
                return code
        return None if self._database is None else self._looked_up(request, self._database)

    def _looked_up(self, request: Request, database: Reader) -> str | None:
        client_ip = self._client_ip
        lines = request.header_lines(client_ip.header) if client_ip.reads_header else ()
        address = client_ip.of(request.peer, lines)
        try:
            return _country(database.get(address)) if address else None
        except ValueError:
            return None  # an IPv6 address, and the database has none
        except Exception:  # whatever a file leads to that was cut short under us
            if not self._warned:
                self._warned = True
                _log.exception("the region database cannot be read; regions are unknown until it can")
            return None


def _opened(path: str) -> Reader:
    """The database; ``ConfigError`` for a file that is none, or that knows no countries."""
    try:
        import maxminddb  # here, as it may be missing where no database is named
    except ImportError:
        raise MissingExtraError("a region database", "region") from None
    try:
        database = maxminddb.open_database(path)
    except (OSError, maxminddb.InvalidDatabaseError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not any(_country(record) for _, record in islice(database, _ENOUGH)):
        kind = database.metadata().database_type
        database.close()
        raise ConfigError(f"{path} holds no countries, it is a {kind!r}; expected a database such as GeoLite2-Country")
    return database


def _country(record: Any) -> str | None:
    """Where an address is; else, as for satellites, where its network is registered."""
    if not isinstance(record, dict):
        return None
    for name in ("country", "registered_country"):
        place = record.get(name)
        if isinstance(place, dict) and (code := _code(str(place.get("iso_code") or ""))):
            return code
    return None


def _code(text: str) -> str | None:
    code = text.strip().upper()
    return code if _CODE.fullmatch(code) and code not in _NOWHERE else None
