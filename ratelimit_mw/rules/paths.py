"""Match a path against path patterns, each compiled once. Pure; knows no rules.

``*`` matches anything within a segment, ``{name}`` one segment, ``**`` and ``{name:path}`` any number of segments,
even none. Paths are compared with ``//`` collapsed and one trailing slash ignored. A leading slash is added when it is
missing, because some frameworks route such a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final
from urllib.parse import unquote

from ..errors import ConfigError
from ..keys.features import INVALID, Features
from ..keys.forms import normalize_path, path_feature

PARAMETER: Final = re.compile(r"\{([^{}:/]*)(?::([^{}/]*))?\}")
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
# Parameters as Flask and Django write them, and as many others do at the start of a segment.
_FOREIGN = re.compile(r"<(?:(\w+)(?:\([^<>]*\))?:)?(\w+)>|(?<=/):()([A-Za-z_]\w*)")
_DEEP: Final = "**"
_FAMILY: Final = "path:"


def checked_pattern(pattern: object) -> str:
    """Return the pattern; ``ConfigError`` when it can match no path."""
    if not isinstance(pattern, str) or not pattern.startswith("/"):
        raise ConfigError(f'expected a path pattern such as "/login", "/items/{{id}}" or "/api/**"; got {pattern!r}')
    if "?" in pattern or "#" in pattern:
        raise ConfigError(f"a path pattern cannot have a query or a fragment; got {pattern!r}")
    if encoded := _ENCODED.search(pattern):
        decoded = unquote(encoded[0])
        raise ConfigError(f"paths are compared decoded; got {pattern!r}. Write {decoded!r} for {encoded[0]}")
    if (native := _FOREIGN.sub(_parameter, pattern)) != pattern:
        raise ConfigError(f"expected parameters as {{name}}; got {pattern!r}. Write {native!r}")
    if re.search(r"[{}]", PARAMETER.sub("", pattern)):
        raise ConfigError(f"unbalanced braces in {pattern!r}. Write a parameter as {{name}}")
    for segment in pattern_segments(pattern):
        if segment != _DEEP and _DEEP in segment:
            raise ConfigError(f"** must be a whole segment; got {segment!r} in {pattern!r}")
    return pattern


def _parameter(foreign: re.Match[str]) -> str:
    """Rewrite a parameter: "<int:id>" and ":id" become {id}, "<path:rest>" becomes {rest:path}."""
    name = foreign[2] or foreign[4]
    return f"{{{name}:path}}" if foreign[1] == "path" else f"{{{name}}}"


def deepen(template: str, names: Collection[str]) -> str:
    """Return a template as the pattern of its paths. The parameters with these names may have slashes in their values.

    >>> deepen("/files/{rest}", ["rest"])
    '/files/{rest:path}'
    """
    return PARAMETER.sub(lambda found: f"{{{found[1]}:path}}" if found[1] in names else found[0], template)


class PathTable:
    """All patterns, by number. Finds the numbers of those that match a path.

    >>> table = PathTable([(0, "/api/**"), (1, "/api/items/{id}"), (2, "/login")])
    >>> table.match("/api/items/7/")
    (0, 1)
    """

    def __init__(self, patterns: Iterable[tuple[int, str]]) -> None:
        self._by_start: dict[str, list[tuple[int, Callable[[str], object]]]] = {}
        for number, pattern in patterns:
            plain = takewhile(lambda segment: "*" not in segment, pattern_segments(pattern))
            start = "".join(f"/{segment}" for segment in plain)
            self._by_start.setdefault(start, []).append((number, _expression(pattern)[1].fullmatch))
        self._most_slashes = max((start.count("/") for start in self._by_start), default=0)

    def match(self, path: str) -> tuple[int, ...]:
        """Return the numbers in rising order. The work is bounded for every path."""
        text, end, numbers = _without_root(path), 0, list[int]()
        for _ in range(self._most_slashes + 1):
            start = text if end < 0 else text[:end]
            if patterns := self._by_start.get(start):
                numbers += [number for number, fits in patterns if fits(text)]
            if end < 0:
                break
            end = text.find("/", end + 1)
        return tuple(sorted({*numbers}))


def pattern_segments(pattern: str) -> list[str]:
    """Return the segments of a pattern, with stars for parameters: "/a/{x}/{y:path}" -> a, *, **."""
    return _segments(PARAMETER.sub(lambda parameter: _DEEP if parameter[2] == "path" else "*", pattern))


def _segments(path: str) -> list[str]:
    path = normalize_path(path)
    return path[1:].split("/") if len(path) > 1 else []


def _without_root(path: str) -> str:
    """Return a path in the form that expressions match: normalized, and "" for the root."""
    path = normalize_path(path)
    return path if len(path) > 1 else ""


@lru_cache(10_000)
def _expression(pattern: str) -> tuple[list[str], re.Pattern[str]]:
    """Return the parameters that have one place in each path, and an expression that finds them in a path that fits.

    Each part between two ``**`` is an atomic group, which is found at its first place, so no path causes backtracking.
    """
    segments, stars = _segments(pattern), pattern_segments(pattern)
    deep = [i for i, star in enumerate(stars) if star == _DEEP]
    first, last = (deep[0], deep[-1]) if deep else (len(stars), -1)
    names, expression, part = list[str](), "", ""
    for i, (segment, star) in enumerate(zip(segments, stars, strict=True)):
        parameters = PARAMETER.findall(segment)
        is_outside = i < first or i > last or first == last
        is_certain = is_outside and len(parameters) == 1 and "*" not in segment
        names += [_FAMILY + parameters[0][0]] if is_certain else []
        if star == _DEEP:
            expression += part if i == first else f"(?>(?:/[^/]*+)*?{part}(?=/|\\Z))"
            part = "" if i < last else "(?:/(.*))?" if is_certain else "(?:/.*)?"
        else:
            part += f"/{_glob(star, is_certain)}"
    return names, re.compile(expression + part, re.DOTALL)


def _glob(segment: str, has_group: bool = False) -> str:
    """Return the expression of a segment with stars. Each text between two stars is an atomic group, too."""
    first, *rest = map(re.escape, re.split(r"\*+", segment))
    if not rest:
        return first
    between = "".join(f"(?>[^/]*?{text})" for text in rest[:-1])
    star = "([^/]*)" if has_group else "[^/]*"
    return f"{first}{between}{star}{rest[-1]}"


def overlap(one: str, other: str) -> bool:
    """Return whether a path may match both patterns. Parameters within a segment are compared by their start and end.

    >>> overlap("/items/7", "/items/{id}"), overlap("/api/**", "/api"), overlap("/items", "/items/{id}")
    (True, True, False)
    """
    return _overlap(_deep_segments(one), _deep_segments(other))


def _deep_segments(pattern: str) -> tuple[str, ...]:
    """Return the segments of a pattern. A segment with text beside a deep parameter is taken for a deep one."""
    return tuple(_DEEP if _DEEP in segment else segment for segment in pattern_segments(pattern))


@lru_cache(10_000)
def _overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    if not one or not other:
        return all(segment == _DEEP for segment in (*one, *other))
    if _DEEP in (one[0], other[0]):
        return _overlap(one[1:], other) or _overlap(one, other[1:])
    return _segments_overlap(one[0], other[0]) and _overlap(one[1:], other[1:])


def _segments_overlap(one: str, other: str) -> bool:
    if "*" not in other:
        one, other = other, one
    if "*" not in one:
        return re.fullmatch(_glob(other), one, re.DOTALL) is not None
    (start, *_, end), (other_start, *_, other_end) = one.split("*"), other.split("*")
    starts = start.startswith(other_start) or other_start.startswith(start)
    return starts and (end.endswith(other_end) or other_end.endswith(end))


class Captures:
    """Those parameters of patterns that are needed, and have one place in each path.

    >>> captures = Captures(["/users/{user}/files/{rest:path}", "/v{version}/**"], ["path:user", "path:rest"])
    >>> sorted(captures.names), captures.read("/users/ann/files/a/b")
    (['path:rest', 'path:user'], {'path:user': 'ann', 'path:rest': 'a/b'})
    """

    def __init__(self, patterns: Iterable[str], needed: Iterable[str]) -> None:
        self._patterns = list(map(_expression, patterns))
        self.names = frozenset(name for names, _ in self._patterns for name in names).intersection(needed)

    def add(self, features: Features) -> Features:
        """Return the features with the captures. A parameter of the route takes precedence."""
        path = features.get("path")
        if path is None:
            return features
        return {**self.read(path), **{name: value for name, value in features.items() if value is not None}}

    def read(self, path: Any) -> Mapping[str, Any]:
        """Return the captures in a path; all of them ``INVALID`` where it is ambiguous or fits no pattern."""
        text: Any = path if path is INVALID else path_feature(str(path))
        for names, expression in self._patterns if text is not INVALID else ():
            if found := expression.fullmatch(_without_root(text)):
                values = zip(names, found.groups(""), strict=True)
                return {name: value for name, value in values if name in self.names}
        return dict.fromkeys(self.names, INVALID)
