"""Features and keys: no two different requests share a key, and nothing a client sends makes a limit vanish."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

import pytest
from calls import BODY, START, http_scope, limited, limiter, send_bare, sending
from hypothesis import given
from hypothesis import strategies as st
from test_wsgi import Served, listing

from ratelimit_mw import ConfigError, Limiter, Rule, features
from ratelimit_mw.asgi import ASGIRequest, RateLimitMiddleware
from ratelimit_mw.features import BUILT_IN, UNREADABLE, KeyMaker, checked_name, parse_key
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware
from ratelimit_mw.wsgi import WSGIRequest

HOSTILE = [
    "a b",
    "a\nb",
    "a\r\nSET x 1",
    "a\x00b",
    "a\x7f",
    "{a}",
    "a|b",
    "a&b=c",
    "a%b",
    "x" * 251,
    "\ud800",
    "=",
    "#",
]


def key_of(entries: Any, **values: Any) -> str | None:
    return KeyMaker(parse_key(entries)).of(values)


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        *((name, name) for name in BUILT_IN),
        (" ip\n", "ip"),
        ("header:X-Api-Key", "header:x-api-key"),
        ("cookie:Session", "cookie:Session"),
        ("query:user[id]", "query:user[id]"),
        ("json:user.name", "json:user.name"),
        ("tenant", "tenant"),
        ("api_key", "api_key"),
        ("_x9", "_x9"),
    ],
)
def test_names_of_features(name: str, known_as: str) -> None:
    """Built-in names, families and any word of your own; header names are alike in any case."""
    assert checked_name(name) == known_as


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("usr", "did you mean 'user'"),
        ("users", "did you mean 'user'"),
        ("endpoints", "did you mean 'endpoint'"),
        ("e_mail", "did you mean 'email'"),
        ("ips", "did you mean 'ip'"),
        ("plans", "did you mean 'plan'"),
        ("IP", "expected a feature, one of ip, user"),
        ("", "expected a feature"),
        ("header:", "expected a feature"),
        ("headers:x", "expected a feature"),
        ("header:x y", "expected a feature"),
        ("user-agent", "expected a feature"),
        ("caf\u00e9", "expected a feature"),
        (None, "got None"),
        (7, "got 7"),
    ],
)
def test_a_name_that_is_nearly_one_is_refused(name: Any, message: str) -> None:
    """A slip of the pen must not become a feature that is never known, and a rule that never applies."""
    with pytest.raises(ConfigError, match=message):
        checked_name(name)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (7, "expected a list of features .* got 7"),
        ({"ip": 1}, "expected a list of features"),
        ([["ip"]], "\\[0\\]: expected a feature such as"),
        (["ip", "usr|ip"], "\\[1\\]: .*did you mean 'user'"),
        (["ip|"], "\\[0\\]: expected a feature"),
    ],
)
def test_a_key_that_means_nothing_is_refused(key: Any, message: str) -> None:
    """The error shows the entry."""
    with pytest.raises(ConfigError, match=message):
        parse_key(key)


# -- keys --------------------------------------------------------------------------------------------------

values = st.one_of(
    st.none(),
    st.just(""),
    st.text("ab/&=:#!|1", max_size=6),
    st.text(max_size=70),
    st.sampled_from([*HOSTILE, UNREADABLE, 0, 7, True]),
)


def meaning(entries: Any, known: dict[str, Any]) -> Any:
    """What a key stands for: of each entry the first feature that is known, and its value."""
    found: list[Any] = []
    for entry in entries:
        names = [name for name in entry.split("|") if known.get(name) not in (None, "")]
        if names:
            value = known[names[0]]
            found.append((names[0], value if value is UNREADABLE else str(value)))
        elif "ip" in entry:
            found.append(("ip", "unknown"))
        else:
            return None
    return tuple(found)


@given(
    st.sampled_from([["user", "tenant"], ["user|ip", "tenant"], ["user|tenant"], ["user", "tenant|ip", "group"], []]),
    st.lists(st.fixed_dictionaries(dict.fromkeys(("user", "tenant", "ip", "group"), values)), min_size=2, max_size=6),
)
def test_keys_are_equal_exactly_when_they_mean_the_same(entries: list[str], known: list[dict[str, Any]]) -> None:
    """No choice of values makes two different sets of features share a key, nor one set have two."""
    found = [(key_of(entries, **some), meaning(entries, some)) for some in known]
    for key, means in found:
        for other_key, other_means in found:
            assert (key == other_key) == (means == other_means)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"user": "a/b", "tenant": "c"}, {"user": "a", "tenant": "b/c"}),
        ({"user": "a", "tenant": "bc"}, {"user": "ab", "tenant": "c"}),
        ({"user": "a&tenant=b", "tenant": "c"}, {"user": "a", "tenant": "b&tenant=c"}),
        ({"user": "1:a&tenant=b", "tenant": "b"}, {"user": "1", "tenant": "a&tenant=b"}),
        ({"user": UNREADABLE, "tenant": "b"}, {"user": "!", "tenant": "b"}),
        ({"user": UNREADABLE, "tenant": "b"}, {"user": "<object object>", "tenant": "b"}),
        ({"user": "x" * 65, "tenant": "b"}, {"user": "x" * 66, "tenant": "b"}),
        ({"user": "k\u0131ng", "tenant": "b"}, {"user": "king", "tenant": "b"}),
        ({"user": "\u212aing", "tenant": "b"}, {"user": "King", "tenant": "b"}),
        ({"user": "\uff4bing", "tenant": "b"}, {"user": "king", "tenant": "b"}),
        ({"user": "caf\u00e9", "tenant": "b"}, {"user": "cafe\u0301", "tenant": "b"}),
    ],
)
def test_look_alikes_do_not_share_a_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Values that run into each other, look like each other or are cut are still two."""
    for entries in (["user", "tenant"], ["tenant", "user"]):
        assert key_of(entries, **one) != key_of(entries, **other)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_long_or_strange_value_is_one_key_of_bounded_length(value: str) -> None:
    """A value over 64 bytes is replaced by a hash of 128 bits; any other is taken as it is."""
    key = key_of(["tenant", "user"], user=value, tenant=value)
    assert key is not None
    assert len(key.encode("utf-8", "surrogatepass")) <= 2 * (64 + len("tenant=99:&"))
    assert (value in key) == (len(value) <= 64)


