"""``is_local``: whether a program of this machine sends a request itself, without a proxy."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from .request import Request


def is_local(request: Request) -> bool:
    """Return whether a program of this machine sends the request, without a proxy. A web page has another host.

    By default, nginx adds no header, and sends the address of its upstream as the host. Before 1.29.7, it also sends
    HTTP/1.0, which no browser does.
    """
    is_direct = request.http_version != "1.0" and not any(map(_is_of_proxy, request.header_names()))
    return is_direct and _is_loopback(request.peer) and _is_loopback(request.host)


def _is_of_proxy(header: str) -> bool:
    """Return whether a proxy writes this header, such as ``x-forwarded-proto`` or ``cf-connecting-ip``."""
    return "forwarded" in header or header == "via" or header.endswith("ip")


@lru_cache(1024)
def _is_loopback(host: object) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(str(host).strip("[]")).is_loopback
    except ValueError:
        return False
