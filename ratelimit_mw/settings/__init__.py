"""Settings files and dictionaries into rules: typed, strict, and an error with its place for anything unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

import msgspec

from ..errors import ConfigError, placed
from ..keys.secret import NO_SECRET, Secret
from ..rules.access_lists import AccessLists
from ..rules.client_checks import check_lists, check_rule
from ..rules.names import printable
from ..rules.rule import Rule
from ..rules.ruleset import Override, RuleSet
from ..stores import check_address
from .files import limits_file, read
from .values import budget, checked_proxy, database_file, duration, email_field, header_name, secret_of, size

__all__ = ["Settings", "load_settings", "schema"]

FAMILIES: Final = ("x-ratelimit", "ratelimit")

_UNKNOWN: Final = "unknown field "
_UNEXPECTED: Final = "Invalid enum value "

Limits = str | list[str]
Duration = str | int | float
Size = str | int

# Values that Rule checks itself, for it can say which one is wrong; here only editors are told.
_TEXTS: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_TABLE: Final = {"type": "object", "additionalProperties": _TEXTS}
Match = Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=_TABLE)]
PerKey = str | Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=_TABLE)]
Per = Annotated[dict[str, Any], msgspec.Meta(extra_json_schema={"additionalProperties": _TABLE})]


class Outcome(msgspec.Struct, forbid_unknown_fields=True):
    """Which responses count."""

    status: int | list[int]


class RuleTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One ``[[rules]]`` table."""

    limits: Limits | msgspec.UnsetType = msgspec.UNSET
    overrides: str | None = None
    name: str | None = None
    match: Match = {}
    key: str | list[str] = msgspec.field(default_factory=lambda: ["ip"])
    algorithm: str | dict[str, Any] = "sliding-window-counter"
    cost: int = 1
    when_missing: Literal["skip", "reject"] = "skip"
    mode: Literal["enforce", "shadow"] = "enforce"
    count_when: Outcome | None = None
    per_key: PerKey = {}
    per: Per = {}
    on_store_error: Literal["allow", "deny", "local"] | None = None
    lease: str | None = None
    priority: Literal["normal"] = "normal"


class ListsTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Who is never limited, and who is never served."""

    allow: dict[str, str | list[str]] = {}
    deny: dict[str, str | list[str]] = {}


class SettingsTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The whole file."""

    rules: list[RuleTable] = []
    store: str = "memory://"
    trusted_proxies: list[str] = []
    forwarded_header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for"
    ipv6_prefix: int = 64
    headers: list[Literal["x-ratelimit", "ratelimit"]] = msgspec.field(default_factory=lambda: list(FAMILIES))
    reset: Literal["delta", "epoch"] = "delta"
    retry_jitter: Duration = 0
    on_store_error: Literal["allow", "deny", "local"] = "local"
    store_timeout: Duration = "50ms"
    fleet_size: int = 1
    rejection_cache: Duration = "1s"
    lists: ListsTable = msgspec.field(default_factory=lambda: ListsTable())
    email_field: str = "email"
    body_limit: Size = "64KiB"
    body_timeout: Duration = "1s"
    region_database: str = ""
    region_header: str = ""
    secret: str | None = None
    secret_file: str | None = None
    keyed: list[str] | None = None
    schema_address: str = msgspec.field(default="", name="$schema")


@dataclass(frozen=True)
class Settings:
    """Loaded settings. Durations are whole microseconds."""

    rules: tuple[Rule, ...] = ()
    overrides: Mapping[str, Override] = field(default_factory=dict)
    store: str = field(default="memory://", repr=False)  # may hold a password
    trusted_proxies: tuple[str, ...] = ()
    forwarded_header: str = "x-forwarded-for"
    ipv6_prefix: int = 64
    headers: tuple[str, ...] = FAMILIES
    reset: str = "delta"
    retry_jitter: int = 0
    on_store_error: str = "local"
    store_timeout: int = 50_000
    fleet_size: int = 1
    rejection_cache: int = 1_000_000
    lists: AccessLists = field(default_factory=AccessLists)
    email_field: str = "email"
    body_limit: int = 65_536
    body_timeout: int = 1_000_000
    region_database: str = ""
    region_header: str = ""
    secret: Secret = NO_SECRET
    source: str = field(default="", compare=False)


def load_settings(source: str | PathLike[str] | Mapping[str, Any]) -> Settings:
    """Settings from a ``.toml``, ``.json`` or ``.yaml`` file, from ``pyproject.toml`` or from a dictionary.

    Raises ``ConfigError`` with the place of the mistake, such as ``rules[1].limits[0]``, and ``OSError`` for a
    file that cannot be read.

    >>> load_settings({"rules": [{"name": "api", "limits": "5/minute"}]}).rules[0].name
    'api'
    """
    try:
        return _loaded(source)
    except RecursionError:
        raise ConfigError("there are tables or lists within each other, deeper than anything here can mean") from None


