"""The routes of one URLconf: the route of a path, its template, and the marks on its view.

Django's own resolver finds the route of a path, behind a bounded cache. A route has one template in all languages.
"""

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, Final

from django.conf import settings
from django.urls import Resolver404
from django.urls.converters import IntConverter, SlugConverter, StringConverter, UUIDConverter
from django.urls.resolvers import LocalePrefixPattern, RoutePattern
from django.utils import translation
from django.views import View

from ..http.routes import Route, ViewNames, marks_by_method
from ..rules.marks import NO_ROUTE, Destination, ViewMarks, own_marks
from ..rules.match import METHODS
from ..rules.names import class_behind, name_of, views_behind
from ..rules.paths import deepen

_MAX_CACHED: Final = 10_000
_MAX_CHARACTERS: Final = 256
"""The characters of path and method that a cached request has at most."""
_NO_METHOD: Final = "django.utils.decorators."
_LANGUAGE: Final = "<language>/"
_ANY_LANGUAGE: Final = "/**/"
"""The start of the paths of a route whose default language has no prefix."""
_EXPRESSION: Final = "{.*:path}"
"""The pattern of all that a regular expression may match. No parameter has this name."""
# As django.urls reads a route: <name>, <converter:name>; not the <name> of a group in a regular expression.
_PARAMETER: Final = re.compile(r"(?<!\(\?P)<(?:[^>:]+:)?([^>]+)>")
_REGEX: Final = re.compile(r"^\^|\(\?|\\|\$$")
_SPECIAL: Final = re.compile(r".[?*{]|[\\^$.+(\[]")
_SUFFIX: Final = re.compile(r"/?(?P<dot>\.?)\{(?P<name>\w+)\}/?")
_WITHIN_SEGMENT: Final = (IntConverter, SlugConverter, StringConverter, UUIDConverter)
_REGEX_PART: Final = re.compile(
    r"(?P<start>\((?:\?P<(?P<name>\w+)>|\?[a-zA-Z-]*:|\?)?)|(?P<end>\))|\\[AZzbB]|[\^$]|(?:[*+?]|\{\d+(?:,\d*)?\})[?+]?"
    r"|(?P<text>\[\^?\]?(?:\\.|[^\]\\])*\]?|\\?.)",
    re.DOTALL,
)

_Chain = Sequence[Any]
"""The patterns that lead to a view: each ``include``, and the route itself."""

_NO_ROUTE: Final = Route(NO_ROUTE)


class URLRoutes:
    """The routes behind Django's resolver."""

    def __init__(self, resolver: Any) -> None:
        self._resolver = resolver
        self._chains = list(_chains(resolver))
        names = ViewNames()
        self.all: list[Route] = []
        with translation.override(settings.LANGUAGE_CODE):
            for chain in self._chains:
                route = _read_route(chain, names)
                self.all.append(_without_suffix(route, self.all[-1:], chain[-1].pattern))
        self.has_limits = any(view.all_marks for route in self.all for view in route.marked.values())
        self.has_languages = any(_is_translated(part.pattern) for chain in self._chains for part in chain)
        self._by_language: dict[str | None, dict[tuple[str, int], Route]] = {}
        self.cached: dict[tuple[str | None, str, str], tuple[Destination, dict[str, Any]]] = {}
        """The results of ``find`` for the paths that a route has."""

    def find(self, language: str | None, path: str, method: str) -> tuple[Destination, dict[str, Any]]:
        """Return where a request goes in the current language, and the parameters in its path.

        A path without a route is resolved each time: a converter may find it in a database later.
        """
        route, params = self.resolve(path, language)
        found = route.destination(method), params
        if route is not _NO_ROUTE and len(path) + len(method) <= _MAX_CHARACTERS:
            if len(self.cached) >= _MAX_CACHED:
                self.cached.clear()
            self.cached[language, path, method] = found
        return found

    def resolve(self, path: str, language: str | None) -> tuple[Route, dict[str, Any]]:
        """Return the route of a path in the current language, without the cache."""
        try:
            match = self._resolver.resolve(path)
        except Resolver404:
            return _NO_ROUTE, {}
        return self._route_of(match, language if self.has_languages else None), match.kwargs

    def _route_of(self, match: Any, language: str | None) -> Route:
        """Return the route of a ``ResolverMatch``. One of a resolver of your own may be unknown, and has no marks."""
        routes = self._by_language.get(language)
        if routes is None:
            routes = self._by_language[language] = {}
            for chain, route in zip(self._chains, self.all, strict=True):
                text = _joined(str(part.pattern) for part in chain)
                routes.setdefault((text, id(chain[-1].callback)), route)
        for view in views_behind(match.func):  # New Relic's agent wraps each view that the resolver finds
            if (known := routes.get((match.route, id(view)))) is not None:
                return known
        return Route(Destination(route_template(match.route), function=match.view_name), target=match.func)


