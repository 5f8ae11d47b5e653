"""The name of our settings in a framework's settings, and a check for misspelt ones, which would disable all limits."""

import difflib
from collections.abc import Container, Iterable
from typing import Final

from ..errors import ConfigError

SETTING: Final = "RATELIMIT_MW"
_LEFT_OVER: Final = {
    ("flask_limiter", "Flask-Limiter"): {
        "rules": "DEFAULT DEFAULTS_PER_METHOD DEFAULTS_COST DEFAULTS_EXEMPT_WHEN DEFAULTS_DEDUCT_WHEN APPLICATION"
        " APPLICATION_PER_METHOD APPLICATION_COST APPLICATION_EXEMPT_WHEN APPLICATION_DEDUCT_WHEN META KEY_FUNC"
        " STRATEGY REQUEST_IDENTIFIER FAIL_ON_FIRST_BREACH ENABLED",
        "store": "STORAGE_URI STORAGE_URL STORAGE_OPTIONS KEY_PREFIX",
        "on_store_error": "SWALLOW_ERRORS IN_MEMORY_FALLBACK IN_MEMORY_FALLBACK_ENABLED",
        "headers": "HEADERS_ENABLED HEADER_LIMIT HEADER_REMAINING HEADER_RESET HEADER_RETRY_AFTER"
        " HEADER_RETRY_AFTER_VALUE",
        "rejection": "ON_BREACH_CALLBACK ON_META_BREACH_CALLBACK",
    },
    ("django_ratelimit", "django-ratelimit"): {
        "rules": "ENABLE",
        "store": "USE_CACHE CACHE_PREFIX",
        "on_store_error": "FAIL_OPEN",
        "rejection": "VIEW EXCEPTION_CLASS",
        "trusted_proxies": "IP_META_KEY",
        "ipv6_prefix": "IPV6_MASK IPV4_MASK",
        "secret": "HASH_ALGORITHM",
    },
}
"""The settings of other packages, under the setting that takes their place here."""


def check_left_over(names: Iterable[str], in_use: Container[str]) -> None:
    """``ConfigError`` for a setting of another package that is not in use, and so limits nothing.

    >>> check_left_over(["RATELIMIT_DEFAULT"], ["flask_limiter"])
    """
    names = set(names)
    for (module, package), replacements in _LEFT_OVER.items():
        for own, words in replacements.items():
            for name in words.split() if module not in in_use else ():
                if f"RATELIMIT_{name}" in names:
                    message = f"a setting of {package}, which is not in use, so it has no effect. Remove it"
                    raise ConfigError(f"{message}, and set {own!r} in {SETTING} in its place", f"RATELIMIT_{name}")


def check_slips(names: Iterable[str]) -> None:
    """``ConfigError`` when ``RATELIMIT_MW`` is absent and another name looks like it.

    >>> check_slips(["RATELIMIT_ENABLED", "SECRET_KEY"])
    """
    names = list(names)
    slips = [name for name in names if name.startswith(SETTING)] or difflib.get_close_matches(SETTING, names, 1, 0.85)
    if slips and SETTING not in names:
        raise ConfigError(f"unknown setting {slips[0]!r}. Did you mean {SETTING!r}? It holds all settings", slips[0])
