"""The routes of one URLconf: the route of a path, its template, and the marks on its view.

Django's resolver tries one route after the other. This index tries only the routes that begin with the next segment of
the path, at each level of ``include``, and a route has one template in all languages.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import FunctionType
from typing import Any, Final

import django.conf
from django.urls import URLResolver
from django.urls.converters import IntConverter, SlugConverter, StringConverter, UUIDConverter
from django.urls.resolvers import LocalePrefixPattern, RegexPattern, RoutePattern
from django.utils import translation
from django.views import View

from ..http.views import ViewMarksByMethod, handlers_of
from ..keys.features import UNMATCHED
from ..rules.describe import Route
from ..rules.marks import Destination, MarkedURLs, ViewMarks, destination, marked_form, own_marks
from ..rules.match import METHODS
from ..rules.names import class_behind
from ..rules.paths import deepen

_FIRST_SEGMENT: Final = re.compile(r"\^([\w-]*)/(?![*?{])[^|]*", re.ASCII)
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


@dataclass(frozen=True, kw_only=True)
class DjangoRoute(Route):
    """One route, with its view."""

    callback: Any
    marked: ViewMarksByMethod
    suffix: str = ""
    """The parameter for the format suffix, as in ``Destination``."""

    def destination(self, method: str) -> Destination:
        """Return where a request with this method goes."""
        marks = self.marked.for_method(method)
        unprefixed = self.template.removeprefix("/{language}") if self.pattern.startswith(_ANY_LANGUAGE) else ""
        is_expression = _EXPRESSION in self.pattern
        return destination(
            self.template,
            self.name,
            marks,
            is_expression=is_expression,
            unprefixed=unprefixed,
            suffix=self.suffix,
        )


NO_ROUTE: Final = DjangoRoute(UNMATCHED, {}, callback=None, marked=ViewMarksByMethod(None))
"""The route of requests that no route matches."""

_Match = tuple[DjangoRoute, dict[str, Any]]
"""A route, and the parameters in the path."""


class URLRoutes:
    """The routes behind Django's resolver."""

    def __init__(self, resolver: Any) -> None:
        self.all: list[DjangoRoute] = []
        with translation.override(django.conf.settings.LANGUAGE_CODE):
            self._top = _Pattern(resolver, "", ("/",), frozenset(), self.all, "")
        self.views = [view for route in self.all for view in route.marked.all()]
        self.has_marks = any(view.every or view.exempt is not None or view.is_static for view in self.views)

    def find(self, path: str) -> _Match:
        """Return the route of a path in the current language."""
        return self._top.find(path) or (NO_ROUTE, {})


class _Pattern:
    """A route, or an ``include`` with its children. These keep their position, because the first match wins."""

    def __init__(
        self,
        pattern: Any,
        template: str,
        paths: tuple[str, ...],
        parameters: frozenset[str],
        routes: list[DjangoRoute],
        namespace: str,
        within: tuple[object, ...] = (),
    ) -> None:
        is_include = isinstance(pattern, URLResolver)
        if is_include and isinstance(pattern.urlconf_name, MarkedURLs):
            within += (pattern.urlconf_name,)
        if is_include and pattern.namespace:
            namespace += f"{pattern.namespace}:"
        name = f"{namespace}{pattern.name}" if not is_include and pattern.name else ""
        self._match = pattern.pattern.match
        self._defaults = pattern.default_kwargs if is_include else pattern.default_args
        parameters |= {*getattr(getattr(pattern.pattern, "regex", None), "groupindex", ()), *self._defaults}
        self._route = None if is_include else _route(pattern.callback, template, paths, parameters, name, within)
        if self._route and routes:
            self._route = _without_suffix(self._route, routes[-1], getattr(pattern.pattern, "converters", {}))
        self._anywhere: list[tuple[int, _Pattern]] = []
        self._by_segment: dict[str, list[tuple[int, _Pattern]]] = {}
        routes += [self._route] if self._route else []
        for position, child in enumerate(pattern.url_patterns if is_include else ()):
            part = _LANGUAGE if isinstance(child.pattern, LocalePrefixPattern) else str(child.pattern)
            segment = _segment_of(child.pattern)
            children = self._anywhere if segment is None else self._by_segment.setdefault(segment, [])
            template_of_child = template + part.removeprefix("^" if template else "")
            paths_of_child = tuple(dict.fromkeys(start + end for end in _translated(child.pattern) for start in paths))
            location = (template_of_child, paths_of_child, parameters)
            children.append((position, _Pattern(child, *location, routes, namespace, within)))

    def find(self, path: str) -> _Match | None:
        """Resolve as ``URLResolver.resolve`` does, without its data for reverse and error pages."""
        match = self._match(path)
        if match is None:
            return None
        rest, _, parameters = match
        if self._route is not None:
            return self._route, {**parameters, **self._defaults}
        for _, child in sorted((*self._anywhere, *self._by_segment.get(rest.partition("/")[0], ()))):
            if inner := child.find(rest):
                return inner[0], {**parameters, **self._defaults, **inner[1]}
        return None