def throttling() -> Any:
    """Return the module of the throttles, where the project uses it: REST framework is optional."""
    return sys.modules.get(f"{__package__}.drf")


def _chains(resolver: Any, outer: tuple[Any, ...] = ()) -> Iterator[_Chain]:
    for pattern in resolver.url_patterns:
        chain = (*outer, pattern)
        if hasattr(pattern, "url_patterns"):
            yield from _chains(pattern, chain)
        else:
            yield chain


def _joined(texts: Iterable[str]) -> str:
    """Join the texts of patterns as ``ResolverMatch.route`` does."""
    return functools.reduce(lambda start, text: start + text.removeprefix("^" if start else ""), texts, "")


def _read_route(chain: _Chain, names: ViewNames) -> Route:
    patterns, includes, last = [part.pattern for part in chain], chain[:-1], chain[-1]
    view = last.callback
    _name_marks(view)
    drf = throttling()
    rates = [mark for each in drf.throttles_of(view) for mark in drf.rates_of(*each)] if drf else []
    namespaces = [include.namespace for include in includes if include.namespace]
    name = ":".join([*namespaces, last.name]) if last.name else ""
    behind = class_behind(view) or inspect.unwrap(view)
    groups = [getattr(getattr(pattern, "regex", None), "groupindex", ()) for pattern in patterns]
    defaults = [*(include.default_kwargs for include in includes), last.default_args]
    template = route_template(
        _joined(_LANGUAGE if isinstance(each, LocalePrefixPattern) else str(each) for each in patterns)
    )
    path = f"/{''.join(map(_path_of, patterns))}"
    to = Destination(
        template,
        name,
        is_expression=_EXPRESSION in path,
        unprefixed=template.removeprefix("/{language}") if path.startswith(_ANY_LANGUAGE) else "",
        function=names.name(behind, name or name_of(behind) or type(view).__qualname__),
    )
    return Route(
        to,
        marks_by_method(view, [ViewMarks(tuple(rates))], _marks_of),
        _methods_of(view),
        frozenset().union(*groups, *defaults),
        path,
        view,
        answers_options=getattr(class_behind(view), "options", None) is View.options,
    )


def _without_suffix(route: Route, before: Sequence[Route], pattern: Any) -> Route:
    """Return a route with the template of the one before it, where it only adds a format suffix to its paths.

    ``format_suffix_patterns`` of REST framework adds such a route of the same view after each route.
    """
    for other in before:
        start = other.endpoint.rstrip("/")
        suffix = _SUFFIX.fullmatch(route.endpoint.removeprefix(start)) if route.endpoint.startswith(start) else None
        if suffix is not None and route.target is other.target:
            converter = getattr(pattern, "converters", {}).get(suffix["name"])
            if suffix["dot"] or getattr(converter, "regex", "").startswith(r"\."):
                to = other.to
                route.to = replace(route.to, endpoint=to.endpoint, unprefixed=to.unprefixed, suffix=suffix["name"])
    return route


