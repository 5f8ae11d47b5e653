"""Path patterns, matched with the path that a request was sent to and with the route that was found. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..keys.forms import normalize_path, read_path
from .marks import NOWHERE, Destination
from .paths import PARAMETER, PathTable, deepen, overlap, pattern_segments

Params = Callable[[], Mapping[str, Any]]


class PathPatterns:
    r"""All patterns, by number.

    >>> patterns = PathPatterns([(0, "/login"), (1, "/files/{rest:path}"), (2, "/files/*")])
    >>> patterns.match("/login\n"), patterns.match("/files/a%2Fb")
    ({0}, {1, 2})
    >>> patterns.match("/files/a/b", Destination("/files/{rest}"), lambda: {"rest": "a/b"})
    {1}
    """

    def __init__(self, patterns: Iterable[tuple[int, str]]) -> None:
        patterns = list(patterns)
        self._table = PathTable(patterns)
        self._patterns = patterns
        self._by_template: dict[str, set[int]] = {}
        for number, pattern in patterns:
            self._by_template.setdefault(normalize_path(PARAMETER.sub(r"{\1}", pattern)), set()).add(number)
        self._overlapping: dict[str, set[int]] = {}

    def match(self, path: str, to: Destination = NOWHERE, params: Params = dict) -> set[int]:
        """Return the numbers of the patterns that fit the path that was sent, or the route.

        The path is decoded once, or not at all where it has encoded slashes. A route with one path is unambiguous.
        Otherwise, all patterns that fit any reading of the path are included.
        """
        if (template := to.template) is None:
            return self._match_readings(path)
        if to.is_exact:
            return {*self._table.match(path), *self._table.match(template)}
        templates = (template, to.unprefixed) if to.unprefixed else (template,)
        possible = set[int]().union(*map(self._possible, templates))
        if to.is_expression:  # which may match other paths than its template, and ignore case
            found = self._match_readings(path) | self._match_readings(path.lower())
        else:
            found = self._match_readings(path, possible)
        if to.suffix:
            found |= self._match_readings(to.without_suffix(path, params()), possible)
        if found.issuperset(possible):
            return found
        for each in templates:
            filled = PARAMETER.sub(lambda name: str(params().get(name[1], name[0])), each)
            found.update(self._by_template.get(normalize_path(each), ()), self._table.match(filled))
        return found

    def match_as_written(self, path: str, to: Destination) -> set[int]:
        """Return the numbers of the patterns that fit the path and nothing else, for lists that give rights.

        Routers that distinguish "/health", "/health/" and "//health" may lead them to different views. So the path is
        written like the pattern, or the route that was found fits the pattern, too. An ambiguous path fits where each
        of its readings does.

        >>> PathPatterns([(0, "/health")]).match_as_written("/health/", NOWHERE)
        set()
        >>> PathPatterns([(0, "/health")]).match_as_written("/health/", Destination("/health/"))
        {0}
        """
        if (readings := read_path(path)) is None:  # there are too many
            return set()
        fitting = set.intersection(*({*self._table.match(reading)} for reading in readings))
        routed = self._table.match(to.template) if fitting and to.template else ()
        return {n for n, pattern in self._patterns if n in fitting and (n in routed or _is_written_like(path, pattern))}

    def _possible(self, template: str) -> set[int]:
        """Return the patterns that match for some values of the parameters. There are few templates."""
        possible = self._overlapping.get(template)
        if possible is None:
            deep = deepen(template, [name for name, _ in PARAMETER.findall(template)])
            possible = {number for number, pattern in self._patterns if overlap(pattern, deep)}
            self._overlapping[template] = possible
        return possible

    def _match_readings(self, path: str, otherwise: set[int] | None = None) -> set[int]:
        """Return the numbers for all readings of a path; ``otherwise`` (None: all) where it has too many readings."""
        if (readings := read_path(path)) is None:
            return {number for number, _ in self._patterns} if otherwise is None else {*otherwise}
        return {number for text in readings for number in self._table.match(text)}


def _is_written_like(path: str, pattern: str) -> bool:
    """Return whether a path has no slash more than a pattern that fits it. A ``**`` at the end may have one more."""
    plain, has_slash = normalize_path(path), pattern.endswith("/")
    ends = ("", "/") if pattern_segments(pattern)[-1:] == ["**"] else ("/",) if has_slash and plain != "/" else ("",)
    return any(path == plain + end for end in ends)
