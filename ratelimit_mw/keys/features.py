"""Names of features. A feature is a value taken from a request, such as ``ip``, ``user`` or ``header:x-api-key``.

``None``, ``""`` and an absent name all mean that the feature is missing.
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from ..errors import ConfigError

Features = Mapping[str, Any]
"""Feature values by name: text, or values of the types in ``parts.py``. Others are read by their attributes."""

BUILT_IN: Final = (
    "ip",
    "user",
    "email",
    "endpoint",
    "view",
    "region",
    "method",
    "path",
    "host",
    "group",
    "plan",
    "priority",
)
_FAMILIES: Final = ("header", "cookie", "query", "field", "json", "form", "path")

SHARED_FEATURES: Final = frozenset({"endpoint", "view", "path", "method", "host", "region", "priority"})
"""The features whose values many clients have, because they are not the client's own."""

UNKNOWN_IP: Final = "unknown"
"""The value of ``ip`` for all requests without a client address."""

UNMATCHED: Final = "unmatched"
"""The value of ``endpoint`` and ``view`` for all requests that match no route."""


class Invalid(Enum):
    """The value of a feature that is present but cannot be parsed. It equals no text, so no client can choose it.

    Copies and pickles of it are the same object.
    """

    INVALID = "invalid"


INVALID: Final = Invalid.INVALID

# The names of django-ratelimit.
_FAMILY_ALIASES: Final = {"get": "query", "post": "form"}
KEY_ALIASES: Final = {"user_or_ip": "user|ip"}

_NAME = re.compile(
    r"[a-z_][a-z0-9_]*|(?:" + "|".join((*_FAMILIES, *_FAMILY_ALIASES)) + r"):[A-Za-z0-9_.$\[\]-]+", re.ASCII
)
_EMAIL_OF = re.compile(r"email:([a-z]+:.+)")
USE_FEATURES: Final = ". To count by a function, pass features={NAME: function} and use NAME in the key"


def is_email(feature: str) -> bool:
    """Return whether a feature is an email address: ``email``, or that in another feature, ``email:form:username``."""
    return feature == "email" or feature.startswith("email:")


def header_name(name: str) -> str:
    """Return the name of a header in lower case; "" for none."""
    return checked_name(f"header:{name}").partition(":")[2] if name else ""


def checked_name(name: object) -> str:
    """Check the name of a feature and return its canonical form.

    >>> checked_name("header:X-API-Key"), checked_name("post:username"), checked_name("email:post:username")
    ('header:x-api-key', 'form:username', 'email:form:username')

    Any word can be the name of your own feature. A middleware finds typos, because nothing provides such a feature.
    """
    if isinstance(name, str) and (inside := _EMAIL_OF.fullmatch(name.strip())):
        return f"email:{checked_name(inside[1])}"
    if not isinstance(name, str) or not _NAME.fullmatch(name.strip()):
        families = ", ".join(f"{family}:NAME" for family in _FAMILIES)
        hint = USE_FEATURES * (isinstance(name, str) and "." in name)
        raise ConfigError(
            f"expected a feature: {', '.join(BUILT_IN)}, {families} or a name of your own; got {name!r}{hint}"
        )
    name = name.strip()
    if name in KEY_ALIASES:
        raise ConfigError(f"{name!r} is not a feature. In a key it means {KEY_ALIASES[name]!r}")
    family, colon, rest = name.partition(":")
    return f"{_FAMILY_ALIASES.get(family, family)}{colon}{rest.lower() if family == 'header' else rest}"
