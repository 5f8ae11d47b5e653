"""Features of requests are the same under ASGI and WSGI, and as the frameworks read them."""

from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from calls import BODY, START, http_scope, limited, limiter, send_bare, sending
from hypothesis import strategies as st
from tables import each
from wsgi_calls import listing

from ratelimit_mw import ConfigError
from ratelimit_mw.asgi.middleware import RateLimitMiddleware
from ratelimit_mw.asgi.request import ASGIRequest
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.keys.parts import part_of
from ratelimit_mw.wsgi.exchange import WSGIRequest
from ratelimit_mw.wsgi.middleware import RateLimitMiddleware as WSGIMiddleware


def asgi(query: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None, **scope: Any) -> ASGIRequest:
    return ASGIRequest(http_scope(query_string=query, headers=headers or [], **scope))


def wsgi(query: str = "", **headers: str) -> WSGIRequest:
    return WSGIRequest({"QUERY_STRING": query, "REQUEST_METHOD": "GET", **headers})


@each(
    ("query", "name", "value"),
    [
        ("a=1&b=2", "b", "2"),
        ("a=1&a=2", "a", INVALID),
        ("a=1&a=", "a", INVALID),
        ("a=1&%61=2", "a", INVALID),
        ("a=1&a=%31", "a", "1"),
        ("a=", "a", ""),
        ("a", "a", ""),
        ("b=1&b=2", "a", None),
        ("a=%C3%A9+x", "a", "\u00e9 x"),
        ("a=%ff", "a", INVALID),
        ("a=1;b=2", "a", INVALID),
        ("x=1;a=2", "a", INVALID),
        ("a=1&x=1;2", "a", "1"),
        ("a=1%3B2", "a", "1;2"),
        ("a=1" + ";b" * 1000, "a", INVALID),
        ("%61=1", "a", "1"),
        ("", "a", None),
    ],
)
def test_differing_values_of_a_query_field_are_invalid(query: str, name: str, value: object) -> None:
    """Different values of one name are invalid: Starlette shows the last and Werkzeug the first, Falcon a list.

    A semicolon is a part of the value for these, and starts a field for WebOb.
    """
    assert asgi(query.encode()).query_field(name) == wsgi(query).query_field(name) == value


@each(
    ("lines", "cookies"),
    [
        ([], {}),
        (["a=1; b=2"], {"a": "1", "b": "2"}),
        (["a=1", "b=2"], {"a": "1", "b": "2"}),
        (['a="1 2"; b=x=y;c'], {"a": "1 2", "b": "x=y", "c": ""}),
        ([r'a="\061\"\2\\"; b=x'], {"a": '1"2\\', "b": "x"}),
        (["a = 1;; =x; a=2"], {"a": INVALID}),
        (["a=1 b=2"], {"a": INVALID, "b": INVALID}),
        ([r'a="\351"; b=x'], {"a": INVALID, "b": "x"}),  # an accent in Latin-1, or half of a character
    ],
)
def test_a_cookie_is_read_as_the_framework_reads_it(lines: list[str], cookies: dict[str, str]) -> None:
    """The parser reads all lines, quotes and escapes. Two values of a name are invalid."""
    request = asgi(headers=[(b"cookie", line.encode()) for line in lines])
    assert {name: value for name in "abc" if (value := request.cookie(name)) is not None} == cookies


def test_an_unusual_cookie_leaves_the_others_valid() -> None:
    """Applications and scripts set cookies with spaces and quotes."""
    request = asgi(headers=[(b"cookie", b'sid=abc; prefs={"a": "b c"}; note=hello world; list="a, \\"b\\""')])
    assert [request.cookie(name) for name in ("sid", "list", "prefs", "note")] == ["abc", 'a, "b"', INVALID, INVALID]


def test_several_lines_of_one_header_are_invalid() -> None:
    """Starlette shows the first line and Django all, so a client could get a new count with each added line."""
    headers = asgi(headers=[(b"x-a", b"1"), (b"X-A", b"2"), (b"x-b", b"3"), (b"x-b", b"3")])
    assert (headers.header("x-a"), headers.header("x-b"), headers.header("x-c")) == (INVALID, INVALID, None)


