"""The name of our settings in a framework's settings, and a check for misspelt ones, which would disable all limits."""

import difflib
from collections.abc import Iterable
from typing import Final

from ..errors import ConfigError

SETTING: Final = "RATELIMIT_MW"


def check_slips(names: Iterable[str]) -> None:
    """``ConfigError`` when ``RATELIMIT_MW`` is absent and another name looks like it.

    >>> check_slips(["RATELIMIT_ENABLED", "SECRET_KEY"])
    """
    names = list(names)
    slips = [name for name in names if name.startswith(SETTING)] or difflib.get_close_matches(SETTING, names, 1, 0.85)
    if slips and SETTING not in names:
        raise ConfigError(f"unknown setting {slips[0]!r}. Did you mean {SETTING!r}? It holds all settings", slips[0])
