"""The client's IP address from the socket peer and the headers of proxies, so that a client cannot forge it.

The address is the peer's, unless the peer is a trusted proxy. Then it is the rightmost address that is not a trusted
proxy, over all lines of the header. A hop that is not an IP address ends the search, and the peer's address is used.
A malformed element of ``Forwarded`` is INVALID. Any other header holds one address, and other text is INVALID.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from ..errors import ConfigError
from ..keys.features import INVALID, UNKNOWN_IP
from ..keys.ip import MAX_ADDRESS, PORT, Networks, ip_key, parse_address, parse_network

UNIX: Final = "unix"
DISCONNECTED: Final = "disconnected"
"""The peer of a request over TCP without an address: its client has reset the connection. It is no Unix socket."""
_MAX_HOPS: Final = 32
_MAX_BYTES: Final = 8192
_CACHE_SIZE: Final = 8192
_log = logging.getLogger("ratelimit_mw")

_NAME_VALUE: Final = r"""([!#$%&'*+.^_`|~\w-]+)=([^\s;,="\\]+|"(?:[^"\\]|\\.)*+")"""
_PAIR = re.compile(_NAME_VALUE, re.ASCII)
_ELEMENT = re.compile(rf"(?:{_NAME_VALUE})?(?:[ \t]*+;[ \t]*+(?:{_NAME_VALUE})?)*+", re.ASCII)
_WITHHELD = re.compile(rf"(?:unknown|_[\w.-]+)(?:{PORT})?", re.ASCII | re.IGNORECASE)


def key_without_address(peer: str) -> str | None:
    """Return the key of Starlette's ``TestClient``, which has no address and needs no warning; None for others."""
    return UNKNOWN_IP if peer == "testclient" else None


class ClientIP:
    """Finds the client behind trusted proxies.

    >>> ClientIP(["10.0.0.0/8"]).resolve("10.0.0.1", ["203.0.113.9, 192.0.2.7, 10.1.2.3"])
    '192.0.2.7'
    >>> ClientIP().resolve("198.51.100.1", ["203.0.113.9"])
    '198.51.100.1'
    """

    _is_warned = False

    def __init__(self, trusted: Iterable[str] = (), header: str = "x-forwarded-for", ipv6_prefix: int = 64) -> None:
        trusted = list(trusted)
        self.header = header
        self.reads_header = bool(trusted)
        if header not in HEADERS_OF_HOPS:
            self.require_proxies("forwarded_header")
        self._trusts_unix = UNIX in trusted
        self._networks = Networks(parse_network(proxy) for proxy in trusted if proxy != UNIX)
        self._hops = HEADERS_OF_HOPS.get(header) or _VALUES.get(header, _address_alone)
        self.key = lru_cache(_CACHE_SIZE)(lambda text: ip_key(text, ipv6_prefix))
        self._trusts = lru_cache(_CACHE_SIZE)(self._is_trusted)

    def require_proxies(self, setting: str) -> None:
        """Raise ``ConfigError`` for a setting with the name of a header, where no proxy is trusted to write it."""
        if not self.reads_header:
            raise ConfigError("the header is read from trusted proxies only. Set trusted_proxies", setting)

    def resolve(self, peer: str | None, lines: Iterable[str] = ()) -> Any:
        """Return the key of the client's address; None where there is no address, INVALID where it is malformed."""
        if peer and len(peer) > MAX_ADDRESS:
            return None
        peer_key = (self.key(peer) or key_without_address(peer)) if peer else None
        if not self.reads_header or not self.trusts(peer):
            self.warn_of_proxy(peer, lines)
            return peer_key
        for hop in self._hops(lines):
            if hop is INVALID:
                return INVALID
            if not self._trusts(hop):
                return self.key(hop) or peer_key
        return peer_key

    def trusts(self, peer: str | None) -> bool:
        """Return whether the socket's other end is a trusted proxy."""
        return (len(peer) <= MAX_ADDRESS and self._trusts(peer)) if peer else self._trusts_unix

    def warn_of_proxy(self, peer: str | None, lines: Iterable[str]) -> None:
        """Log a warning, once, for a header of a private address that is not one of the trusted proxies."""
        if self._is_warned or not lines or not peer or len(peer) > MAX_ADDRESS or self._trusts(peer):
            return
        address = parse_address(peer)
        if address is None or address.is_global:  # 100.64.0.0/10 is neither private nor global
            return
        if any(parse_address(hop) == address for hop in self._hops(lines) if hop is not INVALID):
            return  # the server has read the header, so this is the client
        self._is_warned = True
        _log.warning(
            "a request from %s has the header %s, but %s is not one of trusted_proxies."
            " If it is your proxy, all clients behind it share one limit by ip. Add it to trusted_proxies",
            *(address, self.header, address),
        )

    def _is_trusted(self, text: str) -> bool:
        if self._trusts_unix and text.startswith("unix:"):  # nginx writes this for a client on a Unix socket
            return True
        return str(parse_address(text)) in self._networks


def _x_forwarded_for_hops(lines: Iterable[str]) -> Iterator[Any]:
    for hop in reversed(_tail(lines).rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
        if hop := hop.strip(" \t"):
            yield hop if len(hop) <= MAX_ADDRESS else ""


def _forwarded_hops(lines: Iterable[str]) -> Iterator[Any]:
    """Yield the ``for`` of each element of RFC 7239 from the right. A malformed element is INVALID, and the last one.

    The shortest well-formed text after a comma is an element: a text that begins within the quotes of an element has an
    odd number of quotes. So nothing on its left, which the client may have sent, can change an element.
    """
    text = _tail(lines)
    start = end = len(text)
    for _ in range(_MAX_HOPS):
        start = text.rfind(",", 0, start)
        element = text[start + 1 : end].strip(" \t")
        if _ELEMENT.fullmatch(element):
            if element:  # a list may have empty elements
                yield _node(element)
            end = start
        if start < 0:
            break
    if end != start:
        yield INVALID


def _tail(lines: Iterable[str]) -> str:
    """Join the lines and keep the last 8 KiB. The element that this cuts in two becomes a malformed one."""
    text = ",".join(lines)
    return '",' + text[-_MAX_BYTES:].partition(",")[2] if len(text) > _MAX_BYTES else text


def _node(element: str) -> Any:
    """Return the address in ``for``, "" where the proxy withholds it, INVALID for two of them and for other text."""
    nodes = [value for name, value in _PAIR.findall(element) if name.lower() == "for"]
    node = nodes[0] if nodes else "unknown"
    if node.startswith('"'):
        node = re.sub(r"\\(.)", r"\1", node[1:-1])
    if len(nodes) > 1 or len(node) > MAX_ADDRESS:
        return INVALID
    if _WITHHELD.fullmatch(node):
        return ""
    return node if node.startswith("unix:") or parse_address(node) else INVALID


def _address_alone(lines: Iterable[str]) -> Iterator[Any]:
    """Yield the address of a header that the proxy overwrites; INVALID for other text, and for several lines."""
    if text := ",".join(lines).strip(" \t"):
        yield text if len(text) <= MAX_ADDRESS and parse_address(text) else INVALID


def _viewer_address(lines: Iterable[str]) -> Iterator[Any]:
    """Yield the address of CloudFront, which adds a port and writes no brackets around an IPv6 address."""
    text = ",".join(lines)
    address, _, port = text.rpartition(":")
    yield from _address_alone([address if address and port.isdecimal() else text])


HEADERS_OF_HOPS: Final = {"x-forwarded-for": _x_forwarded_for_hops, "forwarded": _forwarded_hops}
"""Headers with a list that each proxy appends to."""
_VALUES: Final = {"cloudfront-viewer-address": _viewer_address}
"""Headers with the client's address alone, where its text is not just an address."""
