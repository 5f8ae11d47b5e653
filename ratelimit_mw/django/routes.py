"""The routes of one URLconf: the route of a path, its template, and the marks on its view.

Django's resolver tries one route after the other. This index tries only the routes that begin with the next segment of
the path, at each level of ``include``, and a route has one template in all languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import django.conf
from django.urls import URLResolver
from django.urls.resolvers import LocalePrefixPattern, RegexPattern, RoutePattern
from django.utils import translation

from ..http.views import ViewMarksByMethod
from ..keys.features import UNMATCHED
from ..rules.marks import ViewMarks
from .views import UNMARKED, marked_view

_FIRST_SEGMENT: Final = re.compile(r"\^([\w-]*)/(?![*?{])[^|]*", re.ASCII)
_LANGUAGE: Final = "<language>/"
# As django.urls reads a route: <name>, <converter:name>; not the <name> of a group in a regular expression.
_PARAMETER: Final = re.compile(r"(?<!\(\?P)<(?:[^>:]+:)?([^>]+)>")
_REGEX: Final = re.compile(r"^\^|\(\?|\\|\$$")
_NAMED_GROUP: Final = re.compile(r"\?P<(\w+)>")
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})[?+]?")


@dataclass(frozen=True)
class DjangoRoute:
    """One route: its template, its view, the marks on the view, and the names of its parameters."""

    template: str
    callback: Any
    views: ViewMarksByMethod
    parameters: frozenset[str] = frozenset()


NO_ROUTE: Final = DjangoRoute(UNMATCHED, None, ViewMarksByMethod(None))
"""The route of requests that no route matches."""

_Match = tuple[DjangoRoute, dict[str, Any]]
"""A route, and the parameters in the path."""


class URLRoutes:
    """The routes behind Django's resolver."""

    def __init__(self, resolver: Any) -> None:
        with translation.override(django.conf.settings.LANGUAGE_CODE):
            self._top = _Include(resolver, "", frozenset())
        self.all = list(self._top.routes())
        self.marked = any(view != UNMARKED for view in self.views())

    def views(self) -> Iterator[ViewMarks]:
        """Yield the marks of every possible request."""
        for route in self.all:
            yield from route.views.all()

    def find(self, path: str) -> _Match:
        """Return the route of a path in the current language."""
        return self._top.find(path) or (NO_ROUTE, {})


class _Pattern:
    """One route, and how it is matched."""

    def __init__(self, pattern: Any, template: str, parameters: frozenset[str]) -> None:
        parameters |= _parameters_of(pattern.pattern, pattern.default_args)
        self._route = DjangoRoute(route_template(template), pattern.callback, marked_view(pattern.callback), parameters)
        self._match = pattern.pattern.match
        self._defaults = pattern.default_args

    def find(self, path: str) -> _Match | None:
        match = self._match(path)
        return None if match is None else (self._route, {**match[2], **self._defaults})

    def routes(self) -> Iterator[DjangoRoute]:
        yield self._route


class _Include:
    """The routes of one ``include``. Children keep their position, because the first match wins."""

    def __init__(self, resolver: Any, template: str, parameters: frozenset[str]) -> None:
        parameters |= _parameters_of(resolver.pattern, resolver.default_kwargs)
        self._match = resolver.pattern.match
        self._defaults = resolver.default_kwargs
        self._anywhere: list[tuple[int, _Include | _Pattern]] = []
        self._by_segment: dict[str, list[tuple[int, _Include | _Pattern]]] = {}
        for position, pattern in enumerate(resolver.url_patterns):
            segment = _segment_of(pattern.pattern)
            children = self._anywhere if segment is None else self._by_segment.setdefault(segment, [])
            children.append((position, _child(pattern, template, parameters)))

    def find(self, path: str) -> _Match | None:
        """Resolve as ``URLResolver.resolve`` does, without its data for reverse and error pages."""
        match = self._match(path)
        if match is None:
            return None
        rest, _, parameters = match
        for _, child in sorted((*self._anywhere, *self._by_segment.get(rest.partition("/")[0], ()))):
            if inner := child.find(rest):
                return inner[0], {**parameters, **self._defaults, **inner[1]}
        return None

    def routes(self) -> Iterator[DjangoRoute]:
        for _, child in sorted((*self._anywhere, *(child for some in self._by_segment.values() for child in some))):
            yield from child.routes()


