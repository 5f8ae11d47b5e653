"""The frontends of FastAPI as routes. They serve files when no other route matches, as a mount does."""

import re
from collections.abc import Iterator
from typing import Any

from .tree import OPAQUE, RouteNode


def frontend_groups(router: Any) -> Iterator[Any]:
    """Yield the groups of frontends of a router and of those it includes. A group has one list of dependencies."""
    yield from getattr(router, "_low_priority_routes", ())
    for route in router.routes:
        if hasattr(route, "effective_low_priority_routes"):
            yield from route.effective_low_priority_routes()


def frontend_nodes(group: Any, prefix: str, paths: str, node: dict[str, Any]) -> Iterator[RouteNode]:
    """Yield the frontends of a group. The prefix, the pattern of its paths and ``node`` are those of its router."""
    from starlette.convertors import PathConvertor  # only FastAPI has frontends

    for route in getattr(group, "original_route", group).routes:
        path = (getattr(group, "frontend_prefix", "") + route.path).rstrip("/")
        yield RouteNode(
            f"{path}/**",
            f"{prefix}{path}/{{path}}",
            OPAQUE,
            kind="http",
            pattern=re.compile(rf"{re.escape(path)}(?=/|\Z)/?(?P<path>.*)\Z", re.DOTALL),
            convertors={"path": PathConvertor()},
            is_mount=True,
            paths=f"{paths}{path}/**",
            **node,
        )
