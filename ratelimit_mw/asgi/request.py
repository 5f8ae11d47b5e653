"""An ASGI scope as a request that features are read from."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ..http.request import Request, still_encoded
from ..http.warnings import warn_of_user
from .routes.tree import ROUTES_UNKNOWN, RouteMatch, path_below

if TYPE_CHECKING:
    from ..http.limits import HttpLimiter
    from ..keys.values import Conversions
    from .body import ReadAhead
    from .routes.index import RouteIndex

BODY: Final = "ratelimit_mw.body"
"""The key of the scope that holds the body, once it was read."""

_NO_USER: Final = "nothing outside RateLimitMiddleware has set the user. Add AuthenticationMiddleware outside it"
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class ASGIRequest(Request):
    """A request over an ASGI scope."""

    index: RouteIndex | None
    """The routes of the application, where they are known."""
    match: RouteMatch
    """The route of this request."""
    ahead: ReadAhead | None
    """The body that is read before the application runs."""

    def __init__(self, scope: Scope) -> None:
        self.native = scope
        self.index = None  # these are read faster on the instance than on its class
        self.match = ROUTES_UNKNOWN
        self.ahead = None

    @cached_property
    def own(self) -> Any:
        """The request of Starlette or FastAPI, without a body to read; this one where none of them is used."""
        framework = sys.modules.get("starlette.applications")
        if self.index is None and not (framework and isinstance(self.native.get("app"), framework.Starlette)):
            return self  # another framework, such as Litestar, keeps its application in the scope too
        from starlette import requests

        return (requests.Request if self.native["type"] == "http" else requests.HTTPConnection)(self.native)

    @property
    def method(self) -> str:
        return self.native["method"].upper()  # type: ignore[no-any-return]

    @cached_property
    def path_params(self) -> Mapping[str, object]:  # type: ignore[override]
        return {} if self.index is None else self.index.params(self)

    @property
    def conversions(self) -> Conversions:
        return self.match.conversions

    @property
    def path(self) -> str:
        scope = self.native
        root: str = scope.get("root_path", "")
        if not root:
            return scope["path"] or "/"
        # Starlette keeps the server's root path apart from those of its mounts, which rules include.
        return path_below(scope.get("app_root_path", root), scope["path"]) or "/"

    @property
    def sent_path(self) -> str:
        raw: bytes = self.native.get("raw_path") or b""
        return still_encoded(raw.partition(b"?")[0], self.native["path"] or "/", self.path)

    @property
    def peer(self) -> str | None:
        client = self.native.get("client")
        return client[0] if client else None

    @property
    def query_string(self) -> str:
        return self.native.get("query_string", b"").decode("latin-1")  # type: ignore[no-any-return]

    def header_lines(self, name: str) -> list[str]:
        wanted = name.encode("latin-1", "replace")
        return [value.decode("latin-1") for key, value in self.native["headers"] if key.lower() == wanted]

    def header_names(self) -> list[str]:
        return list(dict.fromkeys(key.decode("latin-1").lower() for key, _ in self.native["headers"]))

    @property
    def has_body(self) -> bool:
        return BODY in self.native or self.native["type"] != "http"

    def body(self, limit: int) -> object:
        return self.native[BODY] if self.native["type"] == "http" else None


def asgi_user(request: Request, limits: HttpLimiter) -> Any:
    """Return the user of Starlette's AuthenticationMiddleware: its identity, else its display name."""
    user = request.native.get("user")
    if "user" not in request.native and limits.in_force.without_user:
        warn_of_user(limits, _NO_USER)
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    for name in ("identity", "display_name"):
        try:
            if value := getattr(user, name, None):
                return value
        except NotImplementedError:
            continue  # Starlette's BaseUser leaves both to its subclasses
    return None
