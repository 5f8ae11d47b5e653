"""Path patterns, matched with the path that a request was sent to and with the route that was found. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..keys.path import normalize_path, read_path
from .marks import NOWHERE, Destination
from .paths import PARAMETER, PathTree


class PathPatterns:
    r"""All patterns, by number.

    >>> patterns = PathPatterns([(0, "/login"), (1, "/files/{rest:path}"), (2, "/files/*")])
    >>> patterns.match("/login\n"), patterns.match("/files/a%2Fb")
    ({0}, {1, 2})
    >>> patterns.match("/files/a/b", Destination("/files/{rest}"), {"rest": "a/b"})
    {1}
    """

    def __init__(self, patterns: Iterable[tuple[int, str]]) -> None:
        patterns = list(patterns)
        self._tree = PathTree(patterns)
        self._all = {number for number, _ in patterns}
        self._by_template: dict[str, set[int]] = {}
        for number, pattern in patterns:
            self._by_template.setdefault(normalize_path(PARAMETER.sub(r"{\1}", pattern)), set()).add(number)

    def match(self, path: str, to: Destination = NOWHERE, params: Mapping[str, Any] | None = None) -> set[int]:
        """Return the numbers of the patterns that fit the path that was sent, or the route.

        A route without parameters leaves no doubt. Otherwise, the patterns that fit any reading of the path are in.

        Args:
            path: The path of the request, decoded once, or not at all where it has encoded slashes.
            to: Where the request goes.
            params: The values of the route's parameters.
        """
        if (template := to.template) is None:
            return self._match_readings(path)
        if to.is_exact:
            return {*self._tree.match(path), *self._tree.match(template)}
        filled = PARAMETER.sub(lambda name: str((params or {}).get(name[1], name[0])), template)
        found = self._match_readings(path) | self._by_template.get(normalize_path(template), set())
        if to.is_expression:  # which may ignore case
            found |= self._match_readings(path.lower())
        return found.union(self._tree.match(filled))

    def _match_readings(self, path: str) -> set[int]:
        """Return the numbers for all readings of a path; all numbers where it has too many readings."""
        readings = read_path(path)
        return self._all if readings is None else {number for text in readings for number in self._tree.match(text)}
