"""Keys contain the value that the application sees, or a value that no client can choose."""

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote_plus

import django_calls  # noqa: F401 - its settings
import flask
from calls import http_scope
from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIRequest as DjangoOverASGI
from django.core.handlers.wsgi import WSGIRequest as DjangoOverWSGI
from starlette.formparsers import MultiPartException
from starlette.requests import Request as StarletteRequest
from tables import each
from werkzeug.exceptions import HTTPException
from wsgi_calls import environ_of

from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.django.request import DjangoRequest
from ratelimit_mw.flask.hooks import FlaskRequest
from ratelimit_mw.http.body import Body, body_feature
from ratelimit_mw.keys.features import INVALID

# REST framework reads Django's settings on import. The import of django_calls configures them.
from rest_framework.exceptions import APIException  # isort: skip
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser  # isort: skip
from rest_framework.request import Request as RestRequest  # isort: skip

Pair = tuple[Any, Any]
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


def scope_of(cookie: str = "", query: str = "", kind: str = "") -> dict[str, Any]:
    headers = [(b"cookie", cookie.encode("latin-1")), (b"content-type", kind.encode())]
    return http_scope(method="POST", query_string=query.encode(), headers=headers)


def environ(cookie: str = "", query: str = "", kind: str = "", body: bytes = b"") -> dict[str, Any]:
    sent = {"QUERY_STRING": query, "CONTENT_TYPE": kind, "CONTENT_LENGTH": str(len(body)), "REQUEST_METHOD": "POST"}
    return environ_of(HTTP_COOKIE=cookie, **sent, **{"wsgi.input": io.BytesIO(body)})


def over_asgi(kind: str = "", body: bytes = b"", **fields: str) -> Any:
    return DjangoOverASGI(scope_of(kind=kind, **fields), io.BytesIO(body))


# -- cookies -----------------------------------------------------------------------------------------------


def in_starlette(cookie: str) -> Pair:
    scope = scope_of(cookie)
    return ASGIRequest(scope).cookie("sid"), StarletteRequest(scope).cookies.get("sid")


def in_flask(cookie: str) -> Pair:
    request = flask.Request(environ(cookie))
    return FlaskRequest(request).cookie("sid"), request.cookies.get("sid")


def in_django(cookie: str) -> Pair:
    request = DjangoOverWSGI(environ(cookie))
    return DjangoRequest(request).cookie("sid"), request.COOKIES.get("sid")


def in_async_django(cookie: str) -> Pair:
    request = over_asgi(cookie=cookie)
    return DjangoRequest(request).cookie("sid"), request.COOKIES.get("sid")


everywhere = each("read_both", [in_starlette, in_flask, in_django, in_async_django])
SAME = ["sid=abc", 'sid="abc"', r'sid="\141bc"', r'sid="a\142\c"', "x=1; sid = abc ;y", "sid=abc; sid=abc"]
OTHERS = ["sid=victim", "\xa0sid=victim", 'sid="victim', "sid=", r'sid="\166"']


@everywhere
def test_a_cookie_has_one_value_or_is_invalid(read_both: Callable[[str], Pair]) -> None:
    """Quotes, escapes and spaces do not matter, and case does. Frameworks show the first or the last of two cookies."""
    assert [read_both(cookie) for cookie in SAME] == [("abc", "abc")] * len(SAME)
    assert read_both("SID=abc; sid2=abc; xsid=abc") == (None, None)
    for other in OTHERS:
        assert read_both(f"sid=abc; {other}")[0] is read_both(f"{other}; sid=abc")[0] is INVALID, other


# -- charsets ----------------------------------------------------------------------------------------------

OTHER_NAMES = ["utf-7", '"UTF-7"', "utf-8-sig", "utf-16", "latin-1", '"utf-8', "utf-8 utf-7", "utf-8; charset=utf-7"]
KINDS = [f"; charset={name}" for name in (*OTHER_NAMES, "nonsense")]
KINDS += [";CharSet = utf-7", "; charset*=''utf-7", "; charset*0=utf; charset*1=-7"]
PLAIN = ["", "; charset=utf-8", ";charset=UTF8", '; CharSet="Utf-8" ', "; charset=us-ascii; x=1"]
TEXTS = ["ann@b.c", "+AGE-nn@b.c", "a+AG4-n@b.c", "\u00e9@b.c", "\ufeffann@b.c"]


def as_json(text: str) -> bytes:
    return json.dumps({"email": text}, ensure_ascii=False).encode()


def as_form(text: str) -> bytes:
    return f"email={quote_plus(text)}".encode()


def as_parts(text: str) -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="email"\r\n\r\n{text}\r\n--b--\r\n'.encode()