def test_the_short_way_makes_the_same_keys() -> None:
    """A key of one short ASCII part is made without the general code, and is the same."""
    for entries in (["user"], ["ip"], ["user|ip"], ["user", "ip"], [], ["endpoint"]):
        maker = KeyMaker(parse_key(entries), "/login")
        short = maker.after("prefix|")
        for value in (None, "", "ann", "x" * 64, "x" * 65, "\u00e9" * 33, UNREADABLE, 7):
            known = {"user": value, "ip": value, "endpoint": value}
            expected = maker.of(known)
            assert short(known) == (None if expected is None else "prefix|" + expected)


@pytest.mark.parametrize("value", [object(), lambda request: "x", type("Person", (), {})()])
def test_a_value_without_a_text_of_its_own_is_an_error(value: Any) -> None:
    """An object whose text is its address would make every request a stranger, and the limit vanish."""
    rate = limiter(key=["user"])
    with pytest.raises(TypeError, match="the feature 'user' needs a text"):
        rate.hit({"user": value})
    assert rate.hit({"user": "<b> at 0x7f"}).rules == ("api",)


def test_an_unknown_address_is_one_value_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests without an address are limited together, and the log says so once."""
    monkeypatch.setattr(features, "_warned", [])
    rate = limiter("2/minute", key=["user|ip"])
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        allowed = [rate.hit(some).allowed for some in ({}, {"ip": None}, {"ip": ""}, {"ip": "unknown"}, {"user": "a"})]
    assert allowed == [True, True, False, False, True]
    warned = "a request has no client address; all such requests share the ip 'unknown'."
    assert [record.message.startswith(warned) for record in caplog.records] == [True]


def test_an_endpoint_is_never_unknown() -> None:
    """Where no route is known the rule's own pattern stands for it, else one constant; raw paths never do."""
    for match, endpoint in (({"path": "/items/{id}"}, "/items/{id}"), ({}, "unmatched")):
        rate = limiter("1/minute", key=["endpoint"], match=match)
        found = [rate.hit({"path": f"/items/{i}"}).hits[0][1] for i in range(2)]
        assert {key.rpartition("|")[2] for key in found} == {f"endpoint={endpoint}"}


