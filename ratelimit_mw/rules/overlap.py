"""Path patterns that have a path in common. Pure."""

from collections.abc import Sequence
from functools import lru_cache

from .paths import is_glob_match, pattern_segments

_DEEP = "**"


def overlap(one: str, other: str) -> bool:
    """Return whether a path may match both patterns. Parameters within a segment are compared by their start and end.

    >>> overlap("/items/7", "/items/{id}"), overlap("/api/**", "/api"), overlap("/items", "/items/{id}")
    (True, True, False)
    """
    return _overlap(_segments(one), _segments(other))


def _segments(pattern: str) -> tuple[str, ...]:
    """The segments of a pattern. A segment with text beside a deep parameter is taken for a deep one."""
    return tuple(_DEEP if _DEEP in segment else segment for segment in pattern_segments(pattern))


@lru_cache(10_000)
def _overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    if not one or not other:
        return all(segment == _DEEP for segment in (*one, *other))
    if _DEEP in (one[0], other[0]):
        deep, plain = (one, other) if one[0] == _DEEP else (other, one)
        return _overlap(deep[1:], plain) or _overlap(deep, plain[1:])
    return _segments_overlap(one[0], other[0]) and _overlap(one[1:], other[1:])


def _segments_overlap(one: str, other: str) -> bool:
    if "*" not in other:
        one, other = other, one
    if "*" not in one:
        return is_glob_match(other, one)
    (start, *_, end), (other_start, *_, other_end) = one.split("*"), other.split("*")
    starts = start.startswith(other_start) or other_start.startswith(start)
    return starts and (end.endswith(other_end) or other_end.endswith(end))
