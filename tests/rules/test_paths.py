"""The table of path patterns gives the results of regular expressions, and its parameters are features."""

import re
from typing import Any

import flask_calls
from calls import BODY, START, ask, ask_wsgi, sending
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette_apps import application, statuses
from tables import expect_error

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.keys.forms import normalize_path
from ratelimit_mw.rules.paths import PARAMETER, Captures, PathTable, checked_pattern
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

LITERALS = ["a", "b", "ab", "aa", ".", "a.b", "é", "%"]
SEGMENTS = [
    *LITERALS,
    "*",
    "**",
    "a*",
    "*b",
    "a*b",
    "*a*",
    "*.*",
    "{id}",
    "{id:int}",
    "{rest:path}",
    "v{n}.b",
    "a{x}b*",
]

patterns = st.lists(st.sampled_from(SEGMENTS), max_size=5).map(lambda parts: "/" + "/".join(parts))
paths = st.lists(st.sampled_from([*LITERALS, "", "", "abab", "a.a.b", "v1.b"]), max_size=6).map(
    lambda parts: "/" + "/".join(parts)
)


def pattern_matches(pattern: str, path: str) -> bool:
    return bool(PathTable([(0, pattern)]).match(path))


def match_by_regex(pattern: str, path: str) -> bool:
    """Match segment by segment with a regular expression, without a table."""
    path = re.sub("/+", "/", path)
    path = path[:-1] if path != "/" and path.endswith("/") else path
    expression = ""
    for segment in re.sub("/+", "/", pattern).strip("/").split("/"):
        starred = re.sub(r"\{[^{}:]*:path\}", "**", segment)
        starred = re.sub(r"\{[^{}]*\}", "*", starred)
        if starred == "**":
            expression += "(/[^/]+)*"
        elif starred == "*":
            expression += "/[^/]+"
        elif starred:
            expression += "/" + "[^/]*".join(re.escape(part) for part in starred.split("*"))
    return re.fullmatch(expression or "/", path) is not None or (
        path == "/" and re.fullmatch(expression, "") is not None
    )


@given(st.lists(patterns, max_size=8), paths)
@example(["/**", "/", "/*"], "/")
@example(["/a/**/b", "/**/a/**", "/a/{rest:path}"], "/a/b")
@example(["/a/**/**/b"], "/a/b")
@example(["/*/b/**"], "/a/a/b")
def test_the_table_agrees_with_a_regular_expression_for_each_pattern(table: list[str], path: str) -> None:
    """For any patterns and path the table finds the same patterns as separate matches, in ascending order."""
    expected = tuple(i for i, pattern in enumerate(table) if match_by_regex(pattern, path))
    assert PathTable(enumerate(table)).match(path) == expected


@given(patterns, paths)
def test_extra_slashes_do_not_matter(pattern: str, path: str) -> None:
    """Doubled slashes, a trailing slash or a missing leading slash do not change the result."""
    spellings = [path, path + "/", path.replace("/", "//"), path.lstrip("/"), "//" + path]
    assert len({pattern_matches(pattern, spelling) for spelling in spellings}) == 1


def test_patterns_by_example() -> None:
    """A star stays within a segment, a double star crosses segments, and a parameter is one segment."""
    for pattern, matching, others in (
        ("/login", ["/login", "/login/", "//login", "login"], ["/", "/logi", "/login/x", "/LOGIN", "/login "]),
        ("/", ["/", "", "//"], ["/a"]),
        ("/api/**", ["/api", "/api/", "/api/a", "/api/a/b"], ["/apis", "/", "/x/api"]),
        ("/api/*", ["/api/a", "/api/a/"], ["/api", "/api/a/b"]),
        ("/items/{id}", ["/items/7", "/items/é"], ["/items", "/items/7/8"]),
        ("/items/{id:int}/x", ["/items/7/x"], ["/items/x"]),
        ("/f/{rest:path}", ["/f", "/f/a/b"], ["/g"]),
        ("/**/edit", ["/edit", "/a/edit", "/a/b/edit"], ["/edit/a"]),
        ("/a.c", ["/a.c"], ["/abc"]),
        ("/*.txt", ["/a.txt", "/.txt", "/a.b.txt"], ["/a.txt/b", "/atxt"]),
        ("/v{major}.{minor}", ["/v1.2", "/v.", "/v1.2.3"], ["/v1", "/w1.2"]),
        ("/v1/items:batch", ["/v1/items:batch"], ["/v1/items"]),
        ("/at/:30/<", ["/at/:30/<"], ["/at/x/<"]),
        ("/caf\u00e9", ["/caf\u00e9"], ["/cafe\u0301"]),
        ("/line\nbreak*", ["/line\nbreak\n2"], ["/line"]),
    ):
        assert checked_pattern(pattern) == pattern
        assert [path for path in matching if not pattern_matches(pattern, path)] == [], (pattern, matching)
        assert [path for path in others if pattern_matches(pattern, path)] == [], (pattern, matching)


