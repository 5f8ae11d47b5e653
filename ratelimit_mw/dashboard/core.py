"""``respond``: the response to a request below the mount. It knows no framework, and may wait for the store."""

from __future__ import annotations

import json
from typing import Any, Final

from ..errors import ConfigError
from ..http.request import Request
from ..http.token import CHALLENGE
from ..limiter.limiter import Limiter
from ..rules.describe import function_name
from .access import Mount
from .data import read_data
from .page import dashboard_page, message_page
from .response import PageResponse, build_response, find_asset
from .view import parse_view

_METHODS: Final = ("GET", "HEAD")
_DATA: Final = "data.json"
_HTML: Final = "text/html; charset=utf-8"


def respond(mount: Mount, limiter: Limiter, request: Request, path: str, opens: bool) -> PageResponse:
    """Return the response to a request.

    Args:
        mount: The arguments of ``dashboard``.
        limiter: The limiter to show.
        request: The request.
        path: The path below the mount, decoded, without a slash at its start: "" for the page.
        opens: Whether the client may see the dashboard.

    Returns:
        The response. The body is empty for ``HEAD``.
    """
    if request.method not in _METHODS:
        return build_response(405, "text/plain", b"This page is read-only: use GET.\n", Allow=", ".join(_METHODS))
    response = find_asset(path) or (_show(limiter, request, path) if opens else _closed(mount, path))
    return response if request.method == "GET" else response._replace(body=b"")


def _show(limiter: Limiter, request: Request, path: str) -> PageResponse:
    if path not in ("", _DATA):
        return build_response(404, "text/plain", b"There is no such page. Open the dashboard itself.\n")
    try:
        view = parse_view(request.query_string)
        data = read_data(limiter, view)
    except ConfigError as error:
        return _problem(400, path, "Cannot show this view", str(error))
    if path == _DATA:
        return _json(200, data)
    return build_response(200, _HTML, dashboard_page(data, view))


def _closed(mount: Mount, path: str) -> PageResponse:
    """Return the response to a client that may not see the dashboard. The advice is for developers."""
    has_check = mount.allow is not None
    if path == _DATA:
        response = _json(403 if has_check else 401, {"error": "This dashboard is closed to you."})
    else:
        page = message_page("This dashboard is closed", has_check=has_check)
        response = build_response(403 if has_check else 401, _HTML, page)
    return response if has_check else response._replace(headers={**response.headers, "WWW-Authenticate": CHALLENGE})


def _problem(status: int, path: str, title: str, problem: str) -> PageResponse:
    """Return why there is no page; as JSON for the programs that read ``data.json``."""
    if path == _DATA:
        return _json(status, {"error": problem})
    return build_response(status, _HTML, message_page(title, problem))


def _json(status: int, content: dict[str, Any]) -> PageResponse:
    return build_response(status, "application/json", f"{json.dumps(content, default=_text_of)}\n".encode())


def _text_of(value: object) -> str:
    """Return a value that is no JSON, such as a function in an option of a rule, as text."""
    return function_name(value) or str(value)
