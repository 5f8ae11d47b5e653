"""``respond``: the response to a request below the mount. It knows no framework, and may wait for the store."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode

from ..errors import ConfigError, StoreError
from ..http.request import Request
from ..http.token import CHALLENGE
from ..limiter.limiter import Limiter
from ..rules.describe import function_name
from .access import CHANGE, Mount
from .changes import change, is_own_form, read_form, result_of, token_of
from .data import forget_store, read_data
from .page import dashboard_page, message_page
from .response import PageResponse, build_response, find_asset
from .view import parse_view

_METHODS: Final = ("GET", "HEAD")
_DATA: Final = "data.json"
_NOT_OWN: Final = (
    "The form does not come from this page, or its cookie is gone. Allow cookies, go back, load the page again and send"
    " the form once more. Behind a proxy without HTTPS, let the proxy keep the header Host."
)
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
    is_change = mount.writes and path == CHANGE
    methods = ("POST",) if is_change else _METHODS
    if request.method not in methods:
        what = b"Send a form of the page.\n" if is_change else b"This page is read-only: use GET.\n"
        return build_response(405, "text/plain", what, Allow=", ".join(methods))
    if is_change:
        return _change(limiter, request) if opens else _closed(mount, path)
    response = find_asset(path) or (_show(mount, limiter, request, path) if opens else _closed(mount, path))
    return response if request.method == "GET" else response._replace(body=b"")


def _show(mount: Mount, limiter: Limiter, request: Request, path: str) -> PageResponse:
    if path not in ("", _DATA):
        return build_response(404, "text/plain", b"There is no such page. Open the dashboard itself.\n")
    try:
        view = parse_view(request.query_string)
        data = read_data(limiter, view)
    except ConfigError as error:
        return _problem(400, path, "Cannot show this view", str(error))
    if path == _DATA:
        return _json(200, data)
    token, cookie = token_of(request) if mount.writes else (None, "")
    response = build_response(200, _HTML, dashboard_page(data, view, token, result_of(request.query_string)))
    return response._replace(headers={**response.headers, "Set-Cookie": cookie}) if cookie else response


def _change(limiter: Limiter, request: Request) -> PageResponse:
    """Run the operation of a form, and redirect to the page, which shows the result."""
    try:
        form = read_form(request)
        if not is_own_form(request, form):
            return _problem(403, CHANGE, "Nothing was changed", _NOT_OWN)
        view, is_done = parse_view(request.query_string), change(limiter, form)
    except ConfigError as error:
        return _problem(400, CHANGE, "Nothing was changed", str(error))
    except StoreError as error:
        return _problem(503, CHANGE, "The change failed", str(error))
    forget_store(limiter)
    query = urlencode([*view.fields, ("done" if is_done else "unchanged", form["operation"])])
    return build_response(303, "text/plain", b"", Location=f"./?{query}")


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
    return build_response(status, _HTML, message_page(title, problem, "./" if path == CHANGE else "?"))


def _json(status: int, content: dict[str, Any]) -> PageResponse:
    return build_response(status, "application/json", f"{json.dumps(content, default=_text_of)}\n".encode())


def _text_of(value: object) -> str:
    """Return a value that is no JSON, such as a function in an option of a rule, as text."""
    return function_name(value) or str(value)
