"""Captures: the values of the parameters in a rule's own path patterns, which are features ``path:NAME``. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..keys.features import INVALID, Features
from ..keys.key import KeyMaker
from ..keys.path import normalize_path, path_feature
from .paths import PARAMETER, PathTree

_FAMILY: Final = "path:"


class Captures:
    """The parameters of patterns that have one place in each path.

    >>> captures = Captures(["/users/{user}/files/{rest:path}", "/v{version}/**"])
    >>> sorted(captures.names), captures.read("/users/ann/files/a/b")
    (['path:rest', 'path:user', 'path:version'], {'path:user': 'ann', 'path:rest': 'a/b'})
    """

    def __init__(self, patterns: Iterable[str], needed: Iterable[str] | None = None) -> None:
        self._patterns = [(PathTree([(0, pattern)]), dict(_places(pattern))) for pattern in patterns]
        every = {name for _, places in self._patterns for name in places}
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
        for tree, places in self._patterns if text is not INVALID else ():
            if tree.match(text):
                segments = text[1:].split("/")
                return {name: place.value(segments) for name, place in places.items() if name in self.names}
        return dict.fromkeys(self.names, INVALID)


class CapturingKey(KeyMaker):
    """Builds keys of features with the captures of the rule."""

    def __init__(self, key: KeyMaker, captures: Captures) -> None:
        self.__dict__.update(vars(key))
        self._key = key
        self._captures = captures

    def with_prefix(self, prefix: str) -> Callable[[Features], str | None]:
        build = self._key.with_prefix(prefix)
        return lambda features: build(self._captures.add(features))

    def values(self, features: Features) -> list[Any]:
        return self._key.values(self._captures.add(features))

    def build(self, features: Features) -> str | None:
        return self._key.build(self._captures.add(features))

    def has_values(self, key: str, features: Features) -> bool:
        return self._key.has_values(key, self._captures.add(features))


class _Place:
    """The place of a parameter in a path: its segments, and the text around it in a segment."""

    def __init__(self, segments: slice, before: str = "", after: str = "") -> None:
        self._segments = segments
        self._edges = len(before), len(after)

    def value(self, segments: list[str]) -> str:
        text = "/".join(segments[self._segments])
        before, after = self._edges
        return text[before : len(text) - after]


def _places(pattern: str) -> Iterable[tuple[str, _Place]]:
    """Yield the parameters whose place does not depend on the path. Behind a deep one, it is counted from the end."""
    segments = normalize_path(pattern)[1:].split("/")
    deep = [i for i, text in enumerate(segments) if text == "**" or _is_deep(text)]
    first, last = (deep[0], deep[-1]) if deep else (len(segments), -1)
    for i, segment in enumerate(segments):
        found = PARAMETER.findall(segment)
        if len(found) != 1 or "*" in segment:
            continue
        if i < first:
            yield _FAMILY + found[0][0], _placed(segment, i)
        elif i > last:
            yield _FAMILY + found[0][0], _placed(segment, i - len(segments))
        elif first == last:
            yield _FAMILY + found[0][0], _Place(slice(i, i - len(segments) + 1 or None))


def _is_deep(segment: str) -> bool:
    parameter = PARAMETER.fullmatch(segment)
    return parameter is not None and parameter[2] == "path"


def _placed(segment: str, index: int) -> _Place:
    before, _, after = PARAMETER.sub("\0", segment).partition("\0")
    return _Place(slice(index, index + 1 or None), before, after)
