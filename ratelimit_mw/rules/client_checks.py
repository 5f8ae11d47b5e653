"""Check that the IP addresses in rules and lists can be the address of a client. Pure.

A client is an IPv4 address or an IPv6 network of ``ipv6_prefix`` bits. No other form would ever match.
"""

import ipaddress

from ..errors import ConfigError, error_path
from ..keys.ip import Networks, canonical_ip, parse_network
from ..keys.parts import feature_of, ip_prefixes
from .access_lists import AccessLists
from .rule import Rule


def check_lists(lists: AccessLists, ipv6_prefix: int) -> None:
    """``ConfigError`` for a network that is narrower than a client."""
    for entry in lists.entries:
        with error_path(f"lists.{entry.kind}.ip"):
            _check_networks(entry.values, ipv6_prefix)


def check_rule(rule: Rule, ipv6_prefix: int) -> None:
    """``ConfigError`` for a narrower network, and for limits of another address."""
    for part in (part for parts in rule.entries for part in parts):
        with error_path("key"):
            _check_width(part, ipv6_prefix)
    with error_path("match.ip"):
        for _, values in rule.matches.features:
            _check_networks(values, ipv6_prefix)
    for name, table in rule.tables:
        part = next((part for part in ([name] if name else rule.entries[0]) if feature_of(part) == "ip"), "")
        for value in table if part else ():
            with error_path(f"per.{name}[{value!r}]" if name else f"per_key[{value!r}]"):
                _check_client(value, part, ipv6_prefix)


def _check_width(part: str, ipv6_prefix: int) -> None:
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


def _check_client(value: str, part: str, ipv6_prefix: int) -> None:
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
