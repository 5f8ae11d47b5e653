"""Parse IP addresses and networks, and find out whether a client is in a network. Pure.

A client is the text of an IPv4 address, or of an IPv6 network such as ``2001:db8:1:2::/64``. An IPv4 address in IPv6
form counts as IPv4, and zones are removed.
"""

import ipaddress
from functools import lru_cache
from typing import Final

from ..errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_KEPT: Final = 8192
_LONGEST: Final = 128  # characters of an address with its zone; longer texts are not cached
_MAPPED: Final = 96  # the number of bits before the IPv4 address in IPv6 form


def parse_network(text: object) -> Network:
    """Parse an IP address or a network without host bits. ``ConfigError`` for anything else.

    >>> parse_network("::ffff:10.0.0.0/104")
    IPv4Network('10.0.0.0/8')
    """
    try:
        if isinstance(text, str):  # ipaddress would accept a number
            return _network(text)
        raise ValueError(f"got {text!r}")
    except ValueError as error:
        raise ConfigError(f'expected an IP address or a network such as "10.0.0.0/8": {error}') from None


def is_in(client: str, networks: tuple[Network, ...]) -> bool:
    """Whether a client is in one of the networks. False for a text that is not an IP address.

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
def canonical_ip(client: str) -> str:
    """Remove the zone of an IP address, and turn an IPv4 address in IPv6 form into IPv4. Other texts stay the same.

    >>> canonical_ip("::ffff:192.0.2.7"), canonical_ip("fe80::1%eth0"), canonical_ip("2001:db8:1:2::/64")
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
