"""What applications read of a request: with Starlette, Werkzeug and Django, and by hand from the server's data."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, parse_qsl

from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Request as WerkzeugRequest

from .echo import SERVER_KNOWS_PROXIES, UNREAD, attempt
from .words import TRUTH

Readings = dict[str, list[Any]]
REJECTED = (
    ValueError,
    KeyError,
    OSError,
    RecursionError,
    HTTPException,
    StarletteHTTPException,
    MultiPartException,
    ClientDisconnect,
    CookieError,
)


def field_of(document: Any, name: str) -> Any:
    """Return a field of a JSON document as an application uses it."""
    value = document.get(name) if isinstance(document, dict) else None
    return "a list or an object" if isinstance(value, list | dict) else value


async def in_starlette(request: Any) -> Readings:
    """Read with Starlette, the body too."""
    await request.body()
    form: Any = UNREAD
    document: Any = UNREAD
    with suppress(*REJECTED):
        form = await request.form()
    with suppress(*REJECTED):
        document = await request.json()
    truth = request.headers.get(TRUTH)
    return {
        "ip": [request.client.host if truth is None or SERVER_KNOWS_PROXIES else truth],
        "method": [request.method],
        "host": [attempt(lambda: request.url.hostname or "", REJECTED), request.headers.get("host", "")],
        "header:x-key": _ends(request.headers.getlist("x-key")),
        "cookie:sid": [request.cookies.get("sid")],
        "query:q": _ends(request.query_params.getlist("q")),
        "form:q": [UNREAD] if form is UNREAD else _ends([_text(value) for value in form.getlist("q")]),
        "json:q": [UNREAD if document is UNREAD else field_of(document, "q")],
        "email": [
            *([] if form is UNREAD else _ends([_text(value) for value in form.getlist("email")])),
            UNREAD if document is UNREAD else field_of(document, "email"),
        ],
    }


def in_werkzeug(request: WerkzeugRequest) -> Readings:
    """Read with Werkzeug or Flask, the body too."""
    document = attempt(lambda: request.get_json(force=True), REJECTED)
    form = attempt(lambda: [*request.form.getlist("q"), *map(_text, request.files.getlist("q"))], REJECTED)
    emails = attempt(lambda: request.form.getlist("email"), REJECTED)
    return {
        "ip": [request.headers.get(TRUTH, request.remote_addr)],
        "method": [request.method],
        "path": [request.path],
        "host": [attempt(lambda: request.host, REJECTED) or UNREAD],  # "" for a text that is no host
        "header:x-key": _ends(request.headers.getlist("x-key")),
        "cookie:sid": [request.cookies.get("sid")],
        "query:q": _ends(request.args.getlist("q")),
        "form:q": [UNREAD] if form is UNREAD else _ends(form),
        "json:q": [UNREAD if document is UNREAD else field_of(document, "q")],
        "email": [*_ends(emails), UNREAD if document is UNREAD else field_of(document, "email")],
    }


def in_django(request: Any) -> Readings:
    """Read with Django, the body too."""
    from django.core.exceptions import BadRequest, DisallowedHost, SuspiciousOperation
    from django.http import UnreadablePostError
    from django.http.multipartparser import MultiPartParserError

    rejected = (*REJECTED, BadRequest, DisallowedHost, SuspiciousOperation, UnreadablePostError, MultiPartParserError)
    document = attempt(lambda: json.loads(request.body), rejected)
    form = attempt(lambda: [*request.POST.getlist("q"), *map(_text, request.FILES.getlist("q"))], rejected)
    emails = attempt(lambda: request.POST.getlist("email"), rejected)
    return {
        "ip": [request.headers.get(TRUTH, request.META["REMOTE_ADDR"])],
        "method": [request.method],
        "path": [request.path_info],
        "host": [attempt(request.get_host, rejected)],
        "header:x-key": [request.headers.get("x-key")],
        "cookie:sid": [request.COOKIES.get("sid")],
        "query:q": _ends(attempt(lambda: request.GET.getlist("q"), rejected)),
        "form:q": [UNREAD] if form is UNREAD else _ends(form),
        "json:q": [UNREAD if document is UNREAD else field_of(document, "q")],
        "email": [*_ends(emails), UNREAD if document is UNREAD else field_of(document, "email")],
    }


def by_hand(headers: Mapping[str, list[str]], query: str) -> Readings:
    """Read as small applications do, which parse the server's data themselves."""
    cookies = ";".join(headers.get("cookie", []))
    return {
        "header:x-key": [*_ends(headers.get("x-key", [])), ", ".join(headers.get("x-key", []))],
        "cookie:sid": [attempt(lambda: SimpleCookie(cookies)["sid"].value, REJECTED)],
        "query:q": [
            *_ends(attempt(lambda: parse_qs(query, keep_blank_values=True).get("q", []), REJECTED)),
            attempt(lambda: dict(parse_qsl(query, keep_blank_values=True)).get("q"), REJECTED),
        ],
    }


def _ends(values: Any) -> list[Any]:
    """Return the first and the last of several values: frameworks and applications use either."""
    if values is UNREAD:
        return [UNREAD]
    return [values[0], values[-1]] if values else [None]


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else "a file"


def merged(*several: Iterable[tuple[str, list[Any]]]) -> Readings:
    """Return all readings of each feature."""
    readings: Readings = {}
    for pairs in several:
        for name, values in pairs:
            readings.setdefault(name, []).extend(values)
    return readings