def _loaded(source: str | PathLike[str] | Mapping[str, Any]) -> Settings:
    if isinstance(source, Mapping):
        return _settings(dict(source), Path(), "")
    path = Path(fspath(source))
    try:
        return _settings(read(path), path.parent, str(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def schema() -> dict[str, Any]:
    """The JSON Schema of a settings file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(SettingsTable)}


def _settings(data: Any, folder: Path, source: str) -> Settings:
    if not isinstance(data, dict):
        raise ConfigError(f"expected a table at the top; got {type(data).__name__}")
    try:
        table = msgspec.convert(data, SettingsTable)
    except msgspec.ValidationError as error:
        raise _readable(error) from None
    except UnicodeEncodeError as error:
        raise ConfigError(f"expected text in Unicode; got {error.object!r}, which has half a character") from None
    with placed("store"):
        check_address(table.store)
    _check_http(table)
    rules, overrides = _rules(table, data, folder)
    with placed("lists"):
        lists = AccessLists(msgspec.structs.asdict(table.lists))
    check_lists(lists, table.ipv6_prefix)
    if table.fleet_size < 1:
        raise ConfigError(f"expected the number of processes on the store; got {table.fleet_size}", "fleet_size")
    return Settings(
        rules=rules,
        overrides=overrides,
        store=table.store,
        trusted_proxies=tuple(table.trusted_proxies),
        forwarded_header=table.forwarded_header,
        ipv6_prefix=table.ipv6_prefix,
        headers=tuple(table.headers),
        reset=table.reset,
        retry_jitter=duration("retry_jitter", table.retry_jitter),
        on_store_error=table.on_store_error,
        store_timeout=budget("store_timeout", table.store_timeout),
        fleet_size=table.fleet_size,
        rejection_cache=duration("rejection_cache", table.rejection_cache),
        lists=lists,
        email_field=email_field(table.email_field),
        body_limit=size("body_limit", table.body_limit),
        body_timeout=budget("body_timeout", table.body_timeout),
        region_database=database_file(table.region_database, folder),
        region_header=header_name("region_header", table.region_header),
        secret=secret_of(table.secret, table.secret_file, table.keyed, folder),
        source=source,
    )


def _rules(table: SettingsTable, data: Mapping[str, Any], folder: Path) -> tuple[tuple[Rule, ...], dict[str, Override]]:
    """The rules, and what replaces fields of decorators' rules."""
    rules: list[Rule] = []
    overrides: dict[str, Override] = {}
    for i, rule in enumerate(table.rules):
        with placed(f"rules[{i}]"):
            if rule.overrides is None:
                rules.append(_rule(rule, folder))
                check_rule(rules[-1], table.ipv6_prefix)
                continue
            name = printable(rule.overrides)
            if name in overrides:
                raise ConfigError(f"{rule.overrides!r} is overridden above already", "overrides")
            overrides[name] = Override(i, _override(rule, data["rules"][i], folder, table.ipv6_prefix))
    RuleSet(rules, overrides=overrides)
    return tuple(rules), overrides


def _check_http(table: SettingsTable) -> None:
    for i, proxy in enumerate(table.trusted_proxies):
        with placed(f"trusted_proxies[{i}]"):
            checked_proxy(proxy)
    if not 1 <= table.ipv6_prefix <= 128:
        raise ConfigError(f"expected a prefix length from 1 to 128; got {table.ipv6_prefix}", "ipv6_prefix")


def _rule(table: RuleTable, folder: Path) -> Rule:
    if table.limits is msgspec.UNSET:
        raise ConfigError("a rule needs limits, unless it replaces one of a decorator", "limits")
    return Rule(**_fields(table, folder))


def _override(table: RuleTable, written: Mapping[str, Any], folder: Path, ipv6_prefix: int) -> dict[str, Any]:
    """The fields that are written there; checked here as far as they can be without the rule that they change."""
    given = {name: value for name, value in _fields(table, folder).items() if name in written}
    if "name" in given:
        raise ConfigError("a rule keeps the name under which it is replaced", "name")
    # Where no key is written the decorator's counts, which may be any: one in which no text is a mistake.
    check_rule(Rule(**{"limits": "1/s", "key": "user", **given}), ipv6_prefix)
    return given


def _fields(table: RuleTable, folder: Path) -> dict[str, Any]:
    """A rule's fields as ``Rule`` takes them."""
    fields = {name: value for name, value in msgspec.structs.asdict(table).items() if name != "overrides"}
    if isinstance(table.per_key, str):
        fields["per_key"] = limits_file(folder / table.per_key)
    if table.count_when is not None:
        fields["count_when"] = {"status": table.count_when.status}
    return fields


def _readable(error: msgspec.ValidationError) -> ConfigError:
    """msgspec's "Expected `int`, got `str` - at `$.rules[1].cost`" with the place first, and with what was expected."""
    message, _, place = str(error).replace("Object contains unknown field `", _UNKNOWN + "`").partition(" - at `")
    if place.startswith("key` in `"):
        message, place = f"a key: {message}", place.removeprefix("key` in `")
    place = place.removeprefix("$").rstrip("`").removeprefix(".")
    table: type[msgspec.Struct] = RuleTable if place.startswith("rules[") else SettingsTable
    if message.startswith(_UNKNOWN):
        table = _WITHIN.get(place.rpartition(".")[2], table)
        message += f"; expected one of {', '.join(f.encode_name for f in msgspec.structs.fields(table))}"
    if message.startswith(_UNEXPECTED):
        name = re.sub(r"\[\d+\]$", "", place).rpartition(".")[2]
        expected = " or ".join(map(repr, _words(get_type_hints(table)[name])))
        message = f"expected {expected}; got {message.removeprefix(_UNEXPECTED)}"
    return ConfigError(message.replace("`", "'"), place)


_WITHIN: Final[dict[str, type[msgspec.Struct]]] = {"count_when": Outcome, "lists": ListsTable}


def _words(hint: Any) -> list[str]:
    """The words that a type consists of: of ``Literal["a", "b"] | None`` they are a and b."""
    return [hint] if isinstance(hint, str) else [word for part in get_args(hint) for word in _words(part)]
