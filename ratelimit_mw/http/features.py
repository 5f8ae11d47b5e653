"""Reading features from a request: which function gives which feature, settled when the application starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import ConfigError
from ..features import UNREADABLE, checked_name
from ..plan import Plan
from .client_ip import ClientIP
from .request import Request

__all__ = ["FeatureReader", "Read"]

Read = Callable[[Request], Any]

_FAMILIES: dict[str, Callable[[str], Read]] = {
    "header": lambda name: lambda request: request.headers.get(name),
    "cookie": lambda name: lambda request: request.cookies.get(name),
    "query": lambda name: lambda request: UNREADABLE if request.query is None else request.query.get(name),
}


class FeatureReader:
    """Knows how to read every feature that some rule needs. ``ConfigError`` for one that nothing gives."""

    def __init__(
        self, needs: Iterable[str], client_ip: ClientIP, own: Mapping[str, Callable[[Any], Any]], user: Read
    ) -> None:
        for name, read in own.items():
            checked_name(name)
            if not callable(read):
                raise ConfigError(f"expected a function of the request; got {read!r}", f"features[{name!r}]")
        self._client_ip = client_ip
        self._built_in: dict[str, Read] = {
            "ip": self.ip,
            "user": user,
            "method": lambda request: request.method,
            "path": lambda request: request.path,
            "host": lambda request: request.host,
        }
        self._own = dict(own)
        self._reads = {name: self._find(name) for name in needs if name != "endpoint" or name in own}
        self._by_plan: dict[Plan, list[tuple[str, Read]]] = {}

    @property
    def is_async(self) -> bool:
        """Whether a function of the user's can only be awaited."""
        return any(inspect.iscoroutinefunction(read) for read in self._reads.values())

    def reads(self, plan: Plan) -> list[tuple[str, Read]]:
        """(feature, function) for all that a plan needs."""
        try:
            return self._by_plan[plan]
        except KeyError:
            found = [(name, self._reads[name]) for name in plan.needs if name in self._reads]
            return self._by_plan.setdefault(plan, found)

    def ip(self, request: Request) -> str | None:
        """The client's address behind trusted proxies."""
        client_ip = self._client_ip
        if client_ip.reads_header:
            return client_ip.of(request.peer, request.header_lines(client_ip.header))
        peer = request.peer
        return client_ip.key(peer) if peer and len(peer) <= 64 else None

    def _find(self, name: str) -> Read:
        if name in self._own:
            return self._own[name]
        family, _, rest = name.partition(":")
        if rest and family in _FAMILIES:
            return _FAMILIES[family](rest)
        if name in self._built_in:
            return self._built_in[name]
        raise ConfigError(
            f"a rule needs the feature {name!r}, and nothing gives it;"
            f" pass features={{{name!r}: function_of_the_request}} to the middleware"
        )