def test_alternatives_after_an_endpoint_are_never_asked() -> None:
    """``endpoint`` ends the search, for it is always known."""
    assert key_of(["endpoint|user"], user="ann") == "endpoint=unmatched"
    assert key_of(["user|endpoint"], user="ann") == "user=ann"


# -- reading requests --------------------------------------------------------------------------------------


def asgi(query: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None) -> ASGIRequest:
    return ASGIRequest(http_scope(query_string=query, headers=headers or []))


def wsgi(query: str = "", **headers: str) -> WSGIRequest:
    return WSGIRequest({"QUERY_STRING": query, "REQUEST_METHOD": "GET", **headers})


@pytest.mark.parametrize(
    ("query", "name", "last", "first"),
    [
        ("a=1&b=2", "b", "2", "2"),
        ("a=1&a=2", "a", "2", "1"),
        ("a=", "a", "", ""),
        ("a", "a", "", ""),
        ("b=1", "a", None, None),
        ("a=%C3%A9+x", "a", "\u00e9 x", "\u00e9 x"),
        ("a=%ff", "a", "\ufffd", "\ufffd"),
        ("%61=1", "a", "1", "1"),
        ("", "a", None, None),
    ],
)
def test_a_query_field_is_what_the_framework_sees(query: str, name: str, last: str | None, first: str | None) -> None:
    """Of several fields with one name Starlette shows the last and werkzeug the first, and so do we."""
    assert (asgi(query.encode()).query or {}).get(name) == last
    assert (wsgi(query).query or {}).get(name) == first


@pytest.mark.parametrize("rule", [{"key": ["query:q"]}, {"key": [], "match": {"query:q": "costly"}}])
def test_a_query_of_a_thousand_fields_evades_nothing(rule: dict[str, Any]) -> None:
    """A query that is too long to be read is a value of its own: the rule applies, whether to its key or its match."""
    flood = "&".join(["x=1"] * 1001) + "&q=costly"
    app = limited(sending(START, BODY), limiter("1/minute", **rule))
    sent = [send_bare(app, http_scope(query_string=query.encode()))[0]["status"] for query in (flood, flood + "&y=2")]
    assert sent == [200, 429]
    guarded = WSGIMiddleware(listing, limiter=limiter("1/minute", **rule))
    assert [Served(guarded, QUERY_STRING=query).status[:3] for query in (flood, flood + "&y=2")] == ["200", "429"]


@pytest.mark.parametrize(
    ("lines", "cookies"),
    [
        ([], {}),
        (["a=1; b=2"], {"a": "1", "b": "2"}),
        (["a=1", "b=2"], {"a": "1", "b": "2"}),
        (['a="1 2"; b=x=y;c'], {"a": "1 2", "b": "x=y"}),
        (["a = 1;; =x; a=2"], {"a": "2", "": "x"}),
    ],
)
def test_cookies(lines: list[str], cookies: dict[str, str]) -> None:
    """Over all lines, quotes taken off, the last of one name."""
    assert asgi(headers=[(b"cookie", line.encode()) for line in lines]).cookies == cookies


def test_headers_are_a_mapping_in_any_case() -> None:
    """Names in any case, lines joined with commas, absence is absence."""
    headers = asgi(headers=[(b"X-A", b"1"), (b"x-b", b"\xe9"), (b"x-a", b"2")]).headers
    assert (headers["x-A"], headers["X-B"], headers.get("x-c")) == ("1, 2", "\u00e9", None)
    assert (list(headers), len(headers)) == (["x-a", "x-b"], 2)
    assert headers.get("\u0142") is None
    found = wsgi(HTTP_X_A="1", CONTENT_TYPE="text/plain", CONTENT_LENGTH="3").headers
    assert (found["X-a"], found["content-length"], list(found)) == ("1", "3", ["x-a"])


