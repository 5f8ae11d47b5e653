"""Addresses and networks as settings write them, and which clients lie in them. Pure.

A client is the text that it is counted under: an IPv4 address, or an IPv6 network such as ``2001:db8:1:2::/64``.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from .errors import ConfigError

__all__ = ["Network", "is_in", "parse_network"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_network(text: object) -> Network:
    """An address or a network; ``ConfigError`` for anything else, a network with host bits included."""
    if not isinstance(text, str):  # a number would be an address, too
        raise ConfigError(f'expected an address or a network such as "10.0.0.0/8"; got {text!r}')
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(f'expected an address or a network such as "10.0.0.0/8": {error}') from None


@lru_cache(8192)
def is_in(client: str, networks: tuple[Network, ...]) -> bool:
    """Whether a client lies in one of the networks; False for what is no address.

    >>> is_in("10.1.2.3", (parse_network("10.0.0.0/8"),))
    True
    """
    try:
        address = ipaddress.ip_network(client)
    except ValueError:
        return False
    return any(address.version == network.version and address.subnet_of(network) for network in networks)  # type: ignore[arg-type]
