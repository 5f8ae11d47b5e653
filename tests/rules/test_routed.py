"""Every reading of an ambiguous path is found, in work that grows with the length of the path."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import INVALID
from ratelimit_mw.keys import forms as readings
from ratelimit_mw.keys.forms import is_ambiguous, normalize_path, path_feature, read_path
from ratelimit_mw.rules import paths
from ratelimit_mw.rules.marks import Destination
from ratelimit_mw.rules.paths import PathTree
from ratelimit_mw.rules.routed import PathPatterns

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
        assert is_ambiguous(path)
        assert "/login" in (read_path(path) or ())
        assert path_feature(path) is INVALID


def test_a_clear_path_has_one_reading() -> None:
    """Paths with dots in names, signs, spaces and letters of any language are read in one way."""
    for path in ("/login", "/caf\xe9/a.b/..c/d../.well-known", "/100%", "/%41", "/a b;c=1,d", "/\u65e5\u672c"):
        assert not is_ambiguous(path)
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
    patterns = ["/login", "/items/*", "/items/7", "/files/{rest:path}", "/*/login", "/files/x"]
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

        successors = paths._Node.successors

        def count_segment(node: Any, segment: str) -> Any:
            nonlocal steps
            steps += len(segment) + 1
            return successors(node, segment)

        with monkeypatch.context() as patch:
            patch.setattr(readings, "_CHANGES", tuple(map(counted, readings._CHANGES)))
            patch.setattr(paths._Node, "successors", count_segment)
            PathPatterns([(0, "/**/a*a*b/**/c"), (1, "/a/**/a/**/a"), (2, "/x")]).match("/x" + piece * length)
        return steps

    assert work(4000) <= 2.1 * work(2000) + 1000


def test_a_path_with_too_many_readings_matches_only_what_its_route_may_match() -> None:
    """A long URL in the path of a known route does not count for the rules of other routes."""
    patterns = PathPatterns([(0, "/login"), (1, "/fetch/a/**"), (2, "/{x}/b")])
    path = "/fetch/" + "%2525" * 5_000
    assert patterns.match(path, Destination("/fetch/{url}")) == {1, 2}
    assert patterns.match(path) == patterns.match(path, Destination("/fetch/{url}", is_expression=True)) == {0, 1, 2}


def test_stars_in_a_segment_never_backtrack() -> None:
    """Each part of a segment is an atomic group, so a segment is scanned once for each part."""
    glob = paths._glob("*a*a*a*b")
    assert glob is not None
    assert glob.pattern.count("(?>") == len(re.findall("a", "*a*a*a*b"))
    assert PathTree([(0, "/*a*a*a*b")]).match("/" + "a" * 100_000) == ()
