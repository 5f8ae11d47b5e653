"""An ASGI scope as a request that features are read from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache, cached_property

from ..errors import MissingMiddlewareError
from ..http.request import Request
from .body import body_of
from .routes.index import RouteIndex

__all__ = ["ASGIRequest", "user_of"]

_log = logging.getLogger("ratelimit_mw")


class ASGIRequest(Request):
    """A request over an ASGI scope. ``index`` knows the routes of its application, where that has any."""

    index: RouteIndex | None = None

    @cached_property
    def path_params(self) -> Mapping[str, object]:  # type: ignore[override]
        return {} if self.index is None else self.index.params(self)

    def explain(self, error: Exception) -> None:
        """Where a limit was hidden from the middleware, the error says by what."""
        if isinstance(error, MissingMiddlewareError) and self.index is not None:
            self.index.explain(error)

    @property
    def method(self) -> str:
        return self.native["method"].upper()  # type: ignore[no-any-return]

    @property
    def path(self) -> str:
        path: str = self.native["path"] or "/"
        root: str = self.native.get("root_path", "")
        if not root:
            return path
        # Starlette keeps what the server was told apart from what its mounts add; rules know the mounts.
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

    def one_of(self, values: list[str]) -> str:
        return values[-1]


def user_of(request: Request) -> str | None:
    """The user as Starlette's AuthenticationMiddleware leaves it, when it ran before: what is unique comes first."""
    user = request.native.get("user")
    if "user" not in request.native:
        _warn_of_no_users()
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    for name in ("identity", "display_name"):
        try:
            if found := getattr(user, name, None):
                return str(found)
        except NotImplementedError:
            continue  # Starlette's BaseUser leaves both to its subclasses
    return None


@cache
def _warn_of_no_users() -> None:
    """Once: such a limit may never apply."""
    _log.warning(
        "a rule counts by user, and nobody said whose request this is: no AuthenticationMiddleware ran before"
        " RateLimitMiddleware, which has no features={'user': function} either"
    )
