"""Whether what rules and lists say of addresses can be true of a client, as middleware tells clients apart. Pure.

A client is an IPv4 address, or an IPv6 network as long as ``ipv6_prefix`` says. Nobody would be found by anything else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from ..errors import ConfigError, placed
from ..keys.networks import Network, parse_network, unmapped
from .access_lists import AccessLists
from .rule import Rule

__all__ = ["check_lists", "check_rule"]


def check_lists(lists: AccessLists, ipv6_prefix: int) -> None:
    """``ConfigError`` for a network that is narrower than a client."""
    for place, networks in lists.networks:
        with placed(f"lists.{place}"):
            _check_networks(networks, ipv6_prefix)


def check_rule(rule: Rule, ipv6_prefix: int, of: str = "") -> None:
    """``ConfigError`` for a network that is narrower than a client, and for limits of an address that is none.

    ``of``: what to call the rule where its place in a file is not known.
    """
    try:
        with placed("match.ip"):
            _check_networks(rule.matches.networks, ipv6_prefix)
        for name, table in rule.tables:
            if name == "ip" or (not name and "ip" in rule.entries[0]):
                _check_clients(f"per.{name}" if name else "per_key", table, ipv6_prefix)
    except ConfigError as error:
        raise ConfigError(error.message, error.path, of) from None


def _check_networks(networks: Iterable[Network], ipv6_prefix: int) -> None:
    for network in networks:
        if network.version == 6 and network.prefixlen > ipv6_prefix:
            wide = network.supernet(new_prefix=ipv6_prefix)
            raise ConfigError(
                f"clients are told apart by /{ipv6_prefix} (ipv6_prefix), so {network} is nobody; write '{wide}'"
            )


def _check_clients(place: str, values: Iterable[str], ipv6_prefix: int) -> None:
    for value in values:
        with placed(f"{place}[{value!r}]"):
            _check_client(value, ipv6_prefix)


def _check_client(value: str, ipv6_prefix: int) -> None:
    """Any text that is no address may be another feature's value, or what somebody's own function gives."""
    text = unmapped(value)
    try:
        network = parse_network(str(ipaddress.ip_network(text, strict=False)))
    except ValueError:
        return
    length = 32 if network.version == 4 else ipv6_prefix
    if network.prefixlen < length:
        raise ConfigError("limits of a client are for one; for a network write a rule with match = {ip = [...]}")
    client = str(network.supernet(new_prefix=length) if length < network.max_prefixlen else network.network_address)
    if text != client:
        told = f"IPv6 clients are told apart by /{length} (ipv6_prefix)" if ":" in client else "a client has one text"
        raise ConfigError(f"{told}; write {client!r}")