def _is_translated(pattern: Any) -> bool:
    """Return whether a pattern depends on the language. A lazy text of a translation is no ``str``."""
    text = vars(pattern).get("_route", vars(pattern).get("_regex", ""))
    return isinstance(pattern, LocalePrefixPattern) or not isinstance(text, str)


def _path_of(pattern: Any) -> str:
    """Return the part of a route as a pattern that matches at least its paths. An expression may match any rest."""
    if isinstance(pattern, LocalePrefixPattern):
        return "{language}/" if pattern.prefix_default_language else _ANY_LANGUAGE[1:]
    if isinstance(pattern, RoutePattern):
        deep = {name for name, converter in pattern.converters.items() if type(converter) not in _WITHIN_SEGMENT}
        return deepen(_PARAMETER.sub(r"{\1}", str(pattern)), deep)
    text = str(pattern).replace("/?$", "/$")
    is_anchored = text.startswith("^") or (pattern._is_endpoint and text.endswith("$"))  # else Django searches
    start = _SPECIAL.split(text.removeprefix("^"), maxsplit=1)[0] if is_anchored and "|" not in text else ""
    return f"{start.rpartition('/')[0]}/{_EXPRESSION}/"


def _methods_of(callback: Any) -> tuple[str, ...]:
    """Return the methods of a class-based view; all methods for a function."""
    cls = class_behind(callback)
    actions = getattr(callback, "actions", None) or ()
    handled = [name for name in METHODS if name.lower() in actions or hasattr(cls, name.lower())]
    return tuple(handled if {*handled} - {"OPTIONS"} else METHODS)


def route_template(route: str) -> str:
    r"""Return ``ResolverMatch.route`` as a template, with a leading slash, without converters and patterns.

    >>> route_template("items/<int:pk>/"), route_template(r"^articles/(?P<year>[0-9]{4})/(\w+)/$")
    ('/items/{pk}/', '/articles/{year}/{0}/')
    """
    text = _PARAMETER.sub(r"{\1}", route)
    if _REGEX.search(text):
        text = _regex_template(text)
    return text if text.startswith("/") else f"/{text}"


def _regex_template(pattern: str) -> str:
    """Return a regular expression as a template: groups become parameters, numbered where they have no name.

    Text outside groups is kept, so that different routes have different templates.
    """
    template = ""
    count = 0
    shown: list[bool] = []  # for each open group, whether its text is kept
    for part in _REGEX_PART.finditer(pattern):
        if part["end"]:
            shown = shown[:-1]
        elif part["start"]:
            if all(shown) and (part["name"] or part["start"] == "("):
                template += f"{{{part['name'] or count}}}"
                count += not part["name"]
            shown.append(part["start"].endswith(":"))
        elif all(shown) and (text := part["text"]):
            template += text[1:] if text[0] == "\\" and not text[1:].isalnum() else text
    return template


def _marks_of(thing: Any) -> ViewMarks:
    """Return the marks of an object, else those of the one marked function behind a decorator that hides them."""
    marks = own_marks(thing)
    if marks != ViewMarks():
        return marks
    functions = [part for part in _parts_of(thing) if isinstance(part, FunctionType)]
    behind = [inner for inner in map(own_marks, functions) if inner != ViewMarks()]
    return behind[0] if len(behind) == 1 else marks


def _parts_of(function: Any) -> Iterator[Any]:
    """Yield what a view may call: its method, its wrapped function, its ``__call__``, and the values of its closure."""
    yield from (getattr(function, name, None) for name in ("__func__", "func"))
    yield type(function).__call__
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield cell.cell_contents


def _name_marks(callback: Any) -> None:
    """Name the marks of ``method_decorator`` after the method: the decorator does not know it, the class does."""
    for base in getattr(class_behind(callback), "__mro__", ()):
        for name, method in vars(base).items():
            for mark in own_marks(method).marks if isinstance(method, FunctionType) else ():
                if mark.view.startswith(_NO_METHOD):
                    mark.view = f"{base.__module__}.{base.__qualname__}{'' if name == 'dispatch' else '.' + name}"