def test_the_length_of_a_chunked_body_is_invalid() -> None:
    """Servers ignore it and some pass it on, so a client could upload any number of bytes for a cost of 1."""
    length, chunked = (b"content-length", b"1"), (b"Transfer-Encoding", b"chunked")
    values = [asgi(headers=headers).header("content-length") for headers in ([length], [length, chunked], [chunked])]
    assert values == ["1", INVALID, None]
    sent = [wsgi(CONTENT_LENGTH=text, HTTP_TRANSFER_ENCODING="chunked").header("content-length") for text in ("1", "")]
    assert sent == [INVALID, ""]  # a server may write an empty text for a missing length


def test_an_unescaped_query_is_invalid() -> None:
    """Some frameworks read its bytes as UTF-8, others as Latin-1."""
    sent = asgi("q=\u00e9".encode()), wsgi("q=\u00e9".encode().decode("latin-1")), asgi("q=\u00e9;p".encode())
    assert [request.query_field("q") for request in sent] == [INVALID] * 3


def test_headers_are_a_case_insensitive_mapping() -> None:
    """Names ignore case, commas join repeated lines, and a missing header is not in the mapping."""
    headers = asgi(headers=[(b"X-A", b"1"), (b"x-b", b"\xe9\x1f"), (b"x-a", b"2")]).headers
    assert (headers["x-A"], headers["X-B"], headers.get("x-c")) == ("1, 2", "\u00e9\x1f", None)
    assert (list(headers), len(headers)) == (["x-a", "x-b"], 2)
    assert headers.get("\u0142") is None
    fields = wsgi(HTTP_X_A="1", CONTENT_TYPE="text/plain", CONTENT_LENGTH="3").headers
    assert (fields["X-a"], fields["content-length"]) == ("1", "3")
    assert list(fields) == ["x-a", "content-type", "content-length"]


