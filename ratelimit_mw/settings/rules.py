"""Parse the rules of settings: those of ``rules``, their defaults, and the rule of ``limits``."""

import ipaddress
import itertools
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final, cast

from ..errors import ConfigError, error_path
from ..keys.ip import Networks, canonical_ip, parse_network
from ..keys.parts import Part, ip_prefixes
from ..rules.access_lists import AccessLists
from ..rules.declaration import decode, options_of
from ..rules.named_rules import Amendment
from ..rules.names import ascii_name
from ..rules.options import RuleDefaults, RuleSettings
from ..rules.places import Location
from ..rules.rule import Rule, build_rule, check_options, check_rule_names
from .files import Identities, read, with_variables

_DEFAULT_RULE: Final = "default"
LIMITS: Final = "limits"
"""The setting with the limits of all requests."""


def with_limits(rules: tuple[Rule, ...], limits: Any, defaults: RuleDefaults, source: str = "") -> tuple[Rule, ...]:
    """Return the rules, and the rule of the setting ``limits``, which is in the file ``source``."""
    if limits is None:
        return rules
    return *rules, build_rule({"name": _DEFAULT_RULE, "limits": limits}, defaults, Location(source, LIMITS))


def parse_defaults(table: Any) -> RuleDefaults:
    """Return the options of all rules, each of which a rule could have."""
    decode(RuleDefaults, table, 'a table such as {key = "user|ip"}', "default")
    check_options(table)
    return cast(RuleDefaults, dict(table))


def with_files(settings: Any, folder: Path, files: Identities) -> Any:
    """Return settings as they were read, with the tables of the files that ``per_key`` names."""
    rules = settings.get("rules") if isinstance(settings, Mapping) else None
    if not isinstance(rules, list | tuple):
        return settings
    tables = []
    for i, rule in enumerate(rules):
        with error_path(f"rules[{i}].per_key"):
            tables.append(_with_file(rule, folder, files))
    return {**settings, "rules": tables}


def _with_file(rule: Any, folder: Path, files: Identities) -> Any:
    name = rule.get("per_key") if isinstance(rule, Mapping) else None
    if not isinstance(name, str):
        return rule
    file = folder / with_variables(name)
    if not isinstance(limits := read(file, files, "file"), dict):
        raise ConfigError(f"{file}: expected a table of limits by client; got {limits!r}")
    return {**rule, "per_key": limits}


def parse_rules(tables: Any, settings: Mapping[str, Any], source: str) -> tuple[tuple[Rule, ...], dict[str, Amendment]]:
    """Return the rules, and those that override a decorator's options. ``settings`` are the others of the file."""
    fields = options_of(RuleSettings)
    if not isinstance(tables, list | tuple):
        raise ConfigError(f"expected a list of tables, [[rules]] in TOML; got {tables!r}", "rules")
    rules: list[Rule] = []
    amendments: dict[str, Amendment] = {}
    for i, table in enumerate(tables):
        with error_path(path := f"rules[{i}]"):
            if not isinstance(table, Mapping):
                raise ConfigError(f'expected a table such as {{limits = "5/minute"}}; got {table!r}')
            if name := next((name for name in table if name in settings and name not in fields), None):
                raise ConfigError("a setting of the whole file. Write it above the first [[rules]]", name)
            check_rule_names(table, fields, "field")
            options = dict(table)
            if (overridden := options.pop("overrides", None)) is not None:
                # The decorator's key is not known here. With the key "user" any value of per_key is possible.
                rule = check_options(options)
                amendments[_amended_name(overridden, options, amendments)] = Amendment(i, options)
            elif "limits" in options:
                rules.append(rule := build_rule(options, settings["defaults"], Location(source, path)))
            else:
                raise ConfigError("a rule needs limits, unless it has overrides", "limits")
            check_rule(rule, settings["ipv6_prefix"])
            with error_path("reserve"):
                settings["priorities"].held(rule.reserve)
    return tuple(rules), amendments


def _amended_name(name: Any, options: Mapping[str, Any], amended: Container[str]) -> str:
    """Return the name of the rule that a rule overrides."""
    if not isinstance(name, str):
        raise ConfigError(f"expected the name of a rule; got {name!r}", "overrides")
    if ascii_name(name) in amended:
        raise ConfigError(f"{name!r} is already overridden above. Put all changes in one rule", "overrides")
    if "name" in options:
        raise ConfigError("a rule with overrides keeps the name of the overridden rule. Remove name", "name")
    return ascii_name(name)


def check_lists(lists: AccessLists, ipv6_prefix: int) -> None:
    """``ConfigError`` for a network that is narrower than a client."""
    for entry in lists.entries:
        with error_path(f"lists.{entry.kind}.ip"):
            _check_networks(entry.values, ipv6_prefix)


def check_rule(rule: Rule, ipv6_prefix: int) -> None:
    """``ConfigError`` for a narrower network, and for limits of another address."""
    with error_path("key"):
        for part in itertools.chain(*rule.entries):
            _check_width(part, ipv6_prefix)
    with error_path("match.ip"):
        for _, values in rule.matches.features:
            _check_networks(values, ipv6_prefix)
    for by, table in rule.tables:
        for part in [part for part in ([by] if by else rule.entries[0]) if part.feature == "ip"][:1]:
            for value in table:
                with error_path(f"per.{by}[{value!r}]" if by else f"per_key[{value!r}]"):
                    _check_client(value, part, ipv6_prefix)


def _check_width(part: Part, ipv6_prefix: int) -> None:
    prefix = ip_prefixes(part)[1]
    if ipv6_prefix < prefix < 128:
        raise ConfigError(
            f"{part!r} cannot be counted: {_per_prefix(ipv6_prefix)}. Write a smaller number than {prefix}"
        )


def _check_networks(values: object, ipv6_prefix: int) -> None:
    for network in values if isinstance(values, Networks) else ():
        if network.version == 6 and network.prefixlen > ipv6_prefix:
            wider = str(network.supernet(new_prefix=ipv6_prefix))
            raise ConfigError(f"{network} never matches: {_per_prefix(ipv6_prefix)}. Write {wider!r}")


def _check_client(value: str, part: Part, ipv6_prefix: int) -> None:
    """Check a value that is an IP address. Any other text may be the value of another feature."""
    text = canonical_ip(value)
    try:
        network = parse_network(str(ipaddress.ip_network(text, strict=False)))
    except ValueError:
        return
    ipv4, ipv6 = ip_prefixes(part)
    length = ipv4 if network.version == 4 else min(ipv6, ipv6_prefix)
    if network.prefixlen < length:
        raise ConfigError(f"{value!r} is a network, not a client. Write a rule with match = {{ip = [{value!r}]}}")
    client = str(network.supernet(new_prefix=length) if length < network.max_prefixlen else network.network_address)
    if text != client:
        problem = f"{text} never matches: {_per_prefix(length)}" if ":" in client else "not in canonical form"
        raise ConfigError(f"{problem}. Write {client!r}")


def _per_prefix(ipv6_prefix: int) -> str:
    return f"IPv6 clients are counted per /{ipv6_prefix} (ipv6_prefix = {ipv6_prefix})"
