"""The form in which hosts are compared: lower case, without port and trailing dot. Pure."""

import re
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any, Final

from .features import INVALID

_LONGEST: Final = 270  # characters of the longest name, with a dot and a port
_HOST = re.compile(r"(?:([a-z0-9_][a-z0-9_.-]*)|\[([0-9a-f:.]{2,45})\])(?::[0-9]+)?", re.ASCII)


def normalize_host(text: Any) -> Any:
    """Return a host in the form in which hosts are compared; ``INVALID`` for text that is no host.

    >>> normalize_host("Example.COM.:8000"), normalize_host("[2001:DB8:0::1]:80"), normalize_host("")
    ('example.com', '[2001:db8::1]', '')
    """
    if not isinstance(text, str):
        return INVALID
    return _normalize(text) if len(text) <= _LONGEST else INVALID


@lru_cache(1024)
def _normalize(text: str) -> Any:
    match = _HOST.fullmatch(text.lower())
    if match is None:
        return INVALID if text else ""
    if match[1]:
        return match[1].rstrip(".")
    try:
        return f"[{IPv6Address(match[2])}]"
    except ValueError:
        return INVALID
