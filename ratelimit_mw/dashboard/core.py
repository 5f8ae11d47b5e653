"""``respond``: the response to a request below the mount. It knows no framework, and may wait for the store."""

from __future__ import annotations

import json
from typing import Final

from ..errors import ConfigError
from ..http.token import CHALLENGE
from ..limiter.limiter import Limiter
from ..rules.describe import function_name
from .assets import find_asset
from .data import DashboardData
from .page import closed_page, page, problem_page
from .response import PageResponse, build_response
from .view import parse_view

_METHODS: Final = ("GET", "HEAD")
_HTML: Final = "text/html; charset=utf-8"


def respond(
    limiter: Limiter, method: str, path: str, query: str, is_open: bool, has_check: bool = False
) -> PageResponse:
    """Return the response to a request.

    Args:
        limiter: The limiter to show.
        method: The method of the request.
        path: The path below the mount, decoded, without a slash at its start: "" for the page.
        query: The query, still encoded, without the question mark.
        is_open: Whether the client may see the dashboard.
        has_check: Whether the application has an ``allow``. The closed page then has no advice for developers.

    Returns:
        The response. The body is empty for ``HEAD``.
    """
    if method not in _METHODS:
        return build_response(405, "text/plain", b"This page is read-only: use GET.\n", Allow=", ".join(_METHODS))
    response = find_asset(path) or _respond(limiter, path, query, is_open, has_check)
    return response if method == "GET" else response._replace(body=b"")


def _respond(limiter: Limiter, path: str, query: str, is_open: bool, has_check: bool) -> PageResponse:
    if not is_open:
        closed = _problem(403 if has_check else 401, path, "This dashboard is closed to you.", closed_page(has_check))
        return closed if has_check else closed._replace(headers={**closed.headers, "WWW-Authenticate": CHALLENGE})
    if path not in ("", "data.json"):
        return build_response(404, "text/plain", b"There is no such page. Open the dashboard itself.\n")
    try:
        data = DashboardData(limiter, parse_view(query))
    except ConfigError as error:
        return _problem(400, path, str(error), problem_page(str(error)))
    if path == "data.json":
        return build_response(200, "application/json", f"{json.dumps(data.as_json(), default=_text_of)}\n".encode())
    return _html(200, page(data))


def _problem(status: int, path: str, text: str, html: str) -> PageResponse:
    """Return why there is no page; as JSON for the programs that read ``data.json``."""
    if path == "data.json":
        return build_response(status, "application/json", f"{json.dumps({'error': text})}\n".encode())
    return _html(status, html)


def _html(status: int, text: str) -> PageResponse:
    """Return a page as UTF-8. Half a surrogate pair, which a value may contain, becomes a question mark."""
    return build_response(status, _HTML, text.encode("utf-8", "replace"))


def _text_of(value: object) -> str:
    """Return a value that is no JSON, such as a function in an option of a rule, as text."""
    return function_name(value) or str(value)