def test_paths_are_normalized() -> None:
    """``normalize_path`` collapses slashes and drops a trailing one. It resolves no dots, like the frameworks."""
    for path, expected in (
        ("", "/"),
        ("/", "/"),
        ("///", "/"),
        ("a", "/a"),
        ("/a/", "/a"),
        ("/a//", "/a"),
        ("*", "/*"),
        ("/a/./b", "/a/./b"),
    ):
        assert normalize_path(path) == expected
        assert normalize_path(expected) == expected


def test_a_pattern_that_cannot_match_is_rejected() -> None:
    """A pattern that could never match, or not as intended, raises an error that shows it."""
    for pattern, message in (
        ("login", "expected a path pattern such as"),
        ("", "expected a path pattern"),
        (None, "expected a path pattern .* got None"),
        (7, "got 7"),
        ("/a?b=c", "cannot have a query or a fragment"),
        ("/a#b", "cannot have a query or a fragment"),
        ("/a**", "must be a whole segment; got 'a\\*\\*'"),
        ("/***", "must be a whole segment"),
        ("/x{p:path}", "must be a whole segment"),
        ("/{id", "unbalanced braces"),
        ("/id}", "unbalanced braces"),
        ("/{{id}}", "unbalanced braces"),
        ("/items/{id:[^/]+}", r"Write a parameter as \{name\}"),
        ("/{a/b}", r"Write a parameter as \{name\}"),
        ("/items/<int:id>", r"expected parameters as \{name\}; got '/items/<int:id>'. Write '/items/\{id\}'"),
        ("/items/<id>.json", r"Write '/items/\{id\}.json'"),
        ("/f/<path:rest>", r"Write '/f/\{rest:path\}'"),
        ('/<string(length=2):lang>/<regex("[a-z]+"):x>', r"Write '/\{lang\}/\{x\}'"),
        ("/items/:id/x", r"Write '/items/\{id\}/x'"),
        ("/a%20b", "compared decoded; got '/a%20b'. Write ' ' for %20"),
    ):
        expect_error(message, checked_pattern, pattern)


def test_a_parameter_with_one_place_is_captured() -> None:
    """Two parameters in one segment, or one between two deep wildcards, have no certain place."""
    for pattern, path, expected in (
        ("/users/{user}", "/users/ann/", {"user": "ann"}),
        ("/{tenant}/**", "//acme", {"tenant": "acme"}),
        ("/**/{name}.pdf", "/a/b/c.pdf", {"name": "c"}),
        ("/{a}/{rest:path}/{b}", "/1/2/3/4", {"a": "1", "rest": "2/3", "b": "4"}),
        ("/{a}/{rest:path}", "/1", {"a": "1", "rest": ""}),
        ("/{a}-{b}/{c}*/*/x", "/1-2/3/4/x", {}),
        ("/{a}/**/{b}/**/{c}", "/1/2/3/4", {"a": "1", "c": "4"}),
        ("/{x:path}/{a}/{y:path}", "/1/2/3", {}),
    ):
        needed = [f"path:{name}" for name, _ in PARAMETER.findall(pattern)]
        assert Captures([pattern], needed).read(path) == {f"path:{name}": value for name, value in expected.items()}


