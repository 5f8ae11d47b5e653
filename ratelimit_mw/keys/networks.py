"""Addresses and networks as settings write them, and which clients lie in them. Pure.

A client is the text that it is counted under: an IPv4 address, or an IPv6 network such as ``2001:db8:1:2::/64``.
IPv4 addresses in the clothes of IPv6 are IPv4 everywhere here, and zones are left out.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

from ..errors import ConfigError

__all__ = ["Network", "is_in", "parse_network", "unmapped"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_KEPT: Final = 8192
_LONGEST: Final = 128  # characters of an address, a zone of Unix included; nothing longer is kept
_MAPPED: Final = 96  # the bits that stand before an IPv4 address


def parse_network(text: object) -> Network:
    """An address or a network; ``ConfigError`` for anything else, a network with host bits included.

    >>> parse_network("::ffff:10.0.0.0/104")
    IPv4Network('10.0.0.0/8')
    """
    if not isinstance(text, str):  # a number would be an address, too
        raise ConfigError(f'expected an address or a network such as "10.0.0.0/8"; got {text!r}')
    try:
        return _network(text)
    except ValueError as error:
        raise ConfigError(f'expected an address or a network such as "10.0.0.0/8": {error}') from None


def is_in(client: str, networks: tuple[Network, ...]) -> bool:
    """Whether a client lies in one of the networks; False for what is no address.

    >>> is_in("10.1.2.3", (parse_network("10.0.0.0/8"),)), is_in("::ffff:10.1.2.3", (parse_network("10.0.0.0/8"),))
    (True, True)
    """
    return len(client) <= _LONGEST and _is_in(client, networks)


@lru_cache(_KEPT)
def _is_in(client: str, networks: tuple[Network, ...]) -> bool:
    try:
        address = _network(client)
    except ValueError:
        return False
    return any(address.version == network.version and address.subnet_of(network) for network in networks)  # type: ignore[arg-type]


@lru_cache(_KEPT)
def unmapped(client: str) -> str:
    """A client's address as IPv4 where it is that in IPv6 form, and without its zone; any other text as it is.

    >>> unmapped("::ffff:192.0.2.7"), unmapped("fe80::1%eth0"), unmapped("2001:db8:1:2::/64")
    ('192.0.2.7', 'fe80::1', '2001:db8:1:2::/64')
    """
    text = client.partition("%")[0]
    try:
        mapped = ipaddress.IPv6Address(text).ipv4_mapped
    except ValueError:
        return client
    return text if mapped is None else str(mapped)


def _network(text: str) -> Network:
    network = ipaddress.ip_network(text)
    if network.version == 4:
        return network
    address, length = network.network_address, network.prefixlen
    if address.ipv4_mapped is not None and length >= _MAPPED:
        return ipaddress.IPv4Network((address.ipv4_mapped, length - _MAPPED))
    return ipaddress.IPv6Network((int(address), length))
