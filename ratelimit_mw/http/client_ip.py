"""The client's IP address from the socket peer and the headers of proxies, so that a client cannot forge it.

The address is the peer's, unless the peer is a trusted proxy. Then it is the rightmost address that is not a trusted
proxy, over all lines of the header. A hop that is not an IP address ends the search, and the peer's address is used.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from ..keys.networks import parse_network

UNIX: Final = "unix"
_MAX_HOPS: Final = 32
_MAX_BYTES: Final = 8192
_MAX_ADDRESS: Final = 64
_CACHE_SIZE: Final = 8192

_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORT = r":(?:\d{1,5}|_[\w.-]+)"  # RFC 7239 allows a proxy to write another name for a port
_WITH_PORT = re.compile(rf"\[([\w:.%~-]+)\](?:{_PORT})?|(\d+\.\d+\.\d+\.\d+){_PORT}", re.ASCII)
_ZONE = re.compile(r"[\w.~-]+", re.ASCII)
_PAIR = re.compile(r'[ \t]*([!#$%&\'*+.^_`|~\w-]+)=([^\s;,="]+|"(?:[^"\\]|\\.)*")[ \t]*([;,]|$)', re.ASCII)


def ip_key(text: str, ipv6_prefix: int = 64) -> str | None:
    """Return the text that an IP address is counted under; None for a text that is not a client's address.

    >>> ip_key("::ffff:192.0.2.7"), ip_key("2001:db8:1:2:3::4"), ip_key("0.0.0.0")
    ('192.0.2.7', '2001:db8:1:2::/64', None)
    """
    address = _parse(text)
    if address is None:
        return None
    if address.version == 4 or ipv6_prefix == 128:
        return str(address)
    return str(ipaddress.ip_network((address, ipv6_prefix), strict=False))


class ClientIP:
    """Finds the client behind trusted proxies.

    >>> ClientIP(["10.0.0.0/8"]).resolve("10.0.0.1", ["203.0.113.9, 192.0.2.7, 10.1.2.3"])
    '192.0.2.7'
    >>> ClientIP().resolve("198.51.100.1", ["203.0.113.9"])
    '198.51.100.1'
    """

    def __init__(self, trusted: Iterable[str] = (), header: str = "x-forwarded-for", ipv6_prefix: int = 64) -> None:
        trusted = list(trusted)
        self.header = header
        self.reads_header = bool(trusted)
        self._trusts_unix = UNIX in trusted
        self._networks = [parse_network(proxy) for proxy in trusted if proxy != UNIX]
        self._hops = _forwarded_hops if header == "forwarded" else _x_forwarded_for_hops
        self.key = lru_cache(_CACHE_SIZE)(lambda text: ip_key(text, ipv6_prefix))
        self._trusts = lru_cache(_CACHE_SIZE)(self._is_trusted)

    def resolve(self, peer: str | None, lines: Iterable[str] = ()) -> str | None:
        """Return the key of the client's address; None where there is no address."""
        if peer and len(peer) > _MAX_ADDRESS:
            return None
        peer_key = self.key(peer) if peer else None
        if not self.reads_header or not self.trusts(peer):
            return peer_key
        for hop in self._hops(lines):
            if len(hop) > _MAX_ADDRESS:
                return peer_key
            if self._trusts(hop):
                continue
            return self.key(hop) or peer_key
        return peer_key

    def trusts(self, peer: str | None) -> bool:
        """Return whether the socket's other end is a trusted proxy."""
        return (len(peer) <= _MAX_ADDRESS and self._trusts(peer)) if peer else self._trusts_unix

    def _is_trusted(self, text: str) -> bool:
        if self._trusts_unix and text.startswith("unix:"):  # nginx writes this for a client on a Unix socket
            return True
        address = _parse(text)
        return address is not None and any(address in network for network in self._networks)


def _parse(text: str) -> _IPAddress | None:
    """Return the address without port, brackets and zone, as IPv4 where it is mapped; None for other text."""
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
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return None if address.is_unspecified else address


def _x_forwarded_for_hops(lines: Iterable[str]) -> Iterator[str]:
    text = ",".join(lines)
    if len(text) > _MAX_BYTES:  # the first hop of the rest may be cut in two
        text = text[-_MAX_BYTES:].partition(",")[2]
    for hop in reversed(text.rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
        if hop := hop.strip(" \t"):
            yield hop


def _forwarded_hops(lines: Iterable[str]) -> Iterator[str]:
    """Yield the ``for`` of each element of RFC 7239, "" for an element without one and for a malformed header."""
    text = ",".join(line for line in lines if line.strip())
    hops, position = [""], 0
    while position < len(text):
        pair = _PAIR.match(text, position) if len(text) <= _MAX_BYTES else None
        if pair is None:
            hops.append("")
            break
        name, value, end = pair.groups()
        if name.lower() == "for":
            hops[-1] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        if end == ",":
            hops.append("")
        position = pair.end()
    yield from reversed(hops[-_MAX_HOPS:])
