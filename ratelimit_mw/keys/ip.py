"""IP addresses and networks: parse them, in the form that keys have, and find a client in many networks. Pure.

A client is the text of an IPv4 address, or of an IPv6 network such as ``2001:db8:1:2::/64``. An IPv6 address that holds
an IPv4 address counts as IPv4, and zones are removed.
"""

import ipaddress
import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple

from ..errors import ConfigError

MAX_ADDRESS: Final = 64
"""The most characters of an address that are read."""
Network = IPv4Network | IPv6Network
IPAddress = IPv4Address | IPv6Address

_KEPT: Final = 8192
_MAX_TEXT: Final = 128  # characters of an address with its zone; longer texts are not cached
_IPV4: Final = 1 << 128  # added to IPv4 addresses, so that one list of numbers holds both versions

PORT: Final = r":(?:\d{1,5}|_[\w.-]+)"  # RFC 7239 allows a proxy to write another name for a port
_WITH_PORT = re.compile(rf"\[([\w:.%~-]+)\](?:{PORT})?|(\d+\.\d+\.\d+\.\d+){PORT}", re.ASCII)
_ZONE = re.compile(r"[\w.~-]+", re.ASCII)


def _range(network: Network) -> tuple[int, int]:
    first = int(network.network_address) + (_IPV4 if network.version == 4 else 0)
    return first, first + int(network.hostmask)


class Networks(tuple[Network, ...]):
    """Networks that find a client by bisection. A text that is not an IP address is in none of them.

    >>> private = Networks([parse_network("10.0.0.0/8")])
    >>> "10.1.2.3" in private, "::ffff:10.1.2.3" in private
    (True, True)
    """

    def __init__(self, _networks: Iterable[Network] = ()) -> None:
        """Sort the first and the last addresses of the networks. Ranges that touch are merged."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(map(_range, self)):
            if self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(self._lasts[-1], last)
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def __contains__(self, client: object) -> bool:
        wanted = _client_range(client) if isinstance(client, str) and len(client) <= _MAX_TEXT else None
        if wanted is None:
            return False
        i = bisect_right(self._firsts, wanted[0]) - 1
        return i >= 0 and wanted[1] <= self._lasts[i]


class _Embedding(NamedTuple):
    """IPv6 addresses that hold an IPv4 address from the bit ``start`` on."""

    network: IPv6Network
    start: int
    mask: int = 0  # the bits of the IPv4 address that are inverted
    has_private: bool = False


_EMBEDDINGS: Final = (
    _Embedding(IPv6Network("::ffff:0:0/96"), 96, has_private=True),
    _Embedding(IPv6Network("64:ff9b::/96"), 96),  # NAT64, RFC 6052
    _Embedding(IPv6Network("2002::/16"), 16),  # 6to4, RFC 3056
    _Embedding(IPv6Network("2001::/32"), 96, 0xFFFFFFFF),  # Teredo, RFC 4380
)
# These are no ends of a tunnel through the Internet. A client that forges one does not become a private IPv4 client.
_PRIVATE: Final = Networks(
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8"),
        *("169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/3"),
    )
)


def parse_network(text: object) -> Network:
    """Parse an IP address or a network without host bits. ``ConfigError`` for anything else.

    >>> parse_network("::ffff:10.0.0.0/104")
    IPv4Network('10.0.0.0/8')
    """
    try:
        if isinstance(text, str):  # ipaddress would accept a number
            network = _network(text)
            if _is_whole_tunnel(network):
                raise ValueError(f"an address in {text} counts as the IPv4 address in it. Write IPv4 networks")
            return network
        raise ValueError(f"got {text!r}")
    except ValueError as error:
        raise ConfigError(f'expected an IP address or a network such as "10.0.0.0/8": {error}') from None


def embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address in an IPv6 address; None where there is none.

    >>> embedded_ipv4(IPv6Address("2002:c000:207::1")), embedded_ipv4(IPv6Address("2001:db8::1"))
    (IPv4Address('192.0.2.7'), None)
    """
    ipv4 = _embedded(address, 128)
    return None if ipv4 is None else ipv4.network_address