def test_headers_are_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may send a thousand of them, so they are not searched once for each name."""
    monkeypatch.setattr(ASGIRequest, "header_lines", None)
    monkeypatch.setattr(WSGIRequest, "header_lines", None)
    assert asgi(headers=[(b"x-%d" % number, b"1") for number in range(1000)]).headers["X-999"] == "1"
    assert wsgi(HTTP_X_A="1").headers["X-A"] == "1"


@each(
    ("lines", "host"),
    [
        ([], INVALID),
        (["Example.COM"], "example.com"),
        (["example.com:8080"], "example.com"),
        (["example.com."], "example.com"),
        (["example.com "], INVALID),
        (["[2001:DB8::1]:80"], "[2001:db8::1]"),
        (["[2001:DB8:0:0::1]"], "[2001:db8::1]"),
        (["[2001:db8::1"], INVALID),
        (["[1::2::3]"], INVALID),
        (["a.example", "A.example.:80"], "a.example"),
        (["a.example", "b.example"], INVALID),
        (["a.example,b.example"], INVALID),
        (["user@a.example"], INVALID),
        (["a" * 300], INVALID),
        ([":80"], INVALID),
        ([" "], INVALID),
        (["a.example:"], INVALID),
    ],
)
def test_the_host_is_normalized(lines: list[str], host: object) -> None:
    """The host is lower case without port and final dot. Lines that differ, text that is no host, and none: invalid."""
    assert asgi(headers=[(b"host", line.encode()) for line in lines]).host == host


@each(
    ("name", "hint"),
    [
        ("usr", "Did you mean 'user'? If not, pass features={'usr': "),
        ("users", "Did you mean 'user'? If not, pass "),
        ("ips", "Did you mean 'ip'? If not, pass "),
        ("tenants", "Did you mean 'tenant'? If not, pass "),
        ("plan", "provides it. Pass features={'plan': "),
        ("region", "provides it. Set region_database or region_header, or pass "),
        ("cart", "provides it. Pass features="),
    ],
)
@each("option", ["key", "match", "per"])
def test_a_feature_that_nothing_provides_suggests_a_near_name(name: str, hint: str, option: str) -> None:
    """The names of your own functions count, and a name that is known is no suggestion for itself."""
    uses: dict[str, Any] = {"key": [name], "match": {name: "x"}, "per": {name: {"x": "1/minute"}}}
    rate = limiter("1/minute", **{option: uses[option]})
    for middleware in (RateLimitMiddleware, WSGIMiddleware):
        with pytest.raises(ConfigError, match=f"uses the feature '{name}', but nothing provides it") as raised:
            middleware(sending(START, BODY), limiter=rate, features={"tenant": str})  # type: ignore[operator]
        assert hint in str(raised.value)


def test_a_parameter_of_a_route_has_no_near_name() -> None:
    """A plain WSGI application has no routes. The path would not be what the rule needs."""
    with pytest.raises(ConfigError, match=r"'path:id', but nothing provides it\. Pass features="):
        WSGIMiddleware(listing, limiter=limiter("1/minute", key=["path:id"]))


@each("name", ["users", "hosts", "plans", "usr", "header:X-Tenant", "post:tenant"])
def test_a_function_of_yours_provides_a_feature_of_any_name(name: str) -> None:
    """Also a name near a built-in one. A rule and a function may spell it differently."""
    app = limited(sending(START, BODY), limiter("1/minute", key=[name]), features={name: lambda request: "x"})
    assert [send_bare(app, http_scope())[0]["status"] for _ in range(2)] == [200, 429]


def test_a_feature_function_replaces_a_built_in_feature() -> None:
    """A feature function can replace every built-in feature, including ``endpoint``."""
    app = limited(
        sending(START, BODY),
        limiter("1/minute", key=["ip", "endpoint"]),
        features={"ip": lambda request: "same", "endpoint": lambda request: request.path},
    )
    requests = [("192.0.2.1", "/a"), ("192.0.2.2", "/a"), ("192.0.2.1", "/b")]
    sent = [send_bare(app, http_scope(client=(ip, 1), path=path))[0]["status"] for ip, path in requests]
    assert sent == [200, 429, 200]


latin = st.text(st.characters(max_codepoint=255), max_size=90)
names = st.sampled_from(["host", "x-a", "X-A", "cookie", "x-forwarded-for", "accept", "x"])


SENT = [
    # the path as sent, its prefix, the path for rules
    ("/files/a/b", "", "/files/a/b"),
    ("/files/a%20b%25", "", "/files/a b%"),
    ("/files/a%2Fb%25", "", "/files/a%2Fb%25"),
    ("/api/files/a%2fb", "/api", "/files/a%2Fb"),
    ("/%61pi/files/a%2Fb", "/api", "/files/a%2Fb"),
    ("/files/a%252Fb", "", "/files/a%2Fb"),
    ("/caf%E9", "", "/caf" + chr(0xDCE9)),
    ("/caf%C3%A9%2F%FF", "", "/caf\u00e9%2F" + chr(0xDCFF)),
]


@each(("sent", "prefix", "path"), SENT)
def test_rules_see_encoded_slashes_and_invalid_bytes(sent: str, prefix: str, path: str) -> None:
    """The path for rules keeps what decoding hides, and the feature is then invalid. Other paths are decoded once."""
    raw = unquote_to_bytes(sent)
    over_asgi = asgi(path=raw.decode(errors="replace"), raw_path=sent.encode(), root_path=prefix)
    info = raw.decode("latin-1").removeprefix(prefix)
    over_wsgi = [wsgi(PATH_INFO=info, SCRIPT_NAME=prefix, **{name: f"{sent}?x"}) for name in ("REQUEST_URI", "RAW_URI")]
    assert [request.sent_path for request in (over_asgi, *over_wsgi)] == [path] * 3
    assert over_asgi.path == raw.decode(errors="replace").removeprefix(prefix)


def test_a_path_that_other_middleware_has_changed_counts() -> None:
    """The path that the client sent says nothing then. Without it, invalid bytes are kept under WSGI."""
    assert asgi(path="/a/b", raw_path=b"/other%2Fb").sent_path == "/a/b"
    assert asgi(path="/other", raw_path=b"/x/a%2Fb", root_path="/x").sent_path == "/other"
    assert asgi(path="/a/b", raw_path=b"/a%2Fb", root_path="/a/b").sent_path == "/"
    assert asgi(path="/a/b", raw_path=None).sent_path == "/a/b"
    assert wsgi(PATH_INFO="/a/b", RAW_URI="http://x/a%2Fb").sent_path == "/a/b"
    assert wsgi(PATH_INFO="/caf\xe9").sent_path == "/caf" + chr(0xDCE9)
    assert wsgi(PATH_INFO="/a", RAW_URI="/\u0142%2F").sent_path == "/a"


@each("line", ["sid=%61bc", "sid=a%62c", "sid=ABC", 'sid="abc"'])
def test_spellings_of_a_cookie_share_a_count(line: str) -> None:
    """Some frameworks show a cookie without its percent signs. ``as raw`` compares it as sent."""
    features = {"cookie:sid": asgi(headers=[(b"cookie", line.encode())]).cookie("sid")}
    assert part_of("cookie:sid").compared(features) == "abc"
    assert part_of("cookie:sid as raw").compared(features) == features["cookie:sid"]
