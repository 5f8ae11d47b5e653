"""An ASGI scope as a request that features are read from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from ..http.request import Request
from .body import body_of

if TYPE_CHECKING:
    from .routes.index import RouteIndex

_log = logging.getLogger("ratelimit_mw")


class ASGIRequest(Request):
    """A request over an ASGI scope."""

    index: RouteIndex | None = None
    """The routes of the application, where they are known."""

    method: str = "GET"

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        self.native = scope
        if scope["type"] == "http":
            self.method = scope["method"].upper()

    @cached_property
    def path_params(self) -> Mapping[str, object]:  # type: ignore[override]
        return {} if self.index is None else self.index.params(self)

    def explain(self, error: Exception) -> None:
        """Add a hint to the error of a limit that the middleware does not see."""
        if self.index is not None:
            self.index.explain(error)

    @property
    def path(self) -> str:
        path: str = self.native["path"] or "/"
        root: str = self.native.get("root_path", "")
        if not root:
            return path
        # Starlette keeps the server's root path apart from those of its mounts, which rules include.
        root = self.native.get("app_root_path", root)
        return path[len(root) :] or "/" if root and (path == root or path.startswith(root + "/")) else path

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

    def body(self, limit: int) -> object:
        return body_of(self.native)

    def pick_value(self, values: list[str]) -> str:
        return values[-1]


def asgi_user(request: Request) -> str | None:
    """Return the user of Starlette's AuthenticationMiddleware: its identity, else its display name."""
    user = request.native.get("user")
    if "user" not in request.native:
        _warn_of_missing_users()
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    for name in ("identity", "display_name"):
        try:
            if value := getattr(user, name, None):
                return str(value)
        except NotImplementedError:
            continue  # Starlette's BaseUser leaves both to its subclasses
    return None


@cache
def _warn_of_missing_users() -> None:
    _log.warning(
        "a rule counts by user, but the user is not known: no AuthenticationMiddleware ran before RateLimitMiddleware."
        " The rule may never apply. Move it inside AuthenticationMiddleware, or pass features={'user': function}."
    )