def _route(
    view: Any, template: str, paths: tuple[str, ...], parameters: frozenset[str], name: str, within: tuple[object, ...]
) -> DjangoRoute:
    _name_marks(view)
    marked = ViewMarksByMethod(view, within, marks=_marks_of, handlers=_handlers_of)
    if getattr(class_behind(view), "options", None) is View.options:
        marked.by_method["OPTIONS"] = replace(marked.for_method("OPTIONS"), answers_options=True)
    views = {method: marked.for_method(method) for method in _methods_of(view)}
    template = route_template(template)
    return DjangoRoute(template, views, parameters, name, paths[0], paths[1:], callback=view, marked=marked)


def _without_suffix(route: DjangoRoute, before: DjangoRoute, converters: Mapping[str, Any]) -> DjangoRoute:
    """Return a route with the template of the one before it, where it only adds a format suffix to its paths.

    ``format_suffix_patterns`` of REST framework adds such a route of the same view after each route.
    """
    start = before.template.rstrip("/")
    suffix = _SUFFIX.fullmatch(route.template.removeprefix(start)) if route.template.startswith(start) else None
    if suffix is None or route.callback is not before.callback:
        return route
    has_dot = suffix["dot"] or getattr(converters.get(suffix["name"]), "regex", "").startswith(r"\.")
    return replace(route, template=before.template, suffix=suffix["name"]) if has_dot else route


def _translated(pattern: Any) -> Iterator[str]:
    """Yield the paths of a pattern in the current language, then those in all others."""
    yield _paths_of(pattern)
    if not isinstance(vars(pattern).get("_route", vars(pattern).get("_regex", "")), str):
        for language, _ in django.conf.settings.LANGUAGES:
            with translation.override(language):
                yield _paths_of(pattern)


def _paths_of(pattern: Any) -> str:
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
        text = _regex_template(text)
    return text if text.startswith("/") else f"/{text}"


def _regex_template(pattern: str) -> str:
    """Return a regular expression as a template: groups become parameters, numbered where they have no name.

    Text outside groups is kept, so that different routes have different templates.
    """
    template = ""
    count = 0
    shown = [True]  # for each open group, whether its text is kept
    for part in _REGEX_PART.finditer(pattern):
        if part["end"]:
            shown = shown[:-1] or [True]
        elif part["start"]:
            if all(shown) and (part["name"] or part["start"] == "("):
                template += f"{{{part['name'] or count}}}"
                count += not part["name"]
            shown.append(part["start"].endswith(":"))
        elif all(shown) and (text := part["text"]):
            template += text[1:] if text[0] == "\\" and not text[1:].isalnum() else text
    return template


def _handlers_of(view: object, method: str) -> list[object]:
    """Return the functions that handle a method: of a class-based view, or of Ninja's view of a path."""
    paths = [part for part in _parts_of(view) if hasattr(part, "operations") and _is_of_ninja(type(part))]
    operations = [operation for path in paths for operation in path.operations if method in operation.methods]
    return [*handlers_of(view, method), *(marked_form(op.view_func) or op.view_func for op in operations)]


def _is_of_ninja(cls: type) -> bool:
    return any(base.__module__.startswith("ninja.") for base in cls.__mro__)


def _marks_of(thing: Any) -> ViewMarks:
    """Return the marks of an object, else those of the one marked function behind a decorator that hides them."""
    marks = own_marks(thing)
    if marks != ViewMarks():
        return marks
    functions = [part for part in _parts_of(thing) if isinstance(part, FunctionType)]
    behind = [inner for inner in map(own_marks, functions) if inner != ViewMarks()]
    return behind[0] if len(behind) == 1 else marks


def _parts_of(function: Any) -> list[Any]:
    """Return the objects that a view may call: its instance, its wrapped function, its ``__call__``, its closure."""
    parts = [getattr(function, name, None) for name in ("__self__", "func")] + [type(function).__call__]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            parts.append(cell.cell_contents)
    return parts


def _name_marks(callback: Any) -> None:
    """Name the marks of ``method_decorator`` after the method: the decorator does not know it, the class does."""
    for base in getattr(class_behind(callback), "__mro__", ()):
        for name, method in vars(base).items():
            for mark in own_marks(method).marks if isinstance(method, FunctionType) else ():
                if mark.view.startswith(_NO_METHOD):
                    mark.view = f"{base.__module__}.{base.__qualname__}{'' if name == 'dispatch' else '.' + name}"
