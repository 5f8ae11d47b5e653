"""The routes of one URLconf: which one answers a path, and what is marked on its view. Read once.

Django's own resolver tries one route after the other, and Django asks it anyway. Here a path is only held against
routes that begin with its next segment, at each level of ``include``, and a route has one template in all languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import django.conf
from django.urls import URLResolver
from django.urls.resolvers import LocalePrefixPattern, RegexPattern, RoutePattern
from django.utils import translation

from ..http.views import ViewMarksByMethod
from ..keys.features import UNMATCHED
from ..rules.marks import ViewMarks
from .template import template_of
from .views import UNMARKED, marked_view

__all__ = ["NOWHERE", "Route", "Routes"]

_STARTS_WITH: Final = re.compile(r"\^([\w-]*)/(?![*?{])[^|]*", re.ASCII)
_LANGUAGE: Final = "<language>/"


@dataclass(frozen=True)
class Route:
    """One route: its template, its view, what is marked on that, and the names of its parameters."""

    template: str
    callback: Any
    marked: ViewMarksByMethod
    parameters: frozenset[str] = frozenset()


NOWHERE: Final = Route(UNMATCHED, None, ViewMarksByMethod(None))
"""Where requests go that no route matches."""

Found = tuple[Route, dict[str, Any]]
"""The route that answers, and the parameters that it reads from the path."""


class Routes:
    """Of the URLconf behind Django's resolver."""

    def __init__(self, resolver: Any) -> None:
        with translation.override(django.conf.settings.LANGUAGE_CODE):
            self._top = _Branch(resolver, "", frozenset())
        self.all = list(self._top.routes())
        self.marked = any(view != UNMARKED for view in self.views())

    def views(self) -> Iterator[ViewMarks]:
        """Everything that some request may meet."""
        for route in self.all:
            yield from route.marked.all()

    def find(self, path: str) -> Found:
        """Where a path leads, in the language at hand."""
        return self._top.find(path) or (NOWHERE, {})


class _Leaf:
    """One route, and how it is matched."""

    def __init__(self, pattern: Any, before: str, parameters: frozenset[str]) -> None:
        parameters |= _parameters_of(pattern.pattern, pattern.default_args)
        self._route = Route(template_of(before), pattern.callback, marked_view(pattern.callback), parameters)
        self._matches = pattern.pattern.match
        self._given = pattern.default_args

    def find(self, path: str) -> Found | None:
        found = self._matches(path)
        return None if found is None else (self._route, {**found[2], **self._given})

    def routes(self) -> Iterator[Route]:
        yield self._route


class _Branch:
    """What is included at one place. Children are kept with their position, as the first that matches answers."""

    def __init__(self, resolver: Any, before: str, parameters: frozenset[str]) -> None:
        parameters |= _parameters_of(resolver.pattern, resolver.default_kwargs)
        self._matches = resolver.pattern.match
        self._given = resolver.default_kwargs
        self._anywhere: list[tuple[int, _Branch | _Leaf]] = []
        self._by_segment: dict[str, list[tuple[int, _Branch | _Leaf]]] = {}
        for position, pattern in enumerate(resolver.url_patterns):
            segment = _segment_of(pattern.pattern)
            there = self._anywhere if segment is None else self._by_segment.setdefault(segment, [])
            there.append((position, _child(pattern, before, parameters)))

    def find(self, path: str) -> Found | None:
        """As ``URLResolver.resolve``, without what only reverse and error pages need."""
        found = self._matches(path)
        if found is None:
            return None
        rest, _, params = found
        for _, child in sorted((*self._anywhere, *self._by_segment.get(rest.partition("/")[0], ()))):
            if inner := child.find(rest):
                return inner[0], {**params, **self._given, **inner[1]}
        return None

    def routes(self) -> Iterator[Route]:
        for _, child in sorted((*self._anywhere, *(child for some in self._by_segment.values() for child in some))):
            yield from child.routes()


def _child(pattern: Any, before: str, parameters: frozenset[str]) -> _Branch | _Leaf:
    here = _LANGUAGE if isinstance(pattern.pattern, LocalePrefixPattern) else str(pattern.pattern)
    route = before + here.removeprefix("^" if before else "")
    return (_Branch if isinstance(pattern, URLResolver) else _Leaf)(pattern, route, parameters)


def _parameters_of(pattern: Any, given: Mapping[str, Any]) -> frozenset[str]:
    """The names of what a view is given by one part of its route."""
    return frozenset((*getattr(getattr(pattern, "regex", None), "groupindex", ()), *given))


def _segment_of(pattern: Any) -> str | None:
    """The first segment of all paths that can match; None where it may be any, or another one in each language."""
    if isinstance(pattern, RegexPattern):
        found = _STARTS_WITH.fullmatch(pattern._regex) if isinstance(pattern._regex, str) else None
        return found[1] if found else None
    if not isinstance(pattern, RoutePattern) or not isinstance(pattern._route, str):
        return None
    start, parameter, _ = pattern._route.partition("<")
    whole = not parameter and pattern._is_endpoint
    return start.partition("/")[0] if whole or "/" in start else None