def _embedded(address: IPv6Address, length: int) -> IPv4Network | None:
    """Return the IPv4 network in an IPv6 network, whose ``length`` is its bits; None where there is none."""
    for network, start, mask, has_private in _EMBEDDINGS:
        if address in network:
            bits = min(max(length - start, 0), 32)
            ipv4 = IPv4Network((int(address) >> 96 - start & 0xFFFFFFFF ^ mask, bits), strict=False)
            return ipv4 if has_private or (bits and str(ipv4) not in _PRIVATE) else None
    return None


@lru_cache(_KEPT)
def canonical_ip(client: str) -> str:
    """Remove the zone of an IP address, and turn an IPv6 address that holds IPv4 into IPv4. Other texts stay the same.

    >>> canonical_ip("::ffff:192.0.2.7"), canonical_ip("fe80::1%eth0"), canonical_ip("2001:db8:1:2::/64")
    ('192.0.2.7', 'fe80::1', '2001:db8:1:2::/64')
    """
    text = client.partition("%")[0]
    try:
        ipv4 = embedded_ipv4(IPv6Address(text))
    except ValueError:
        return client
    return text if ipv4 is None else str(ipv4)


@lru_cache(_KEPT)
def widened(client: str, ipv4_prefix: int, ipv6_prefix: int) -> str:
    """Return the network of a client with at most so many bits. A text that is not an IP address stays the same.

    >>> widened("192.0.2.7", 24, 48), widened("2001:db8:1:2::/64", 24, 48), widened("unknown", 24, 48)
    ('192.0.2.0/24', '2001:db8:1::/48', 'unknown')
    """
    try:
        network = _network(client)
    except ValueError:
        return client
    prefix = ipv4_prefix if network.version == 4 else ipv6_prefix
    return canonical_ip(client) if network.prefixlen <= prefix else str(network.supernet(new_prefix=prefix))


def _network(text: str) -> Network:
    """Parse a network, as IPv4 where it holds IPv4 addresses."""
    network = ipaddress.ip_network(text)
    if isinstance(network, IPv4Network):
        return network
    address, length = network.network_address, network.prefixlen
    return _embedded(address, length) or IPv6Network((int(address), length))


def _is_whole_tunnel(network: Network) -> bool:
    """Return whether the addresses of a network are those of a tunnel, for more than one network of IPv4."""
    return isinstance(network, IPv6Network) and any(
        network.prefixlen <= embedding.start and network.subnet_of(embedding.network) for embedding in _EMBEDDINGS
    )


@lru_cache(_KEPT)
def _client_range(client: str) -> tuple[int, int] | None:
    try:
        if ":" in client or "/" in client:
            return _range(_network(client))
        number = int(IPv4Address(client)) + _IPV4  # three times as fast as a network of one address
    except ValueError:
        return None
    return number, number


def ip_key(text: str, ipv6_prefix: int = 64) -> str | None:
    """Return the text that an IP address is counted under; None for a text that is not a client's address.

    >>> ip_key("::ffff:192.0.2.7"), ip_key("2001:db8:1:2:3::4"), ip_key("0.0.0.0")
    ('192.0.2.7', '2001:db8:1:2::/64', None)
    """
    address = parse_address(text)
    if address is None:
        return None
    if address.version == 4 or ipv6_prefix == 128:
        return str(address)
    return str(ipaddress.ip_network((address, ipv6_prefix), strict=False))


def parse_address(text: str) -> IPAddress | None:
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
    if isinstance(address, IPv6Address):
        address = embedded_ipv4(address) or address
    return None if address.is_unspecified else address


@lru_cache(_KEPT)
def counted_ip(text: str, ipv6_prefix: int) -> str:
    """Return the text that an IP address or the network of one client is counted under; ``ConfigError`` for others.

    >>> counted_ip("192.0.2.7/32", 64), counted_ip("2001:db8::7/128", 64)
    ('192.0.2.7', '2001:db8::/64')
    """
    if (client := ip_key(text, ipv6_prefix)) is not None:
        return client
    if ip_key(text.partition("/")[0], ipv6_prefix) == text:  # forged ends of a tunnel have such a network, too
        return text
    network = parse_network(text)
    if network.num_addresses > 1 and (network.version == 4 or network.prefixlen != ipv6_prefix):
        raise ConfigError(f"expected an IP address, because {network} has many clients. lists.deny takes networks")
    return ip_key(str(network.network_address), ipv6_prefix) or str(network)
