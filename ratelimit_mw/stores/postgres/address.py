"""The parts of ``postgresql://user:password@host:5432/database?table=ratelimit``, checked without psycopg."""

import re
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote

from ...errors import ConfigError
from ..servers import parse_servers, split_login

_LIBPQ: Final = ("host", "sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "application_name")
"""The options that libpq gets as they are."""
OPTIONS: Final = ("table", *_LIBPQ)
_VALUES: Final = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
}
_TABLE: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?", re.ASCII)
_DEFAULT: Final = "ratelimit_mw"
_PORT: Final = 5432


class PostgresAddress(NamedTuple):
    """The parameters of libpq, and the table, perhaps with its schema."""

    parameters: dict[str, str]
    table: str = _DEFAULT


def parse_address(split: SplitResult, options: dict[str, str]) -> PostgresAddress:
    """Parse a store URL. No message shows the login."""
    user, password, hosts = split_login(split.netloc)
    parameters = {"user": user, "password": password, "dbname": unquote(split.path.removeprefix("/"))}
    parameters = {name: text for name, text in parameters.items() if text}
    if not options.get("host", "/").startswith("/") or (hosts and "host" in options):
        raise ConfigError(
            "postgresql:// option host: expected the folder of a Unix socket, such as /run/postgresql, and no server"
            " before the path. A server is not an option: postgresql://db/shop"
        )
    if hosts:  # libpq tries one after the other
        names, ports = zip(*parse_servers(hosts, _PORT), strict=True)
        parameters |= {"host": ",".join(names), "port": ",".join(map(str, ports))}
    table = options.pop("table", _DEFAULT)
    if not _TABLE.fullmatch(table):
        expected = "a name of small letters, digits and _, perhaps after its schema and a dot"
        raise ConfigError(f"postgresql:// option table: expected {expected}; got {table[:99]!r}")
    for name, values in _VALUES.items():
        if options.get(name, values[0]) not in values:
            raise ConfigError(f"{name} is one of {', '.join(values)}; got {options[name]!r}")
    parameters = {"application_name": "ratelimit_mw", **parameters, **options}
    if any("\0" in text for text in parameters.values()):  # libpq would ignore all that follows, even the host
        raise ConfigError("a postgresql:// URL has %00 in its login, its path or an option")
    return PostgresAddress(parameters, table)
