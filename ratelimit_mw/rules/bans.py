"""The option ``ban`` of a rule. Pure."""

# Annotations are evaluated here, because msgspec reads them.

from typing import Annotated, Any, Final, Literal, TypedDict

from ..decision import MOST_REJECTIONS, BanTerms
from ..errors import ConfigError
from .declaration import decode, option
from .values import parse_positive_duration

_WEEK: Final = "7d"
_EXPECTED: Final = 'false or a table such as {after = 10, within = "10m", for = "1h"}'

_Ban = TypedDict(  # "for" is a keyword, so this is no class
    "_Ban",
    {
        "after": Annotated[
            int, option("The number of rejections that starts a ban, from 1 to 100.", ge=1, le=MOST_REJECTIONS)
        ],
        "within": Annotated[
            str | float,
            option("The span in which these rejections occur, at most 366 days.", read=parse_positive_duration),
        ],
        "for": Annotated[
            str | float, option("The length of the first ban, at most 366 days.", read=parse_positive_duration)
        ],
    },
)


class BanOptions(_Ban, total=False):
    """When a client is banned from a rule, and for how long."""

    growth: Annotated[
        int, option("Each ban is this many times as long as the one before it, 1 to 100.", 1, ge=1, le=100)
    ]
    max: Annotated[
        str | float,
        option(
            "The longest ban; `for` if that is longer. Bans are forgotten after this time without one.",
            _WEEK,
            read=parse_positive_duration,
        ),
    ]
    status: Annotated[Literal[403, 429], option("The HTTP status of responses to banned clients.", 429)]


def parse_ban(value: Any) -> BanTerms | None:
    """Return the terms of a ban, None for ``false``; ``ConfigError`` for invalid terms."""
    if value is False:
        return None
    ban = decode(BanOptions, value, _EXPECTED)
    first, longest = ban["for"], ban["max"]
    if "max" in value and longest < first:
        raise ConfigError(f"expected at least the duration of for, {value['for']!r}; got {value['max']!r}", "max")
    return BanTerms(ban["after"], ban["within"], first, ban["growth"], max(first, longest), ban["status"])
