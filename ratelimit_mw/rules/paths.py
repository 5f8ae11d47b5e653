"""Which path patterns match a path: one tree for all of them, walked once. Pure; knows no rules.

``*`` stands for anything within a segment, ``{name}`` for one segment, ``**`` and ``{name:path}`` for any number
of segments, none included. Paths are compared with ``//`` collapsed and one trailing slash ignored; one without a
leading slash is as if it had it, for some frameworks route it so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import ConfigError

__all__ = ["PathTree", "checked_pattern", "normalised", "pattern_matches"]

_PARAMETER = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
# As Flask and Django write a parameter, and as many others do at the start of a segment.
_FOREIGN = re.compile(r"<(?:(\w+)(?:\([^<>]*\))?:)?(\w+)>|(?<=/):()([A-Za-z_]\w*)")
_DEEP = "**"


def normalised(path: str) -> str:
    """The path as it is compared: ``normalised("//a//b/")`` is ``'/a/b'``.

    >>> normalised("//a//b/"), normalised("/"), normalised("a")
    ('/a/b', '/', '/a')
    """
    if path[:1] != "/":
        path = "/" + path
    if "//" in path:
        path = re.sub("/{2,}", "/", path)
    return path[:-1] if len(path) > 1 and path[-1] == "/" else path


def checked_pattern(pattern: object) -> str:
    """The pattern itself; ``ConfigError`` unless it can match something."""
    if not isinstance(pattern, str) or not pattern.startswith("/"):
        raise ConfigError(f'expected a path pattern such as "/login", "/items/{{id}}" or "/api/**"; got {pattern!r}')
    if "?" in pattern or "#" in pattern:
        raise ConfigError(f"a path pattern has no query and no fragment; got {pattern!r}")
    if encoded := _ENCODED.search(pattern):
        raise ConfigError(f"paths are compared decoded, so write what {encoded[0]} stands for; got {pattern!r}")
    if (here := _FOREIGN.sub(_parameter, pattern)) != pattern:
        raise ConfigError(f"a parameter is written {{name}} here; write {here!r} for {pattern!r}")
    if re.search(r"[{}]", _PARAMETER.sub("", pattern)):
        raise ConfigError(f"unbalanced braces in {pattern!r}; a parameter is written {{name}}")
    for segment in _segments(pattern):
        if segment != _DEEP and _DEEP in segment:
            raise ConfigError(f"** stands alone between slashes; got {segment!r} in {pattern!r}")
    return pattern


def _parameter(found: re.Match[str]) -> str:
    """A parameter as it is written here: "<int:id>" and ":id" are {id}, "<path:rest>" is {rest:path}."""
    name = found[2] or found[4]
    return f"{{{name}:path}}" if found[1] == "path" else f"{{{name}}}"


class _Node:
    __slots__ = ("deep", "exact", "found", "globs", "repeats", "single")

    def __init__(self, repeats: bool = False) -> None:
        self.exact: dict[str, _Node] = {}
        self.globs: dict[str, tuple[re.Pattern[str], _Node]] = {}
        self.single: _Node | None = None
        self.deep: _Node | None = None
        self.repeats = repeats
        self.found: list[int] = []

    def child(self, segment: str) -> _Node:
        """The node behind a segment of a pattern, made when it is not there."""
        if segment == _DEEP:
            self.deep = self.deep or _Node(repeats=True)
            return self.deep
        if segment == "*":
            self.single = self.single or _Node()
            return self.single
        if "*" in segment:
            return self.globs.setdefault(segment, (_glob(segment), _Node()))[1]
        return self.exact.setdefault(segment, _Node())

    def after(self, segment: str) -> list[_Node]:
        """The nodes behind a segment of a path."""
        exact = self.exact.get(segment)
        found = [] if exact is None else [exact]
        if self.globs:
            found += [node for pattern, node in self.globs.values() if pattern.fullmatch(segment)]
        if self.single is not None:
            found.append(self.single)
        if self.repeats:
            found.append(self)
        return found


class PathTree:
    """All patterns at once; the numbers of those that match a path.

    >>> tree = PathTree([(0, "/api/**"), (1, "/api/items/{id}"), (2, "/login")])
    >>> tree.match("/api/items/7/")
    (0, 1)
    """

    def __init__(self, patterns: Iterable[tuple[int, str]]) -> None:
        root = _Node()
        self._has_deep = False
        for number, pattern in patterns:
            node = root
            for segment in _segments(pattern):
                node = node.child(segment)
                self._has_deep = self._has_deep or node.repeats
            node.found.append(number)
        self._start = _with_deep([root])

    def match(self, path: str) -> tuple[int, ...]:
        """In rising order. The walk keeps a set of nodes, so no path can make it branch without bound."""
        nodes = self._start
        for segment in _split(normalised(path)):
            nodes = nodes[0].after(segment) if len(nodes) == 1 else [n for node in nodes for n in node.after(segment)]
            if not nodes:
                return ()
            if self._has_deep:
                nodes = _with_deep(nodes)
        if len(nodes) == 1 and len(nodes[0].found) == 1:
            return (nodes[0].found[0],)
        return tuple(sorted({number for node in nodes for number in node.found}))


def pattern_matches(pattern: str, path: str) -> bool:
    """Whether one pattern matches one path."""
    return bool(PathTree([(0, pattern)]).match(path))


def _with_deep(nodes: Iterable[_Node]) -> list[_Node]:
    """The nodes, each once, and the ``**`` nodes behind them, which need no segment."""
    found: dict[int, _Node] = {}
    for start in nodes:
        node: _Node | None = start
        while node is not None and id(node) not in found:
            found[id(node)] = node
            node = node.deep
    return list(found.values())


def _segments(pattern: str) -> list[str]:
    """The segments of a pattern, parameters turned into stars: "/a/{x}/{y:path}" -> a, *, **."""
    starred = _PARAMETER.sub(lambda found: _DEEP if found[2] == "path" else "*", normalised(pattern))
    return _split(starred)


def _split(path: str) -> list[str]:
    return path[1:].split("/") if len(path) > 1 else []


def _glob(segment: str) -> re.Pattern[str]:
    """Every part between two stars is taken where it comes first, for good: no path can make it try the others."""
    first, *parts, last = map(re.escape, re.split(r"\*+", segment))
    return re.compile(first + "".join(f"(?>.*?{part})" for part in parts) + ".*" + last, re.DOTALL)
