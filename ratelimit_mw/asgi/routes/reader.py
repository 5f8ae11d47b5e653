"""Reads the routes of an application of Starlette or FastAPI, by what they have and not by what they are.

FastAPI since 0.137 hides included routers behind objects without path or endpoint, which tell the routes they stand
for; before, it copied them. A mount is followed into whatever it mounts, through middleware that keeps its ``app``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from .marks import Marking
from .match import ANYWHERE, NOWHERE, RouteMatch
from .shape import shape_of
from .tree import FULL, NONE, PARTIAL, CustomMatch, RouteNode, RouteTree, Scope

__all__ = ["RouteReader", "application_behind"]

_FRAMEWORKS: Final = ("starlette", "fastapi")
_DEEPEST: Final = 32
_MATCHES: Final = {"NONE": NONE, "PARTIAL": PARTIAL, "FULL": FULL}
_REST: Final = "/{path}"


def application_behind(app: Any) -> Any:
    """The Starlette application or router inside what may be wrapped in middleware; None where there is none."""
    for _ in range(_DEEPEST):
        if app is None or (_is_of_a_framework(type(app)) and isinstance(getattr(app, "routes", None), list)):
            return app
        app = getattr(app, "app", None)
    return None


@dataclass(frozen=True)
class _Place:
    """Where a router stands: its template and parameters so far, what was mounted on the way, the routers above it."""

    prefix: str = ""
    parameters: frozenset[str] = frozenset()
    passed: tuple[object, ...] = ()
    above: tuple[int, ...] = ()


class RouteReader:
    """All that is known of an application's routes. ``ConfigError`` for marks that cannot stand where they stand.

    ``lists`` grow when routes are added; ``owners`` are the routers and applications reached, with their prefixes.
    """

    def __init__(self, app: object) -> None:
        self.lists: list[list[Any]] = []
        self.owners: list[tuple[str, object]] = []
        self.by_host = False
        self.marking = Marking()
        self.top = self._level(app, _Place(), NOWHERE)
        self.marking.claim_late_marks()

    def reaches(self, app: object) -> bool:
        """Whether these are its routes, too."""
        return any(owner is app or owner is _router_of(app) for _, owner in self.owners)

    def _level(self, owner: Any, place: _Place, missed: RouteMatch) -> RouteTree:
        router = _router_of(owner)
        self.owners += [(place.prefix, owner), (place.prefix, router)]
        self._watch(router)
        here = replace(place, above=(*place.above, id(router)))
        branches = [self._branch(entry, route, here) for entry, route in _entries(router)]
        met = [limit for route in _of_last_resort(router) for limit in self.marking.meet(route)]
        return RouteTree(branches, missed.meeting(None, met))

    def _watch(self, router: Any) -> None:
        self.lists.append(router.routes)
        for route in router.routes:
            if (included := getattr(route, "original_router", None)) is not None:
                self._watch(included)

    def _branch(self, entry: Any, route: Any, place: _Place) -> RouteNode:
        if not hasattr(entry, "param_convertors"):
            return RouteNode("/**", NOWHERE.endpoint, ANYWHERE, place.passed, asked=_asking(entry, route))
        if not hasattr(entry, "endpoint"):
            return self._mount(entry, route, place)
        is_http = hasattr(entry, "methods")
        branch = RouteNode(
            shape_of(entry.path_format, entry.param_convertors),
            place.prefix + entry.path_format,
            entry.endpoint,
            place.passed,
            "http" if is_http else "websocket",
            frozenset(entry.methods) if is_http and entry.methods else None,
            entry.path_regex,
            convertors=entry.param_convertors,
            parameters=place.parameters.union(entry.param_convertors),
            asked=_asking(entry, route) if _decides_for_itself(entry, route) else None,
        )
        self.marking.mark(branch, getattr(entry, "dependant", None))
        return branch

    def _mount(self, entry: Any, route: Any, place: _Place) -> RouteNode:
        """What stands below a path or a host: another router, or an application that nobody can look into."""
        host = getattr(entry, "host_regex", None)
        template = place.prefix + (_REST if host else entry.path_format)
        parameters = place.parameters.union(entry.param_convertors) - (frozenset() if host else {"path"})
        branch = RouteNode(
            "/**" if host else shape_of(entry.path_format, entry.param_convertors),
            template,
            entry.app,
            place.passed,
            pattern=None if host else entry.path_regex,
            host=host,
            convertors=entry.param_convertors,
            parameters=parameters,
            asked=_asking(entry, route) if _decides_for_itself(entry, route) else None,
            mounts=True,
        )
        self.by_host = self.by_host or host is not None
        owner = application_behind(entry.app) or application_behind(getattr(entry, "_base_app", None))
        if owner is None or id(_router_of(owner)) in place.above:
            self.marking.mark(branch, None)
            return branch
        passed = (*place.passed, entry.app)
        below = _Place(template.removesuffix(_REST), parameters, passed, place.above)
        branch.below = self._level(owner, below, RouteMatch(NOWHERE.endpoint, entry.app, passed))
        return branch


def _entries(router: Any) -> Iterator[tuple[Any, Any]]:
    """The routes of a router, and of those it includes: each as it stands there, and as it was made."""
    for route in router.routes:
        if hasattr(route, "effective_route_contexts"):
            for context in route.effective_route_contexts():
                yield context.starlette_route or context, context.original_route
        else:
            yield route, route


def _of_last_resort(router: Any) -> Iterator[Any]:
    """The routes of FastAPI's frontends, which are asked when nothing else matches; for their dependencies."""
    yield from getattr(router, "_low_priority_routes", ())
    for route in router.routes:
        if hasattr(route, "effective_low_priority_routes"):
            yield from route.effective_low_priority_routes()


def _asking(entry: Any, route: Any) -> CustomMatch:
    """Asks a route that is none of the framework's own, as the framework would."""
    as_made = getattr(entry, "original_route", None) is route

    def asked(scope: Scope) -> int:
        scope = {**scope}
        if as_made:
            scope["fastapi"] = {**scope.get("fastapi", {}), "effective_route_context": entry}
        match, _ = (route if as_made else entry).matches(scope)
        return _MATCHES[match.name]

    return asked


def _decides_for_itself(entry: Any, route: Any) -> bool:
    """Whether somebody has written another ``matches`` for it."""
    asked = route if getattr(entry, "original_route", None) is route else entry
    writer = next(cls for cls in type(asked).__mro__ if "matches" in vars(cls))
    return writer.__module__.partition(".")[0] not in _FRAMEWORKS


def _is_of_a_framework(cls: type) -> bool:
    return any(base.__module__.partition(".")[0] in _FRAMEWORKS for base in cls.__mro__)


def _router_of(owner: Any) -> Any:
    return getattr(owner, "router", owner)