def _child(pattern: Any, template: str, parameters: frozenset[str]) -> _Include | _Pattern:
    part = _LANGUAGE if isinstance(pattern.pattern, LocalePrefixPattern) else str(pattern.pattern)
    route = template + part.removeprefix("^" if template else "")
    return (_Include if isinstance(pattern, URLResolver) else _Pattern)(pattern, route, parameters)


def _parameters_of(pattern: Any, defaults: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the arguments that one part of a route passes to its view."""
    return frozenset((*getattr(getattr(pattern, "regex", None), "groupindex", ()), *defaults))


def _segment_of(pattern: Any) -> str | None:
    """Return the first segment of all paths that can match; None where it may be any, or depends on the language."""
    if isinstance(pattern, RegexPattern):
        match = _FIRST_SEGMENT.fullmatch(pattern._regex) if isinstance(pattern._regex, str) else None
        return match[1] if match else None
    if not isinstance(pattern, RoutePattern) or not isinstance(pattern._route, str):
        return None
    start, parameter, _ = pattern._route.partition("<")
    is_whole = not parameter and pattern._is_endpoint
    return start.partition("/")[0] if is_whole or "/" in start else None


@lru_cache(10_000)
def route_template(route: str) -> str:
    r"""Return ``ResolverMatch.route`` as a template, with a leading slash, without converters and patterns.

    >>> route_template("items/<int:pk>/"), route_template(r"^articles/(?P<year>[0-9]{4})/(\w+)/$")
    ('/items/{pk}/', '/articles/{year}/{0}/')
    """
    text = _PARAMETER.sub(r"{\1}", route)
    if _REGEX.search(text):
        text = _RegexTemplate(text).text
    return text if text.startswith("/") else f"/{text}"


class _RegexTemplate:
    """A regular expression as a template: groups become parameters, numbered where they have no name.

    Text outside of groups is kept, so that different routes have different templates.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._unnamed = 0
        self.text = self._read()

    def _read(self) -> str:
        """Read to the end, or to the parenthesis that closes the current group."""
        text = ""
        while self._position < len(self._pattern) and self._pattern[self._position] != ")":
            text += self._part()
            if quantifier := _QUANTIFIER.match(self._pattern, self._position):
                self._position = quantifier.end()
        return text

    def _part(self) -> str:
        character = self._pattern[self._position]
        self._position += 1
        if character == "(":
            return self._group()
        if character == "[":
            return self._character_class()
        if character == "\\" and self._position < len(self._pattern):
            self._position += 1
            escaped = self._pattern[self._position - 1]
            return "" if escaped in "AZzbB" else f"\\{escaped}" if escaped.isalnum() else escaped
        return "" if character in "^$" else character

    def _group(self) -> str:
        start = self._position
        if named := _NAMED_GROUP.match(self._pattern, start):
            name = named[1]
        elif self._pattern.startswith("?", start):
            name = ""
        else:
            name, self._unnamed = str(self._unnamed), self._unnamed + 1
        is_transparent = self._pattern.startswith("?:", start)
        self._position = start + 2 if is_transparent else named.end() if named else start
        unnamed = self._unnamed
        inner = self._read()
        self._position += 1
        if is_transparent:
            return inner
        self._unnamed = unnamed if name else self._unnamed  # groups inside a parameter are part of it
        return f"{{{name}}}" if name else ""

    def _character_class(self) -> str:
        start = self._position - 1
        end = self._pattern.find("]", self._position + 1)
        self._position = len(self._pattern) if end < 0 else end + 1
        return self._pattern[start : self._position]
