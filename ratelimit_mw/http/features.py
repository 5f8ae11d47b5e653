"""Reading features from a request: which function gives which feature, settled when the application starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import ConfigError, placed
from ..keys.features import INVALID, checked_name
from ..rules.callables import checked_call
from ..rules.plan import Plan
from .body import Bodies
from .client_ip import ClientIP
from .region import Region
from .request import Request

__all__ = ["FeatureReader", "Read", "checked_functions"]

Read = Callable[[Request], Any]

_PLANS_KEPT: Final = 10_000

_FAMILIES: dict[str, Callable[[str], Read]] = {
    "header": lambda name: lambda request: request.header(name),
    "cookie": lambda name: lambda request: request.cookie(name),
    "query": lambda name: lambda request: INVALID if request.query is None else request.query.get(name),
}

_SETTINGS = {
    "email": "name its field in email_field, or ",
    "region": "set region_database or region_header, or ",
}


def _path_parameter(name: str) -> Read:
    return lambda request: request.path_params.get(name)


class FeatureReader:
    """Knows how to read every feature that is needed, by whom. ``ConfigError`` for one that nothing gives.

    ``routes``: whether the application's routes are known, so that there may be path parameters.
    """

    def __init__(
        self,
        needs: Mapping[str, str],
        client_ip: ClientIP,
        own: Mapping[str, Callable[[Any], Any]],
        user: Read,
        routes: bool = False,
        bodies: Bodies | None = None,
        region: Region | None = None,
    ) -> None:
        self._own = checked_functions(own)
        self._client_ip = client_ip
        self._ip_key = client_ip.key
        self._built_in: dict[str, Read] = {
            "ip": self._behind_proxies if client_ip.reads_header else self._peer,
            "user": user,
            "method": lambda request: request.method,
            "path": lambda request: request.path,
            "host": lambda request: request.host,
            "endpoint": lambda request: request.endpoint,
            **({"region": region.of} if region else {}),
        }
        self._bodies = bodies
        self._in_body: set[str] = set()
        self._families = {**_FAMILIES, "path": _path_parameter} if routes else _FAMILIES
        self._reads = {name: self._find(name, who) for name, who in needs.items()}
        self._by_plan: dict[Plan, list[tuple[str, Read]]] = {}
        self.reads_bodies = bool(self._in_body)
        self.may_await = any(self._reads.get(name) is read for name, read in self._own.items())

    @property
    def must_await(self) -> bool:
        """Whether one of your own functions is async."""
        return any(map(_is_async, self._own.values()))

    def needs_body(self, plan: Plan) -> bool:
        """Whether some feature of a plan stands in the body, which then has to be there before the others are read."""
        return not self._in_body.isdisjoint(plan.needs)

    def of(self, plan: Plan, request: Request) -> dict[str, Any]:
        """All that a plan needs, by name; what your own async functions give is still to be awaited."""
        try:
            reads = self._by_plan[plan]
        except KeyError:
            reads = [(name, self._reads[name]) for name in plan.needs if name in self._reads]
            if len(self._by_plan) >= _PLANS_KEPT:
                self._by_plan.clear()
            self._by_plan[plan] = reads
        found = {}
        for name, read in reads:
            found[name] = read(request)
        return found

    def rest_of(self, plan: Plan, request: Request, given: Mapping[str, Any]) -> dict[str, Any]:
        """``of`` where something is given already; nobody is asked for that."""
        needs = [name for name in plan.needs if name in self._reads and name not in given]
        return {**given, **{name: self._reads[name](request) for name in needs}}

    def _peer(self, request: Request) -> str | None:
        """The client's address where no proxy is trusted."""
        peer = request.peer
        return self._ip_key(peer) if peer and len(peer) <= 64 else None

    def _behind_proxies(self, request: Request) -> str | None:
        return self._client_ip.of(request.peer, request.header_lines(self._client_ip.header))

    def _find(self, name: str, who: str) -> Read:
        if name in self._own:
            return self._own[name]
        family, _, rest = name.partition(":")
        if rest and family in self._families:
            return self._families[family](rest)
        if name in self._built_in:
            return self._built_in[name]
        if self._bodies is not None and (read := self._bodies.read(name)):
            self._in_body.add(name)
            return read
        raise ConfigError(
            f"{who} needs the feature {name!r}, and nothing gives it; {_SETTINGS.get(name, '')}"
            f"pass features={{{name!r}: function_of_the_request}} to the middleware"
        )


def checked_functions(own: Mapping[str, Callable[[Any], Any]]) -> dict[str, Callable[[Any], Any]]:
    """Your own functions under the names that rules know them by; ``ConfigError`` for what cannot be called so."""
    found = {}
    for name, read in own.items():
        with placed(f"features[{name!r}]"):
            found[checked_name(name)] = checked_call(read, "the request")
    return found


async def awaited(features: dict[str, Any]) -> dict[str, Any]:
    """The same, once those are there that async functions of your own give."""
    for name, value in features.items():
        if inspect.isawaitable(value):
            features[name] = await value
    return features


def _is_async(read: Callable[[Any], Any]) -> bool:
    """Whether it is an async function, or an object that is called like one."""
    return inspect.iscoroutinefunction(read) or inspect.iscoroutinefunction(type(read).__call__)
