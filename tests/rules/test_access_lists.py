"""Allow and deny lists precede rules on every request. Every reading of an ambiguous path is found, in little work."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import case, expect_error

from ratelimit_mw import INVALID, Limiter, RateLimitExceeded, Rule, load_settings
from ratelimit_mw.keys import forms as readings
from ratelimit_mw.keys.forms import normalize_path, path_feature, read_path
from ratelimit_mw.rules.marks import NOWHERE, Destination
from ratelimit_mw.rules.paths import PathTable
from ratelimit_mw.rules.routed import PathPatterns

SETTINGS: dict[str, Any] = {
    "rules": [{"name": "api", "limits": "1/day", "match": {"path": "/api"}}],
    "lists": {
        "allow": {"ip": ["10.0.0.0/8", "2001:db8:1::/48", "::ffff:172.16.0.0/108"], "user": ["monitoring"]},
        "deny": {"ip": ["203.0.113.0/24", "10.6.6.6"], "header:x-api-key": ["stolen"]},
    },
}


@pytest.fixture
def limiter() -> Limiter:
    return Limiter.from_settings(SETTINGS)


def test_an_allowed_client_is_never_limited(limiter: Limiter) -> None:
    """No rule applies, and nothing is consumed."""
    for features in (
        {"ip": "10.1.2.3"},
        {"ip": "2001:db8:1:2::/64"},
        {"ip": "10.6.6.6"},  # on both lists: allow takes precedence
        {"ip": "::ffff:10.1.2.3"},
        {"ip": "2001:db8:1:2::3%eth0"},
        {"ip": "172.16.0.9"},  # listed in IPv6 form
        {"ip": "192.0.2.7", "user": "monitoring"},
        {"ip": "203.0.113.9", "user": "monitoring"},
    ):
        with case(features):
            verdicts = [limiter.hit({**features, "path": "/api"}) for _ in range(3)]
            assert [(verdict.allowed, verdict.rules) for verdict in verdicts] == [(True, ())] * 3
    assert len(limiter.store) == 0  # type: ignore[arg-type]


def test_a_denied_client_is_never_served(limiter: Limiter) -> None:
    """This holds when no rule matches, too. Waiting does not help, and nothing is consumed."""
    for features in ({"ip": "203.0.113.9"}, {"ip": "192.0.2.7", "header:x-api-key": "stolen"}):
        for path in ("/api", "/other"):
            verdict = limiter.hit({**features, "path": path})
            assert (verdict.allowed, verdict.denied, verdict.retry_after, verdict.rules) == (False, True, None, ())
            assert verdict.status == 403
        with pytest.raises(RateLimitExceeded, match="deny list"):
            verdict.raise_for_limit()
        assert not asyncio.run(limiter.ahit(features))
        assert not limiter.peek(features)


def test_other_clients_are_limited_as_usual(limiter: Limiter) -> None:
    """Rules apply to a client on no list, without an address, or with an invalid address.

    Another spelling of an allowed value is on no list.
    """
    spellings = (
        {"ip": f"192.0.2.{i}", "user": user} for i, user in enumerate(("MONITORING", " monitoring", "m\u00f3nitoring"))
    )
    for features in ({"ip": "192.0.2.7"}, {}, {"ip": "somewhere"}, *spellings):
        assert limiter.hit({**features, "path": "/api"})
        verdict = limiter.hit({**features, "path": "/api"})
        assert (verdict.allowed, verdict.denied) == (False, False)


def test_an_invalid_feature_is_denied_by_a_list_of_that_feature(limiter: Limiter) -> None:
    """A client that sends a stolen key twice does not evade the deny list. The allow list keeps its precedence."""
    for path in ("/api", "/other"):
        for features in ({"header:x-api-key": INVALID}, {"ip": INVALID}, {"ip": INVALID, "user": INVALID}):
            assert limiter.hit({"ip": "192.0.2.7", **features, "path": path}).denied
        assert limiter.hit({"ip": "10.1.2.3", "header:x-api-key": INVALID, "path": path}).rules == ()
    assert not limiter.hit({"ip": "192.0.2.7", "user": INVALID, "path": "/other"}).denied


def test_a_mistake_in_a_list_is_an_error() -> None:
    """The error names the place in the file."""
    for lists, message in (
        ({"allow": {"ip": ["10.0.0.0/33"]}}, r"lists.allow.ip: expected an IP address or a network"),
        ({"deny": {"ip": "localhost"}}, r"lists.deny.ip: expected an IP address or a network"),
        (
            {"deny": {"ip": ["2001:db8::7"]}},
            r"lists.deny.ip: 2001:db8::7/128 never matches: IPv6 clients are counted per /64",
        ),
        ({"deny": {"user-agent": ["x"]}}, r"lists.deny.user-agent: expected a feature"),
        ({"deny": {"user": []}}, r"lists.deny.user: an empty list matches no request"),
        ({"deny": {"path": ["/a"]}}, r"lists.deny.path: lists are of clients. To exclude paths .*, write exempt ="),
        ({"deny": {"method": ["trase"]}}, r"lists\.deny\.method: expected an HTTP method"),
    ):
        expect_error(message, load_settings, {"lists": lists})
    expect_error(r"exempt\[1\]: expected a path pattern", load_settings, {"exempt": ["/a", "health"]})


def asked(settings: dict[str, Any], path: str, to: Destination = NOWHERE, **features: str) -> bool | None:
    """Return whether the lists of these settings allow or deny a path; None for neither."""
    return load_settings(settings).lists.at(path, to).allows(features)


EXEMPT = {"exempt": ["/health", "/static/**", "/shop/", "/{page}.html"]}


OTHERS = [
    "/healthy",
    "/",
    "/health/",
    "//health",
    "/health//",
    "/static//a",
    "/shop",
    "/shop//",
    "/a.html/",
    "//static",
]


def test_an_exempt_path_is_written_like_the_pattern() -> None:
    """Starlette distinguishes slashes: /health// may lead to the view of /{rest:path}. It has no rights of /health.

    Another spelling that leads to an exempt route is exempt. The route of Django ends with a slash, for example.
    """
    for path in ("/health", "/static/a/b.css", "/static", "/static/a/", "/shop/", "/a.html"):
        assert asked(EXEMPT, path) is True
    for path in (*OTHERS, "/static/../login", "/health%0a", "/health\n", ""):
        assert asked(EXEMPT, path) is asked(EXEMPT, path, Destination("/{rest}")) is None
    assert asked({"exempt": ["/"]}, "/") is True
    assert asked(EXEMPT, "/health/", Destination("/health/")) is True
    assert asked(EXEMPT, "/static//a", Destination("/static/{path}")) is True
    assert asked(EXEMPT, "/health%0a", Destination("/health/")) is None


def test_an_ambiguous_path_is_exempt_where_each_reading_is() -> None:
    """A file in a folder that is exempt may have an encoded slash in its name. No reading leads out of the folder."""
    exempt = {"exempt": ["/static/**", "/health"]}
    for path in ("/static/a%2Fb.css", "/static/100%25.css", "/static/a\\b", "/static/why?", "/static/x/../b.css"):
        assert asked(exempt, path) is True, path
    out = ("/static/..%2Flogin", "/static/%252e%252e/login", "/static/a/../../login", "/static/..\\login", "/health\n")
    for path in (*out, "/health/.", "/health%2F", "//static%2Fa", "/static/x" + "%2525" * 5_000):
        assert asked(exempt, path) is None, path


def test_an_invalid_path_is_limited_and_not_exempt() -> None:
    """``path_feature`` returns it, and so may a function of yours."""
    rule = {"name": "api", "limits": "1/day", "match": {"path": "/api"}}
    limiter = Limiter.from_settings({"rules": [rule], "exempt": ["/api"]})
    assert [bool(limiter.hit({"path": INVALID, "ip": "192.0.2.7"})) for _ in range(2)] == [True, False]


def test_a_method_means_the_same_in_lists_tables_and_matches() -> None:
    """``GET`` includes ``HEAD``, and case does not matter."""
    for method in ("GET", "HEAD", "get"):
        features = {"method": method, "ip": "192.0.2.7"}
        assert Limiter.from_settings({"lists": {"deny": {"method": ["get"]}}}).hit(features).denied, method
        rule: dict[str, Any] = {"name": "api", "limits": "1/day", "match": {"methods": "get"}}
        allowing = Limiter.from_settings({"lists": {"allow": {"method": ["GET"]}}, "rules": [rule]})
        assert [allowing.hit(features).allowed for _ in range(2)] == [True, True], method
        assert Limiter.from_settings({"rules": [rule]}).hit(features).rules == ("api",), method
        by_method = Limiter([Rule(limits="9/day", per={"method": {"get": "2/day", "POST": "3/day"}})])
        assert [str(decision.quota) for decision in by_method.hit(features).decisions] == ["2/day"], method
        own = Limiter([Rule(limits="9/day", per={"method": {"GET": "2/day", "HEAD": "5/day"}})])
        expected = "5/day" if method == "HEAD" else "2/day"
        assert [str(decision.quota) for decision in own.hit(features).decisions] == [expected], method


def test_exempt_paths_are_not_limited_but_denied() -> None:
    """``exempt`` excludes paths from all rules. The deny list applies to them, and the allow list as before."""
    settings = {"exempt": ["/health", "/static/**"], "lists": {"deny": {"ip": "203.0.113.0/24"}}}
    assert asked(settings, "/static/a.css", ip="192.0.2.7") is True
    assert asked(settings, "/static/a.css", ip="203.0.113.9") is False
    assert asked(settings, "/other", ip="192.0.2.7") is None
    limiter = Limiter.from_settings({**settings, "rules": [{"limits": "1/day"}]})
    assert [bool(limiter.hit({"path": "/health", "ip": "192.0.2.7"})) for _ in range(3)] == [True] * 3
    assert [bool(limiter.hit({"path": "/other", "ip": "192.0.2.7"})) for _ in range(2)] == [True, False]


def test_lists_of_equal_paths_are_equal() -> None:
    """Two middlewares with equal settings decide once."""
    first, second = (load_settings({"exempt": ["/a"], "lists": {"deny": {"user": "b"}}}) for _ in range(2))
    assert first == second
    assert first != load_settings({"exempt": ["/c"], "lists": {"deny": {"user": "b"}}})


HOSTILE = ["a", "/", ".", "..", "%2F", "%252f", "%25", "\\", "\n", "\x00", "\ufffd", "\udcff", "\udfff", "é", "?", "#"]
hostile_paths = st.lists(st.sampled_from(HOSTILE), max_size=12).map("".join)


def test_a_path_that_a_reader_takes_for_another_one_has_that_reading() -> None:
    """Control characters, invalid UTF-8, dot segments, encoded slashes and backslashes leave ``/login`` possible."""
    for path in (
        *("/login\n", "/log\tin", "/login\x00.png", "/log\ufffdin", "/log" + chr(0xDCFF) + "in", "/x/../login"),
        *("/./login", "/login/.", "../login", "/x//..//../login", "/x\\..\\login", "\\login", "/x/%2e%2e/login"),
        *("/x/..%2Flogin", "/x%2F..%2Flogin", "%2Flogin", "/x%252f..%252flogin", "/x%25252f..%25252flogin"),
        *("/%5clogin", "/login%0A", "/login%00x", "/login?x", "/login#x", "/log\n\ufffdin/."),
    ):
        assert "/login" in (read_path(path) or ())
        assert path_feature(path) is INVALID


def test_a_clear_path_has_one_reading() -> None:
    """Paths with dots in names, signs, spaces and letters of any language are read in one way."""
    for path in ("/login", "/caf\xe9/a.b/..c/d../.well-known", "/100%", "/%41", "/a b;c=1,d", "/\u65e5\u672c"):
        assert read_path(f"/{path}/") == {path}
        assert path_feature(f"/{path}/") == path


def test_bytes_of_invalid_utf8_are_read_in_every_encoding() -> None:
    """They are dropped, replaced, or taken for Latin-1."""
    byte = chr(0xDCE9)
    assert read_path(f"/caf{byte}") == {f"/caf{byte}", "/caf", "/caf\ufffd", "/caf\xe9"}


def test_encoded_slashes_separate_segments_or_do_not() -> None:
    """A path with an encoded slash matches patterns for both."""
    patterns = PathPatterns([(0, "/files/{name}"), (1, "/files/{folder}/{name}"), (2, "/files")])
    assert patterns.match("/files/a%2Fb") == {0, 1}
    assert patterns.match("/files/a/b") == {1}


def test_a_path_with_too_many_readings_matches_every_pattern() -> None:
    """No path can be made so complex that a rule does not apply."""
    patterns = PathPatterns([(0, "/login"), (3, "/api/**")])
    complex_path = "/a/./b\\..%2f\n\ufffd%252525252f?\x00/#//x"
    assert read_path(complex_path) is None
    assert patterns.match(complex_path) == {0, 3}
    assert patterns.match("/x" + "/a/../" * 10_000) == {0, 3}


ROUTES: list[tuple[str, str, dict[str, Any], list[str]]] = [
    # template, path, parameters, the patterns that match
    ("/login", "/login\n", {}, ["/login"]),
    ("/login", "/LOGIN", {}, ["/login"]),
    ("/login", "/x/../login", {}, ["/login"]),
    ("/items/{id}", "/items/007", {"id": 7}, ["/items/*", "/items/7"]),
    ("/items/{id}", "/items/7\n", {"id": 7}, ["/items/*", "/items/7"]),
    ("/files/{rest}", "/files/a/b", {"rest": "a/b"}, ["/files/{rest:path}"]),
    ("/files/{rest}", "/files/x/../../login", {"rest": "x/../../login"}, ["/login", "/files/{rest:path}"]),
    ("/{language}/login", "/de/login\n", {}, ["/*/login"]),
    ("unmatched", "/x/../login", {}, ["/login"]),
]


@pytest.mark.parametrize(("template", "path", "params", "matching"), ROUTES)
def test_the_route_and_the_path_that_was_sent_both_match(
    template: str, path: str, params: dict[str, Any], matching: list[str]
) -> None:
    """A pattern matches the path, the template, or the template with its parameters as the framework read them."""
    patterns = ["/login", "/items/*", "/items/7", "/files/{rest:path}", "/*/login", "/files/x", "/"]
    found = PathPatterns(enumerate(patterns)).match(path, Destination(template), lambda: params)
    assert [patterns[i] for i in sorted(found)] == matching


def test_a_route_without_parameters_leaves_no_doubt() -> None:
    """The framework has read the path, so other readings do not count."""
    patterns = PathPatterns([(0, "/a/b"), (1, "/b")])
    assert patterns.match("/a/../b", Destination("/a/b")) == {0}
    assert patterns.match("/a/../b", Destination("/a/b", ends=False)) == {1}


@given(hostile_paths)
def test_readings_are_bounded_and_normalized(path: str) -> None:
    """Every reading is a normalized path, and there are at most 32 of them."""
    found = read_path(path) or set()
    assert len(found) <= 32
    assert all(normalize_path(reading) == reading for reading in found)


@pytest.mark.parametrize("piece", ["/..", "%2F", "%25", "\\", "\n", "\ufffd", chr(0xDCFF), "//", "/a", "a", "?", "/./"])
def test_the_work_grows_with_the_length_of_the_path(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as long a path costs at most twice as many steps and characters, whatever it is made of."""

    def work(length: int) -> int:
        steps = 0

        def counted(change: Any) -> Any:
            def run(path: str) -> str:
                nonlocal steps
                steps += len(path) + 1
                return change(path)  # type: ignore[no-any-return]

            return run

        match = PathTable.match

        def count_path(table: Any, path: str) -> Any:
            nonlocal steps
            steps += len(path) + 1
            return match(table, path)

        with monkeypatch.context() as patch:
            patch.setattr(readings, "_CHANGES", tuple(map(counted, readings._CHANGES)))
            patch.setattr(PathTable, "match", count_path)
            PathPatterns([(0, "/**/a*a*b/**/c"), (1, "/a/**/a/**/a"), (2, "/x")]).match("/x" + piece * length)
        return steps

    assert work(4000) <= 2.1 * work(2000) + 1000


def test_a_path_with_too_many_readings_matches_only_what_its_route_may_match() -> None:
    """A long URL in the path of a known route does not count for the rules of other routes."""
    patterns = PathPatterns([(0, "/login"), (1, "/fetch/a/**"), (2, "/{x}/b")])
    path = "/fetch/" + "%2525" * 5_000
    assert patterns.match(path, Destination("/fetch/{url}")) == {1, 2}
    assert patterns.match(path) == patterns.match(path, Destination("/fetch/{url}", is_expression=True)) == {0, 1, 2}


def test_stars_never_backtrack() -> None:
    """Each text between two stars is an atomic group, and each part between two ``**``, so it is looked for once."""
    assert PathTable([(0, "/*a*a*a*b")]).match("/" + "a" * 100_000) == ()
    for pattern in ("/**/a/**/b/**/c/*", "/**/*a/{x}/**/a*b", "/{x}/**/**/b"):
        table = PathTable([(0, pattern)])
        for path in ("/a" * 40_000, "/a/b" * 20_000 + "/c", "/aaa" * 20_000, "/" + "a" * 80_000):
            assert table.match(path) == ()
