"""Addresses of clients in the form that keys have. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from ..errors import ConfigError, error_path
from .email import normalized_email
from .features import UNKNOWN_IP, Features, is_email
from .networks import EMBEDDINGS, Embedding, embedded_ipv4, parse_network

MAX_ADDRESS: Final = 64
"""The most characters of an address that are read."""
_KEPT: Final = 1024
_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

PORT: Final = r":(?:\d{1,5}|_[\w.-]+)"  # RFC 7239 allows a proxy to write another name for a port
_WITH_PORT = re.compile(rf"\[([\w:.%~-]+)\](?:{PORT})?|(\d+\.\d+\.\d+\.\d+){PORT}", re.ASCII)
_ZONE = re.compile(r"[\w.~-]+", re.ASCII)


def as_counted(
    features: Features, ipv6_prefix: int = 64, nat64: Iterable[Embedding] = (), has_own_ip: bool = False
) -> dict[str, Any]:
    """Return the features of a client as its requests have them in a middleware.

    ``nat64`` are the NAT64 prefixes of the application. The network of one client is taken, because tables show it. An
    application that ``has_own_ip`` counts any text.

    Raises:
        ConfigError: ``ip`` is neither an IP address nor the network of one client.

    Example:
        >>> as_counted({"ip": "2001:db8:1:2:3::4", "email": "Ann@Example.com"})
        {'ip': '2001:db8:1:2::/64', 'email': 'ann@example.com'}
    """
    counted = {
        name: normalized_email(value) if is_email(name) and isinstance(value, str) else value
        for name, value in features.items()
    }
    ip = counted.get("ip")
    if isinstance(ip, str | _IPAddress) and ip not in ("", UNKNOWN_IP) and not has_own_ip:
        with error_path("ip"):
            counted["ip"] = _counted_ip(str(ip)[:MAX_ADDRESS], ipv6_prefix, tuple(nat64))
    return counted


@lru_cache(_KEPT)
def _counted_ip(text: str, ipv6_prefix: int, nat64: tuple[Embedding, ...]) -> str:
    return ip_key(text, ipv6_prefix, (*nat64, *EMBEDDINGS)) or _client_network(text, ipv6_prefix)


def _client_network(text: str, ipv6_prefix: int) -> str:
    """Return a network that is counted as one client; ``ConfigError`` for one of many clients, which no key has."""
    network = parse_network(text)
    if network.num_addresses > 1 and (network.version == 4 or network.prefixlen != ipv6_prefix):
        raise ConfigError(f"expected an IP address, because {network} has many clients. lists.deny takes networks")
    return str(network)


def ip_key(text: str, ipv6_prefix: int = 64, embeddings: Iterable[Embedding] = EMBEDDINGS) -> str | None:
    """Return the text that an IP address is counted under; None for a text that is not a client's address.

    >>> ip_key("::ffff:192.0.2.7"), ip_key("2001:db8:1:2:3::4"), ip_key("0.0.0.0")
    ('192.0.2.7', '2001:db8:1:2::/64', None)
    """
    address = parse_address(text, embeddings)
    if address is None:
        return None
    if address.version == 4 or ipv6_prefix == 128:
        return str(address)
    return str(ipaddress.ip_network((address, ipv6_prefix), strict=False))


def parse_address(text: str, embeddings: Iterable[Embedding]) -> _IPAddress | None:
    """Return the address without port, brackets and zone, as IPv4 where it holds one; None for other text."""
    if match := _WITH_PORT.fullmatch(text):
        text = match[1] or match[2]
    if "%" in text:
        text, _, zone = text.partition("%")
        if ":" not in text or not _ZONE.fullmatch(zone):
            return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        address = embedded_ipv4(address, embeddings) or address
    return None if address.is_unspecified else address