@pytest.mark.parametrize(
    ("lines", "host"),
    [
        ([], ""),
        (["Example.COM"], "example.com"),
        (["example.com:8080"], "example.com"),
        (["example.com."], "example.com"),
        ([" example.com "], "example.com"),
        (["[2001:DB8::1]:80"], "[2001:db8::1]"),
        (["[2001:db8::1"], ""),
        (["a.example", "b.example"], "a.example"),
        ([":80"], ""),
    ],
)
def test_the_host(lines: list[str], host: str) -> None:
    """Lower case, no port, no dot at the end, and of several the first, which is the one that frameworks route by."""
    assert asgi(headers=[(b"host", line.encode()) for line in lines]).host == host


def test_a_request_is_a_mapping_over_what_the_server_gave() -> None:
    """Your own functions can read anything in scope or environ."""
    request = asgi()
    assert request["client"] == ("192.0.2.7", 1234)
    assert set(request) == set(http_scope())
    assert len(request) == len(http_scope())


FEATURES_OF_A_REQUEST = {
    "method": "GET",
    "path": "/a b",
    "host": "testserver",
    "header:x-api-key": "k1",
    "cookie:session": "s1",
    "query:q": "\u00e9",
    "ip": "192.0.2.7",
}


@pytest.mark.parametrize("name", FEATURES_OF_A_REQUEST)
def test_every_feature_of_a_request_makes_a_key(name: str) -> None:
    """Under both protocols the same request has the same key."""
    value = FEATURES_OF_A_REQUEST[name]
    rate = Limiter([Rule(name="api", limits="9/minute", key=[name])], clock=ManualClock(1.0))
    headers = [(b"host", b"testserver"), (b"x-api-key", b"k1"), (b"cookie", b"session=s1")]
    query = f"q={quote(value)}" if name == "query:q" else ""
    send_bare(
        RateLimitMiddleware(sending(START, BODY), limiter=rate),
        http_scope(path="/a b", headers=headers, query_string=query.encode()),
    )
    environ = {"HTTP_HOST": "testserver", "HTTP_X_API_KEY": "k1", "HTTP_COOKIE": "session=s1"}
    Served(WSGIMiddleware(listing, limiter=rate), PATH_INFO="/a b", QUERY_STRING=query, **environ)
    assert rate.peek({name: value}, cost=0).decisions[0].remaining == 7


@pytest.mark.parametrize("name", ["email", "region", "json:name", "form:name", "path:id", "tenant"])
def test_a_feature_that_nothing_gives_is_refused_when_built(name: str) -> None:
    """A rule that needs what no one reads would never apply, and so cannot start; your own function gives it."""
    rate = limiter("1/minute", key=[name])
    with pytest.raises(ConfigError, match=f"needs the feature '{name}', and nothing gives it"):
        RateLimitMiddleware(sending(START, BODY), limiter=rate)
    app = RateLimitMiddleware(sending(START, BODY), limiter=rate, features={name: lambda request: "x"})
    assert [send_bare(app, http_scope())[0]["status"] for _ in range(2)] == [200, 429]


def test_your_own_function_comes_before_the_built_in_one() -> None:
    """A feature that is built in can be replaced, ``endpoint`` too."""
    app = limited(
        sending(START, BODY),
        limiter("1/minute", key=["ip", "endpoint"]),
        features={"ip": lambda request: "same", "endpoint": lambda request: request["path"]},
    )
    asked = [("192.0.2.1", "/a"), ("192.0.2.2", "/a"), ("192.0.2.1", "/b")]
    sent = [send_bare(app, http_scope(client=(ip, 1), path=path))[0]["status"] for ip, path in asked]
    assert sent == [200, 429, 200]
