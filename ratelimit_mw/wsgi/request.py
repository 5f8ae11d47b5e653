"""A WSGI environ as a request that features are read from."""

from collections.abc import MutableMapping
from typing import Any, Final

from ..http.request import Request, still_encoded
from .body import read_body

VERDICT: Final = "ratelimit_mw.verdict"
"""The key of the environ where the application finds the verdict."""


class WSGIRequest(Request):
    """A request over a WSGI environ."""

    is_late = False
    """Whether code of the application has run since the request was decided."""

    def __init__(self, environ: MutableMapping[str, Any]) -> None:
        self.native = environ

    @property
    def method(self) -> str:
        return self.native["REQUEST_METHOD"].upper()  # type: ignore[no-any-return]

    @property
    def path(self) -> str:
        return self._decode("PATH_INFO") or "/"

    @property
    def sent_path(self) -> str:
        path, raw = self.path, self.native.get("REQUEST_URI") or self.native.get("RAW_URI") or ""
        if "%" in raw:
            path = still_encoded(
                raw.partition("?")[0].encode("latin-1", "replace"), self._decode("SCRIPT_NAME") + path, path
            )
        return self._decode("PATH_INFO", "surrogateescape") if "\ufffd" in path else path

    def _decode(self, name: str, errors: str = "replace") -> str:
        text: str = self.native.get(name, "")
        return text.encode("latin-1").decode(errors=errors)

    @property
    def peer(self) -> str | None:
        address = self.native.get("REMOTE_ADDR") or None
        # waitress writes these two texts for a Unix socket.
        return None if address == "localhost" and self.native.get("REMOTE_PORT") == "None" else address

    @property
    def query_string(self) -> str:
        return self.native.get("QUERY_STRING", "")  # type: ignore[no-any-return]

    def header_lines(self, name: str) -> list[str]:
        """Return one value at most: WSGI servers join lines, and an underscore in a name is lost."""
        key = name.upper().replace("-", "_")
        value = self.native.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}")
        return [] if value is None else [value]

    def header_names(self) -> list[str]:
        return [key[5:].lower().replace("_", "-") for key in self.native if key.startswith("HTTP_")]

    def body(self, limit: int) -> object:
        return read_body(self.native, limit, self.is_late)


def remote_user(request: Request) -> str | None:
    """Return the user that the server has authenticated."""
    return request.native.get("REMOTE_USER") or None