PARTS = "multipart/form-data; boundary=b"
WRITTEN = [(JSON, as_json), (FORM, as_form), (PARTS, as_parts)]


def is_json(kind: str) -> bool:
    return kind.lower().startswith(JSON)


def field(request: Any, kind: str) -> Any:
    read = body_feature("json:email" if is_json(kind) else "form:email", 65_536)
    assert read
    return read(request)


def body_in_starlette(kind: str, body: bytes) -> Pair:
    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def theirs() -> Any:
        request = StarletteRequest(scope_of(kind=kind), receive)
        if is_json(kind):
            return (await request.json()).get("email")
        async with request.form() as form:
            return form.get("email")

    request = ASGIRequest(scope_of(kind=kind))
    request.parsed_body = Body(body, kind)
    return field(request, kind), read_or_none(lambda: asyncio.run(theirs()))


def body_in_flask(kind: str, body: bytes) -> Pair:
    with flask.Request(environ(kind=kind, body=body)) as request:
        ours = field(FlaskRequest(request), kind)
        return ours, read_or_none(lambda: (request.get_json() if is_json(kind) else request.form).get("email"))


def body_in_django(kind: str, body: bytes) -> Pair:
    request = DjangoOverWSGI(environ(kind=kind, body=body))
    ours = field(DjangoRequest(request), kind)
    return ours, read_or_none(lambda: (json.loads(request.body) if is_json(kind) else request.POST).get("email"))


def body_in_rest_framework(kind: str, body: bytes) -> Pair:
    request = DjangoOverWSGI(environ(kind=kind, body=body))
    ours = field(DjangoRequest(request), kind)
    rest = RestRequest(request, parsers=[JSONParser(), FormParser(), MultiPartParser()])
    return ours, read_or_none(lambda: rest.data.get("email"))


def read_or_none(read: Callable[[], Any]) -> Any:
    """Return None when the framework rejects the body."""
    try:
        return read()
    except (ValueError, MultiPartException, HTTPException, APIException, BadRequest):
        return None


UNUSUAL = [
    (JSON, b'{"email": "bob@b.c", "email": "ann@b.c"}'),
    (JSON, b'{"\\u0065mail": "\\u0061nn@b.c"}'),
    ("Application/JSON", b'{"email": "ann@b.c"}'),
    (FORM, b"email=ann%40b.c&email=bob%40b.c"),
    (FORM, b"%65mail=%61nn@b.c"),
    (FORM, b"email=ann+@b.c"),
    (FORM.upper(), b"email=a;email=b"),
    (FORM, b"email=\xc3\xa9"),
    (PARTS, as_parts("x").replace(b'"email"', b'" email"')),
    (PARTS, as_parts("x").replace(b'"email"', b'"x"; filename=""; name="email"')),
]


def written_bodies() -> Iterator[tuple[str, bytes, Any]]:
    """Yield content types and bodies, and the value that the limit reads; None where any value is right."""
    for kind, write in WRITTEN:
        for text in ("ann@b.c", "a+AG4-n@b.c"):
            yield kind, write(text), text
            for charset in PLAIN:
                yield kind + charset, write(text), None
        for text in TEXTS:
            for charset in KINDS:
                yield kind + charset, write(text), INVALID
    for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
        yield JSON, as_json("ann@b.c").decode().encode(encoding), "ann@b.c"
    for kind, body in UNUSUAL:
        yield kind, body, None


@each("read_both", [body_in_starlette, body_in_flask, body_in_django, body_in_rest_framework])
@each(("kind", "body", "expected"), written_bodies())
def test_a_field_of_a_body_has_the_value_of_the_application(
    read_both: Any, kind: str, body: bytes, expected: Any
) -> None:
    """Or it is invalid, or the application rejects the body. A charset that some frameworks decode is invalid."""
    ours, theirs = read_both(kind, body)
    assert expected in (None, ours)
    assert ours is INVALID or theirs in (None, ours)


@each("charset", KINDS)
def test_a_query_with_a_charset_of_django_is_invalid(charset: str) -> None:
    """Django decodes the query with the charset of the content type."""
    for request in (
        DjangoOverWSGI(environ(query="q=%2BAHM-ecret", kind=JSON + charset)),
        over_asgi(query="q=%2BAHM-ecret", kind=JSON + charset),
    ):
        assert DjangoRequest(request).query_values is None
    plain = DjangoOverWSGI(environ(query="q=%2BAHM-ecret", kind=f"{JSON}; charset=utf-8"))
    assert (DjangoRequest(plain).query_values, plain.GET["q"]) == ({"q": ["+AHM-ecret"]}, "+AHM-ecret")
