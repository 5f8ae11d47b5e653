"""Times of the store as commands, the admin API and the dashboard show them: in UTC, and in whole seconds."""

from datetime import UTC, datetime
from math import ceil
from typing import Final

_LONGEST: Final = 100 * 365 * 86_400
"""The longest duration that is shown, in seconds. The debt of a settled cost may last longer."""


def time_text(at: float, after: float = 0.0) -> str:
    """Return the time ``after`` seconds after ``at``, rounded up, for a table.

    >>> time_text(1_000_000_000.2, 60)
    '2001-09-09 01:47:41 UTC'
    """
    return f"{_moment(at, after):%Y-%m-%d %H:%M:%S} UTC"


def time_json(at: float, after: float = 0.0) -> str:
    """Return the time ``after`` seconds after ``at``, rounded up, in the form of ISO 8601.

    >>> time_json(1_000_000_000)
    '2001-09-09T01:46:40+00:00'
    """
    return _moment(at, after).isoformat()


def minute_text(seconds: float) -> str:
    """Return a time in UTC, to the minute or to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").removesuffix("+00:00").removesuffix(":00")


def seconds_of(text: str) -> float:
    """Return the seconds since 1970 of a time in ISO 8601, which is in UTC unless it has a zone.

    >>> seconds_of("2001-09-09T01:46:40"), seconds_of("2001-09-09T03:46:40+02:00")
    (1000000000.0, 1000000000.0)
    """
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def span_text(seconds: float) -> str:
    """Return a duration in its two largest units, rounded up to whole seconds.

    >>> span_text(0.2), span_text(61.0), span_text(90_000.0)
    ('1 s', '1 min 1 s', '1 d 1 h')
    """
    left = ceil(min(seconds, _LONGEST))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" * bool(count))
    return " ".join(filter(None, parts[:2])) or "0 s"


def _moment(at: float, after: float) -> datetime:
    return datetime.fromtimestamp(ceil(at + min(after, _LONGEST)), UTC)
