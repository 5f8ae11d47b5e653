"""The tree of path patterns gives the results of regular expressions."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st
from tables import expect_error

from ratelimit_mw.keys.forms import normalize_path
from ratelimit_mw.rules.paths import PathTree, checked_pattern

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
    return bool(PathTree([(0, pattern)]).match(path))


def match_by_regex(pattern: str, path: str) -> bool:
    """Match segment by segment with a regular expression, without a tree."""
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
def test_the_tree_agrees_with_a_regular_expression_for_each_pattern(table: list[str], path: str) -> None:
    """For any patterns and path the tree finds the same patterns as separate matches, in ascending order."""
    expected = tuple(i for i, pattern in enumerate(table) if match_by_regex(pattern, path))
    assert PathTree(enumerate(table)).match(path) == expected


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
        ("/items/<int:id>", r"expected parameters as \{name\}; got '/items/<int:id>'. Write '/items/\{id\}'"),
        ("/items/<id>.json", r"Write '/items/\{id\}.json'"),
        ("/f/<path:rest>", r"Write '/f/\{rest:path\}'"),
        ('/<string(length=2):lang>/<regex("[a-z]+"):x>', r"Write '/\{lang\}/\{x\}'"),
        ("/items/:id/x", r"Write '/items/\{id\}/x'"),
        ("/a%20b", "compared decoded; got '/a%20b'. Write ' ' for %20"),
    ):
        expect_error(message, checked_pattern, pattern)
