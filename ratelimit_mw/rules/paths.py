"""Match a path against all path patterns at once: one tree, walked once. Pure; knows no rules.

``*`` matches anything within a segment, ``{name}`` one segment, ``**`` and ``{name:path}`` any number of segments,
even none. Paths are compared with ``//`` collapsed and one trailing slash ignored. A leading slash is added when it is
missing, because some frameworks route such a path.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from ..errors import ConfigError
from ..keys.features import INVALID, Features
from ..keys.forms import normalize_path, path_feature

PARAMETER: Final = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
# Parameters as Flask and Django write them, and as many others do at the start of a segment.
_FOREIGN = re.compile(r"<(?:(\w+)(?:\([^<>]*\))?:)?(\w+)>|(?<=/):()([A-Za-z_]\w*)")
_DEEP = "**"


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


@dataclass(slots=True, eq=False)
class _Node:
    """A place in the tree. ``numbers`` are those of the patterns that end here."""

    repeats: bool = False
    exact: dict[str, _Node] = field(default_factory=dict)
    globs: dict[str, tuple[re.Pattern[str] | None, _Node]] = field(default_factory=dict)
    deep: _Node | None = None
    numbers: list[int] = field(default_factory=list)

    def child(self, segment: str) -> _Node:
        """The node after a segment of a pattern, created when it is new."""
        if segment == _DEEP:
            self.deep = self.deep or _Node(repeats=True)
            return self.deep
        if "*" in segment:
            return self.globs.setdefault(segment, (_glob(segment), _Node()))[1]
        return self.exact.setdefault(segment, _Node())

    def successors(self, segment: str) -> list[_Node]:
        """The nodes after a segment of a path."""
        exact = self.exact.get(segment)
        nodes = [] if exact is None else [exact]
        if self.globs:
            nodes += [node for glob, node in self.globs.values() if glob is None or glob.fullmatch(segment)]
        if self.repeats:
            nodes.append(self)
        return nodes


class PathTree:
    """All patterns, by number. Finds the numbers of those that match a path.

    >>> tree = PathTree([(0, "/api/**"), (1, "/api/items/{id}"), (2, "/login")])
    >>> tree.match("/api/items/7/")
    (0, 1)
    """

    def __init__(self, patterns: Iterable[tuple[int, str]]) -> None:
        root = _Node()
        self._has_deep = False
        for number, pattern in patterns:
            node = root
            for segment in pattern_segments(pattern):
                node = node.child(segment)
                self._has_deep = self._has_deep or node.repeats
            node.numbers.append(number)
        self._start = _with_deep([root])

    def match(self, path: str) -> tuple[int, ...]:
        """Return the numbers in rising order. The walk keeps a set of nodes, so its work is bounded for every path."""
        nodes = self._start
        for segment in _segments(path):
            if len(nodes) == 1:
                nodes = nodes[0].successors(segment)
            else:
                nodes = [successor for node in nodes for successor in node.successors(segment)]
            if not nodes:
                return ()
            if self._has_deep:
                nodes = _with_deep(nodes)
        if len(nodes) == 1 and len(nodes[0].numbers) == 1:
            return (nodes[0].numbers[0],)
        return tuple(sorted({number for node in nodes for number in node.numbers}))


def _with_deep(nodes: Iterable[_Node]) -> list[_Node]:
    """The nodes, each once, and the ``**`` nodes after them, which need no segment."""
    unique: dict[int, _Node] = {}
    for start in nodes:
        node: _Node | None = start
        while node is not None and id(node) not in unique:
            unique[id(node)] = node
            node = node.deep
    return list(unique.values())


def pattern_segments(pattern: str) -> list[str]:
    """The segments of a pattern, with stars for parameters: "/a/{x}/{y:path}" -> a, *, **."""
    return _segments(PARAMETER.sub(lambda parameter: _DEEP if parameter[2] == "path" else "*", pattern))


def _segments(path: str) -> list[str]:
    path = normalize_path(path)
    return path[1:].split("/") if len(path) > 1 else []


def is_glob_match(pattern: str, segment: str) -> bool:
    """Return whether a segment with stars matches one without."""
    glob = _glob(pattern) if "*" in pattern else re.compile(re.escape(pattern))
    return glob is None or glob.fullmatch(segment) is not None


def _glob(segment: str) -> re.Pattern[str] | None:
    """Compile a segment with stars; None for "*". Each part is an atomic group, so no path causes backtracking."""
    if segment == "*":
        return None
    first, *parts, last = map(re.escape, re.split(r"\*+", segment))
    return re.compile(first + "".join(f"(?>.*?{part})" for part in parts) + ".*" + last, re.DOTALL)


def overlap(one: str, other: str) -> bool:
    """Return whether a path may match both patterns. Parameters within a segment are compared by their start and end.

    >>> overlap("/items/7", "/items/{id}"), overlap("/api/**", "/api"), overlap("/items", "/items/{id}")
    (True, True, False)
    """
    return _overlap(_deep_segments(one), _deep_segments(other))


def _deep_segments(pattern: str) -> tuple[str, ...]:
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
