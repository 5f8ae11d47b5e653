"""The settings: name, type, default, meaning and parser of each. See ``rules/declaration.py``."""

# Annotations are evaluated here, because msgspec reads them.

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

import msgspec

from ..errors import ConfigError, error_path, parse_each
from ..keys.features import checked_name, header_name
from ..keys.key import NO_SECRET, PERSONAL, Secret
from ..keys.parts import part_of
from ..rules.access_lists import ListSettings
from ..rules.declaration import Parse, as_given, check_type, checked_call, is_async, of_type, option
from ..rules.match import FeatureValues, MatchOptions
from ..rules.options import Limits, OnStoreError, RuleDefaults, RuleSettings
from ..rules.paths import checked_pattern
from ..rules.priorities import PriorityTable, parse_priorities
from ..rules.values import Duration, PositiveDuration, checked_table, parse_whole_seconds
from ..stores import Store, check_store_url
from ..traffic.store import parse_log_url
from .rules import parse_defaults

_SIZE: Final = re.compile(r"(\d{1,9}) ?([A-Za-z]{0,3})", re.ASCII)
_SIZES: Final = {"": 1, "b": 1, "kb": 1000, "kib": 1024, "mb": 1000**2, "mib": 1024**2}
_IMPORT: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_MAX_BODY: Final = 16 * 1024**2
_HEADER: Final = re.compile(r"[a-z0-9-]+", re.ASCII)
_HEADERS_OF_PROXIES: Final = ("x-forwarded-for", "forwarded")


def secret_text(secret: Any) -> str:
    """Return the text of a secret, which no message shows."""
    check_type(secret, str, is_secret=True)
    return secret  # type: ignore[no-any-return]


def log_url(url: Any) -> str:
    """Return the URL of a traffic log, which may hold a password."""
    parse_log_url(secret_text(url))
    return url  # type: ignore[no-any-return]


def store_or_url(store: Any) -> str | Store:
    """Return a store, or a URL that names one, which may hold a password."""
    if not isinstance(store, Store):
        check_store_url(secret_text(store))
    return store  # type: ignore[no-any-return]


def checked_proxy(text: str) -> str:
    """Return an IP address, a network or "unix"."""
    try:
        text == "unix" or ip_network(text)
    except ValueError as error:
        expected = 'expected an IP address, a network such as "10.0.0.0/8", or "unix"'
        raise ConfigError(f"{expected}: {error}") from None
    return text


def forwarded_header(name: str) -> str:
    """Return the name of a header in lower case. A misspelt name of a header with a list of proxies is an error."""
    header = name.strip().lower()
    nearest = difflib.get_close_matches(header, _HEADERS_OF_PROXIES, 1, 0.8)
    if not _HEADER.fullmatch(header) or (nearest and nearest[0] != header):
        hint = f". Did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(f"expected the name of a header, such as 'x-forwarded-for'; got {name!r}{hint}")
    return header


def parse_size(value: str | int) -> int:
    """Return a number of bytes, from a number or from text such as "64KiB" and "1 MB"."""
    match = _SIZE.fullmatch(str(value))
    size = int(match[1]) * _SIZES.get(match[2].lower(), 0) if match else 0
    if not 1 <= size <= _MAX_BODY:
        raise ConfigError(f'expected a size such as "64KiB", from 1 byte to 16MiB; got {value!r}')
    return size


def database_file(folder: Path, name: str) -> str:
    """Return the path of a file, relative to the folder of the settings file, or "" for none."""
    path = folder / name
    if name and not path.is_file():
        raise ConfigError(f"file not found: {str(path)!r}")
    return str(path) if name else ""


def secret_of(text: str | None, keyed: Iterable[str] | None) -> Secret:
    """Return the secret of a text, which no message shows."""
    if text is None:
        if keyed is not None:
            raise ConfigError("keyed needs a secret. Set secret", "keyed")
        return NO_SECRET
    with error_path("keyed"):
        names = parse_each(checked_name, PERSONAL if keyed is None else keyed)
    with error_path("secret"):
        return Secret.from_text(text, names)


def checked_observers(observers: Any) -> tuple[str | Callable[[Any], object], ...]:
    """Return functions of an event, or the texts "module:function" that name them."""
    if not isinstance(observers, list | tuple):
        raise ConfigError(f'expected a list such as ["app.events:count"]; got {observers!r}')
    return parse_each(_checked_observer_or_name, observers)


def _checked_observer_or_name(observer: Any) -> str | Callable[[Any], object]:
    if not isinstance(observer, str):
        return checked_observer(observer)
    if not _IMPORT.fullmatch(observer):
        raise ConfigError(f'expected "module:function", such as "app.events:count"; got {observer!r}')
    return observer


def checked_observer(observer: Any) -> Callable[[Any], object]:
    """Return a function of an event. It is called without ``await``."""
    if is_async(observer):
        name = getattr(observer, "__name__", repr(observer))
        message = f"expected a function without async; got {name}. In the function, start a task or fill a queue"
        raise ConfigError(message)
    return checked_call(observer, "the event")


def list_of(parse: Callable[[str], Any]) -> Parse:
    """Make a function that reads a list from one that parses its items."""
    return of_type(Sequence[str], partial(parse_each, parse))


if TYPE_CHECKING:
    StoreURL = str | Store
    Observer = str | Callable[[Any], object]
else:  # a file can hold no objects
    StoreURL = Observer = str
Headers = Sequence[Literal["x-ratelimit", "ratelimit"]]
_VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_]"}
_CONVERTED = ("array", "boolean", "enum", "integer", "number")
_SCHEMA_FIELD = {"type": "string", "description": "The address of this schema, for editors. Not read."}


