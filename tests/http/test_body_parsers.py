"""Bodies are read as the parsers of the frameworks read them, and none takes long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlencode

from body_texts import BOUNDARY, END, FORM, JSON, MULTIPART, body, part
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from tables import each
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Request as WerkzeugRequest

from ratelimit_mw.http.body import parse_multipart
from ratelimit_mw.keys.features import INVALID

nasty = st.sampled_from(
    [
        "email=",
        "&email=bob",
        "ann",
        "email",
        "=",
        "&",
        ";",
        "%",
        "%65",
        "+",
        "ann@x.org",
        "bob",
        "\u00e9",
        "\x00",
        "\r\n",
        "%0d%0a",
        '{"email":"ann"}',
    ]
)


@given(st.lists(nasty, max_size=12).map("".join))
def test_a_form_is_read_as_the_frameworks_read_it(text: str) -> None:
    """All values in Starlette and Werkzeug are that of the limit, or the limit's value is invalid."""
    content = text.encode()
    ours = body(content, FORM).form("email")
    for theirs in (asyncio.run(parsed_by_starlette(content, FORM)), parsed_by_werkzeug(content, FORM)):
        assert ours is INVALID or set(theirs["email"]) == (set() if ours is None else {ours})


lines = st.sampled_from(
    [
        f"--{BOUNDARY}\r\n",
        f"--{BOUNDARY}\n",
        f"--{BOUNDARY}--\r\n",
        f"--{BOUNDARY} \r\n",
        f"\r\n--{BOUNDARY}\r\n",
        'Content-Disposition: form-data; name="email"\r\n',
        'Content-Disposition: form-data; name="other"\r\n',
        "Content-Disposition: form-data; name=email\r\n",
        'Content-Disposition: form-data; name="email"; filename="x"\r\n',
        'Content-Disposition: form-data; name="email"\n',
        "Content-Type: text/plain; charset=latin-1\r\n",
        "Content-Transfer-Encoding: base64\r\n",
        "X: 1\r\n",
        "\r\n",
        "\n",
        "\r",
        "ann\r\n",
        "bob",
        "\u00e9\r\n",
        " ",
    ]
)
parts = st.sampled_from([part("ann"), part("bob"), part("x", "other"), part("f", more='; filename="f"'), END]).map(
    bytes
)


@given(st.lists(st.one_of(lines.map(str.encode), parts), max_size=10).map(b"".join), st.booleans())
def test_a_multipart_form_is_read_as_the_frameworks_read_it(content: bytes, whole: bool) -> None:
    """Starlette and Werkzeug read every multipart form that the limit reads, with the same values."""
    content = content + END if whole else part("ann") + content + END
    mine = parse_multipart(content, MULTIPART)
    if mine is None:
        return
    expected: dict[str, list[str | None]] = {"email": [], "other": []}
    for name, value in mine:
        expected[name].append(value)
    assert asyncio.run(parsed_by_starlette(content, MULTIPART)) == expected
    werkzeug = parsed_by_werkzeug(content, MULTIPART)
    assert werkzeug == {name: [value for value in values if value is not None] for name, values in expected.items()}


async def parsed_by_starlette(content: bytes, kind: str) -> dict[str, list[str | None]]:
    async def stream() -> AsyncIterator[bytes]:
        yield content
        yield b""  # The stream of a request ends with this chunk.

    parser = (FormParser if kind == FORM else MultiPartParser)(Headers({"content-type": kind}), stream())  # type: ignore[arg-type]
    try:
        form = await parser.parse()
    except MultiPartException:
        return {}
    names = ("email", "other")
    fields = {name: [value if isinstance(value, str) else None for value in form.getlist(name)] for name in names}
    await form.close()
    return fields


def parsed_by_werkzeug(content: bytes, kind: str) -> dict[str, list[str]]:
    request = WerkzeugRequest.from_values(method="POST", data=content, content_type=kind)
    try:
        return {name: request.form.getlist(name) for name in ("email", "other")}
    except HTTPException:
        return {}
    finally:
        request.close()


# -- cost of parsing ---------------------------------------------------------------------------------------

BOUND = 65_536


@each(
    ("content", "kind"),
    [
        (b'{"a":' * (BOUND // 5), JSON),
        (b"[" + b"[]," * (BOUND // 3) + b"[]]", JSON),
        (b'{"a":"' + b"\\u0000" * (BOUND // 6) + b'"}', JSON),
        (b"[" + b",".join([b"9" * 4000] * 16) + b"]", JSON),
        (b"%" * BOUND, FORM),
        (b";" * BOUND, FORM),
        (b"=" * BOUND, FORM),
        (b"a=" + b"+%C3" * (BOUND // 4), FORM),
        (urlencode({f"k{i}": i for i in range(1000)}).encode(), FORM),
        (b"\r\n--a" * (BOUND // 5), "multipart/form-data; boundary=a"),
        (b"--a\r\nX:" + b" " * BOUND + b"\x01\r\n\r\n\r\n--a--", "multipart/form-data; boundary=a"),
        (b"--a\r\n" + b"X:1\r\n" * (BOUND // 5) + b"\r\n\r\n--a--", "multipart/form-data; boundary=a"),
        (b"x", "multipart/form-data;" + " " * BOUND),
        (b"x", "multipart/form-data; boundary=a" + " " * BOUND + "x"),
        (b"x", "application/" + "+" * BOUND),
    ],
)
def test_no_body_takes_long_to_parse(content: bytes, kind: str) -> None:
    """A body of the maximum size parses in linear time. Quadratic time would exceed the budget of the test."""
    assert body(content, kind).email("email") in (None, INVALID)
