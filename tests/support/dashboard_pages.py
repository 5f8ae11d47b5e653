"""Requests to the dashboard without a framework, and what a page shows."""

import io
import json
from html.parser import HTMLParser
from typing import Any, Final

from ratelimit_mw import Limiter
from ratelimit_mw.dashboard.core import Allow, Mount, PageResponse, respond
from ratelimit_mw.wsgi.exchange import WSGIRequest

_VOID: Final = {"link", "meta", "input"}


def ask(
    limiter: Limiter,
    path: str = "",
    query: str = "",
    method: str = "GET",
    opens: bool = True,
    allow: Allow | None = None,
    writes: bool = False,
    body: bytes = b"",
    **headers: str,
) -> PageResponse:
    """Return the response to a request below the mount."""
    environ = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    environ |= {"REQUEST_METHOD": method, "PATH_INFO": f"/{path}", "QUERY_STRING": query}
    request = WSGIRequest({**environ, "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)})
    return respond(Mount(limiter, allow, writes), limiter, request, path, opens)


def page(limiter: Limiter, query: str = "", **options: Any) -> str:
    """Return the HTML of the page."""
    response = ask(limiter, "", query, **options)
    assert response.status == 200
    return response.body.decode()


def data(limiter: Limiter, query: str = "") -> Any:
    """Return what ``data.json`` has."""
    return json.loads(ask(limiter, "data.json", query).body)


class Elements(HTMLParser):
    """The elements of a page, and the text that a visitor without a script sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: list[tuple[str, bool]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._inside.append((tag, tag == "template" or "hidden" in dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not any(is_hidden for _, is_hidden in self._inside):
            self.text += data


def shown(page: str) -> str:
    """Return the text of a page that a visitor without a script sees, with single spaces."""
    return " ".join(Elements(page).text.split())
