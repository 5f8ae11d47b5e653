"""The one name that our settings have among those of a framework, and slips of it, which would mean: no limits."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from ..errors import ConfigError

__all__ = ["SETTING", "check_slips"]

SETTING: Final = "RATELIMIT_MW"


def check_slips(names: Iterable[str]) -> None:
    """``ConfigError`` for a name that nobody reads and that looks like ours, which is not there.

    >>> check_slips(["RATELIMIT_ENABLED", "SECRET_KEY"])
    """
    names = list(names)
    slips = [name for name in names if name.startswith(SETTING)] or difflib.get_close_matches(SETTING, names, 1, 0.85)
    if slips and SETTING not in names:
        raise ConfigError(f"there is no such setting: did you mean {SETTING}? All settings stand in it", slips[0])