def test_an_ambiguous_path_is_invalid() -> None:
    """So is a path that fits no pattern: the rule may apply because of the route."""
    captures = Captures(["/users/{user}", "/teams/{team}"], ["path:user"])
    assert captures.read("/teams/7") == {}
    for path in ("/users/../x", "/users/a%2Fb", "/other", INVALID):
        assert captures.read(path) == {"path:user": INVALID}


def tenants(**changed: Any) -> Limiter:
    rule: Any = {"key": ["path:tenant"], "match": {"path": "/{tenant}/**"}, "limits": "2/minute", **changed}
    return Limiter([Rule(name="tenant", **rule)], clock=ManualClock(1_000_000.0))


def test_a_function_of_limits_is_passed_the_capture() -> None:
    """A limiter that knows no routes reads it from the path, also to reset a client."""
    request = {"path": "/acme/a", "method": "GET"}
    functions = (lambda tenant: {"acme": "1/minute"}[tenant], lambda entry: {"acme": "1/minute"}[entry])
    for option in ({"limits": functions[0]}, {"limits": functions[1]}):
        limiter = tenants(**option)
        assert [limiter.hit(request).allowed for _ in range(2)] == [True, False]
        limiter.reset("tenant", request)
        assert limiter.hit(request)


PATHS = ("/acme/a", "/ACME/b", "/acme", "/other/a")
EXPECTED = [200, 200, 429, 200]


def test_captures_are_features_without_a_framework() -> None:
    """A limiter, and middleware of plain applications, know no routes."""

    def plain(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"ok"]

    wsgi, asgi = WSGIMiddleware(plain, limiter=tenants()), RateLimitMiddleware(sending(START, BODY), limiter=tenants())
    assert [ask_wsgi(wsgi, path).status_code for path in PATHS] == EXPECTED
    assert [ask(asgi, path).status_code for path in PATHS] == EXPECTED
    limiter = tenants()
    assert [limiter.hit({"path": path}).allowed for path in PATHS] == [True, True, False, True]
    limiter.reset("tenant", {"path": "/acme/z"})
    assert limiter.hit({"path": "/acme/a"})


def test_captures_are_features_in_frameworks() -> None:
    """The names of the route's own parameters may differ, and need not exist."""

    async def view(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    routes = [Route("/{organisation}", view), Route("/{organisation}/{rest:path}", view)]
    assert statuses(application(routes, limiter=tenants()), *PATHS) == EXPECTED
    views = {"/<organisation>": flask_calls.hello, "/<organisation>/<path:rest>": flask_calls.hello}
    app = flask_calls.app_of(tenants(), views)
    assert [flask_calls.ask(app, path).status_code for path in PATHS] == EXPECTED


def test_a_parameter_of_the_route_takes_precedence() -> None:
    """A converter gives one value to all spellings of a number, and the text of the path does not."""
    app = flask_calls.app_of(
        tenants(match={"path": "/items/{tenant}"}), {"/items/<int:tenant>": flask_calls.hello, "/x": flask_calls.hello}
    )
    assert flask_calls.statuses(app, "/items/7", 1) + flask_calls.statuses(app, "/items/07", 2) == [200, 200, 429]


def test_matches_and_tables_use_captures() -> None:
    """A rule for some values, and limits by value."""
    some = tenants(match={"path": "/{tenant}/**", "path:tenant": ["acme"]}, key=["ip"])
    assert [some.hit({"path": path, "ip": "192.0.2.7"}).rules for path in ("/acme/a", "/b/a")] == [("tenant",), ()]
    by_value = tenants(key=["ip"], per={"path:tenant": {"acme": ["1/minute"]}})
    assert [by_value.hit({"path": path, "ip": "192.0.2.7"}).allowed for path in ("/acme/a", "/acme/b")] == [True, False]


def test_a_parameter_without_one_place_is_an_error() -> None:
    """Where no routes are known, nothing provides it."""
    expect_error(
        "'path:b', but nothing provides it", WSGIMiddleware, flask_calls.hello, limiter=tenants(key=["path:b"])
    )
