"""Path patterns, matched with the path that a request was sent to and with the route that was found. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..keys.path import is_ambiguous, normalize_path, read_path
from .marks import NOWHERE, Destination
from .overlap import overlap
from .paths import PARAMETER, PathTree, deepen

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
        self._tree = PathTree(patterns)
        self._patterns = patterns
        self._by_template: dict[str, set[int]] = {}
        for number, pattern in patterns:
            self._by_template.setdefault(normalize_path(PARAMETER.sub(r"{\1}", pattern)), set()).add(number)
        self._overlapping: dict[str, set[int]] = {}

    def match(self, path: str, to: Destination = NOWHERE, params: Params = dict) -> set[int]:
        """Return the numbers of the patterns that fit the path that was sent, or the route.

        A route with one path is unambiguous. Otherwise, all patterns that fit any reading of the path are included.

        Args:
            path: The path of the request, decoded once, or not at all where it has encoded slashes.
            to: Where the request goes.
            params: Returns the values of the route's parameters. It is called only where a pattern depends on them.
        """
        if (template := to.template) is None:
            return self._match_readings(path)
        if to.is_exact:
            return {*self._tree.match(path), *self._tree.match(template)}
        found = self._match_readings(path)
        if to.is_expression:  # which may ignore case
            found |= self._match_readings(path.lower())
        if found.issuperset(self._possible(template)):
            return found
        filled = PARAMETER.sub(lambda name: str(params().get(name[1], name[0])), template)
        return found.union(self._by_template.get(normalize_path(template), ()), self._tree.match(filled))

    def _possible(self, template: str) -> set[int]:
        """Return the patterns that match for some values of the parameters. There are few templates."""
        possible = self._overlapping.get(template)
        if possible is None:
            deep = deepen(template, [name for name, _ in PARAMETER.findall(template)])
            possible = {number for number, pattern in self._patterns if overlap(pattern, deep)}
            self._overlapping[template] = possible
        return possible

    def _match_readings(self, path: str) -> set[int]:
        """Return the numbers for all readings of a path; all numbers where it has too many readings."""
        if not is_ambiguous(path):
            return {*self._tree.match(path)}
        readings = read_path(path)
        if readings is None:
            return {number for number, _ in self._patterns}
        return {number for text in readings for number in self._tree.match(text)}