class LimiterOptions(TypedDict, total=False):
    """The arguments of a middleware that its limiter needs."""

    enabled: Annotated[bool, option("Whether anything is limited. `false` turns all rules and lists off.", True)]
    limits: Annotated[Limits | None, as_given, option("Limits of all requests, as a rule named `default`.")]
    store: Annotated[
        StoreURL, store_or_url, option("The URL of the store that keeps the counts.", "memory://", at_start=True)
    ]
    observers: Annotated[
        Sequence[Observer],
        checked_observers,
        option('Functions that receive an event for each request: `"module:function"`.', [], at_start=True),
    ]
    event_features: Annotated[
        Sequence[str],
        list_of(lambda part: part_of(part).name),
        option("Names of key features whose values are included in events.", [], at_start=True),
    ]
    traffic_log: Annotated[
        str | None,
        log_url,
        option("The URL of a traffic log that counts outcomes, such as `sqlite:///traffic.db`.", at_start=True),
    ]
    traffic_clients: Annotated[
        bool, option("Whether the traffic log also counts clients, for `top`.", False, at_start=True)
    ]


class HttpOptions(LimiterOptions, total=False):
    """The settings that you can also pass to a middleware, as arguments."""

    trusted_proxies: Annotated[
        Sequence[str], list_of(checked_proxy), option('Trusted proxies: IP addresses, networks or `"unix"`.', [])
    ]
    forwarded_header: Annotated[
        str,
        of_type(str, forwarded_header),
        option("The header with the client IP. Your proxy appends to it, or overwrites it.", "x-forwarded-for"),
    ]
    ipv6_prefix: Annotated[int, option("Number of bits of an IPv6 address that identify a client.", 64, ge=1, le=128)]
    headers: Annotated[
        Headers, option("Families of headers to send. `Retry-After` is always sent.", ["x-ratelimit", "ratelimit"])
    ]
    reset: Annotated[
        Literal["delta", "epoch"], option("Send the reset in seconds from now, or in seconds since 1970.", "delta")
    ]
    retry_jitter: Annotated[
        str | float,
        parse_whole_seconds,
        option("The longest random time that is added to the time to wait, in whole seconds.", 0),
    ]
    body_limit: Annotated[
        str | int,
        of_type(str | int, parse_size),
        option("The longest body that is read for a rule with a field of the body.", "64KiB"),
    ]
    body_timeout: Annotated[PositiveDuration, option("The longest time to wait for such a body, under ASGI.", "1s")]
    region_database: Annotated[str, option("A MaxMind database for `region`, relative to the settings file.", "")]
    region_header: Annotated[
        str,
        of_type(str, header_name),
        option("The header with the country for `region`. It needs `trusted_proxies`.", ""),
    ]


class SettingsDict(HttpOptions, total=False):
    """All settings, as in a settings file."""

    rules: Annotated[
        Sequence[RuleSettings], as_given, option("The rules. All rules that match a request apply together.", [])
    ]
    defaults: Annotated[
        RuleDefaults, parse_defaults, option("Options of the rules and decorators that do not set them.", {})
    ]
    priorities: Annotated[PriorityTable, parse_priorities, option("The classes of requests.", {})]
    on_store_error: Annotated[
        OnStoreError, option("Without the store: allow, reject, or count by process.", "local", at_start=True)
    ]
    store_timeout: Annotated[
        PositiveDuration, option("The longest time that a call may wait for a shared store.", "50ms", at_start=True)
    ]
    fleet_size: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        option("The number of processes. Default: counted in the store.", at_start=True),
    ]
    fallback_keys: Annotated[
        int, option("Maximum number of keys of a process without the store.", 100_000, at_start=True, ge=1)
    ]
    rejection_cache: Annotated[
        Duration, option("The longest time that a process repeats a rejection.", "1s", at_start=True)
    ]
    reload_interval: Annotated[
        Duration, option("Time between checks for a changed settings file and for overrides. `0`: never.", "2s")
    ]
    exempt: Annotated[
        Sequence[str],
        list_of(checked_pattern),
        option("Patterns of paths that no rule limits. The deny list still applies.", []),
    ]
    lists: Annotated[
        ListSettings, checked_table, option("The allow list and the deny list, which take precedence over rules.", {})
    ]
    secret: Annotated[
        str | None,
        secret_text,
        option("The secret of the digests in the store, at least 16 characters.", at_start=True),
    ]
    keyed: Annotated[
        Sequence[str] | None, option("Features to digest. It needs a secret. Default: `email`, `user`, `ip`.")
    ]


def _or_variable(option: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an option that may also be a variable of the environment, as a text."""
    notes = {name: option.pop(name) for name in ("description", "default") if name in option}
    kinds = option.get("anyOf", [option])
    for kind in kinds:
        if "items" in kind:
            kind["items"] = _or_variable(kind["items"])
    types = {"enum" if "enum" in kind else kind.get("type") for kind in kinds}
    is_converted = "string" not in types and not types.isdisjoint(_CONVERTED)
    return notes | ({"anyOf": [*kinds, _VARIABLE]} if is_converted else option)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a settings file, for editors."""
    exported = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(SettingsDict)}
    for table in exported["$defs"].values():
        for name, value in table["properties"].items():
            table["properties"][name] = _or_variable(value)
        table["additionalProperties"] = False
    exported["$defs"][MatchOptions.__name__]["additionalProperties"] = msgspec.json.schema(FeatureValues)
    exported["$defs"][SettingsDict.__name__]["properties"]["$schema"] = _SCHEMA_FIELD
    return exported
