"""``is_local``: whether a program of this machine sends a request itself, without a proxy."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

from .request import Request

_OF_PROXIES: Final = frozenset({"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"})


def is_local(request: Request) -> bool:
    """Return whether a program of this machine sends the request, without a proxy. A web page has another host."""
    is_direct = _OF_PROXIES.isdisjoint(request.header_names())
    return is_direct and _is_loopback(request.peer) and _is_loopback(request.host)


@lru_cache(1024)
def _is_loopback(host: object) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(str(host).strip("[]")).is_loopback
    except ValueError:
        return False
