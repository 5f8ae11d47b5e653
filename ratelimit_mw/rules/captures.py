"""Captures: the values of the parameters in a rule's own path patterns, which are features ``path:NAME``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..keys.features import INVALID, Features
from ..keys.path import normalize_path, path_feature
from .paths import PARAMETER, PathTree, pattern_segments

_FAMILY: Final = "path:"


class Captures:
    """The parameters of patterns that have one place in each path.

    >>> captures = Captures(["/users/{user}/files/{rest:path}", "/v{version}/**"])
    >>> sorted(captures.names), captures.read("/users/ann/files/a/b")
    (['path:rest', 'path:user', 'path:version'], {'path:user': 'ann', 'path:rest': 'a/b'})
    """

    def __init__(self, patterns: Iterable[str], needed: Iterable[str] | None = None) -> None:
        self._patterns = [(PathTree([(0, pattern)]), *_expression(pattern)) for pattern in patterns]
        every = {name for _, names, _ in self._patterns for name in names}
        self.names = frozenset(every if needed is None else every.intersection(needed))

    def add(self, features: Features) -> Features:
        """Return the features with the captures. A parameter of the route takes precedence."""
        path = features.get("path")
        if not self.names or path is None:
            return features
        return {**self.read(path), **{name: value for name, value in features.items() if value is not None}}

    def read(self, path: Any) -> Mapping[str, Any]:
        """Return the captures in a path; all of them ``INVALID`` where it is ambiguous or fits no pattern."""
        text: Any = path if path is INVALID else path_feature(str(path))
        for tree, names, expression in self._patterns if text is not INVALID else ():
            if tree.match(text) and (found := expression.fullmatch(text)):
                values = zip(names, found.groups(""), strict=True)
                return {name: value for name, value in values if name in self.names}
        return dict.fromkeys(self.names, INVALID)


def _expression(pattern: str) -> tuple[list[str], re.Pattern[str]]:
    """Return the parameters whose place does not depend on the path, and an expression that finds them in a path.

    The path fits the pattern, so all other segments may have any text.
    """
    segments, stars = normalize_path(pattern)[1:].split("/"), pattern_segments(pattern)
    deep = [i for i, star in enumerate(stars) if star == "**"]
    first, last = (deep[0], deep[-1]) if deep else (len(segments), -1)
    names, expression = [], ""
    for i, segment in enumerate(segments):
        if first < i <= last:
            continue
        before, parameter, after = map(re.escape, PARAMETER.sub("\0", segment).partition("\0"))
        is_certain = parameter and "*" not in segment and "\0" not in after and (i != first or first == last)
        if is_certain:
            names += [_FAMILY + name for name, _ in PARAMETER.findall(segment)]
        if i == first:
            expression += "(?:/(.*))?" if is_certain else "(?:/.*)?"
        else:
            expression += f"/{before}([^/]*){after}" if is_certain else "/[^/]*"
    return names, re.compile(expression, re.DOTALL)
