"""The client's address from the socket peer and the proxies' headers, such that no client can forge it.

The peer counts, unless it is a trusted proxy; then the rightmost address that is not one, over all lines of the
header. Whatever is not an address ends the search, and the peer counts after all.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from ..keys.networks import parse_network

__all__ = ["ClientIP", "ip_key"]

UNIX: Final = "unix"
_MOST_HOPS: Final = 32
_MOST_BYTES: Final = 8192
_LONGEST: Final = 64
_CACHED: Final = 8192

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORT = r":(?:\d{1,5}|_[\w.-]+)"  # RFC 7239 lets proxies write another name for a port
_WITH_PORT = re.compile(rf"\[([\w:.%~-]+)\](?:{_PORT})?|(\d+\.\d+\.\d+\.\d+){_PORT}", re.ASCII)
_ZONE = re.compile(r"[\w.~-]+", re.ASCII)
_PAIR = re.compile(r'[ \t]*([!#$%&\'*+.^_`|~\w-]+)=([^\s;,="]+|"(?:[^"\\]|\\.)*")[ \t]*([;,]|$)', re.ASCII)


def ip_key(text: str, ipv6_prefix: int = 64) -> str | None:
    """The text under which an address is counted; None for what is not an address of a client.

    >>> ip_key("::ffff:192.0.2.7"), ip_key("2001:db8:1:2:3::4"), ip_key("0.0.0.0")
    ('192.0.2.7', '2001:db8:1:2::/64', None)
    """
    address = _parsed(text)
    return None if address is None else _key(address, ipv6_prefix)


class ClientIP:
    """Finds the client behind the proxies that are trusted.

    >>> ClientIP(["10.0.0.0/8"]).of("10.0.0.1", ["203.0.113.9, 192.0.2.7, 10.1.2.3"])
    '192.0.2.7'
    >>> ClientIP().of("198.51.100.1", ["203.0.113.9"])
    '198.51.100.1'
    """

    def __init__(self, trusted: Iterable[str] = (), header: str = "x-forwarded-for", ipv6_prefix: int = 64) -> None:
        trusted = list(trusted)
        self.header = header
        self.reads_header = bool(trusted)
        self._trusts_unix = UNIX in trusted
        self._networks = [parse_network(proxy) for proxy in trusted if proxy != UNIX]
        self._hops = _forwarded_hops if header == "forwarded" else _x_forwarded_for_hops
        self.key = lru_cache(_CACHED)(lambda text: ip_key(text, ipv6_prefix))
        self._trusts = lru_cache(_CACHED)(self._is_trusted)

    def of(self, peer: str | None, lines: Iterable[str] = ()) -> str | None:
        """The key of the client's address; None where there is no address at all."""
        if peer and len(peer) > _LONGEST:
            return None
        own = self.key(peer) if peer else None
        if not self.reads_header or not self.trusts(peer):
            return own
        for hop in self._hops(lines):
            if len(hop) > _LONGEST:
                return own
            if self._trusts(hop):
                continue
            return self.key(hop) or own
        return own

    def trusts(self, peer: str | None) -> bool:
        """Whether the socket's other end is a proxy whose word is taken."""
        return (len(peer) <= _LONGEST and self._trusts(peer)) if peer else self._trusts_unix

    def _is_trusted(self, text: str) -> bool:
        if self._trusts_unix and text.startswith("unix:"):  # what nginx writes for a client on a Unix socket
            return True
        address = _parsed(text)
        return address is not None and any(address in network for network in self._networks)


def _key(address: _Address, ipv6_prefix: int) -> str:
    if address.version == 4 or ipv6_prefix == 128:
        return str(address)
    return str(ipaddress.ip_network((address, ipv6_prefix), strict=False))


def _parsed(text: str) -> _Address | None:
    """The address in a text: without port, brackets and zone, IPv4 where it is mapped; None for junk."""
    if found := _WITH_PORT.fullmatch(text):
        text = found[1] or found[2]
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


def _from_the_right(text: str) -> str:
    """As much of a header as is read; a hop that is cut in two is not."""
    return text if len(text) <= _MOST_BYTES else text[-_MOST_BYTES:].partition(",")[2]


def _x_forwarded_for_hops(lines: Iterable[str]) -> Iterator[str]:
    hops = _from_the_right(",".join(lines)).rsplit(",", _MOST_HOPS)
    for hop in reversed(hops[-_MOST_HOPS:]):
        if hop := hop.strip(" \t"):
            yield hop


def _forwarded_hops(lines: Iterable[str]) -> Iterator[str]:
    """The ``for`` of each element of RFC 7239, "" where it has none; a header that is malformed is one such hop."""
    text = ",".join(line for line in lines if line.strip())
    hops, at = [""], 0
    while at < len(text):
        pair = _PAIR.match(text, at) if len(text) <= _MOST_BYTES else None
        if pair is None:
            hops.append("")
            break
        name, value, end = pair.groups()
        if name.lower() == "for":
            hops[-1] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        if end == ",":
            hops.append("")
        at = pair.end()
    yield from reversed(hops[-_MOST_HOPS:])
