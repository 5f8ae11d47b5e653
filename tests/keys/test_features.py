"""Different requests never share a key, and no client input makes a limit disappear."""

import logging
from ipaddress import ip_address
from itertools import product
from typing import Any

import pytest
from calls import limiter
from hypothesis import example, given
from hypothesis import strategies as st
from tables import case, expect_error

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.keys.features import BUILT_IN, INVALID, checked_name
from ratelimit_mw.keys.forms import comparison_form
from ratelimit_mw.keys.key import KeyMaker, escape_braces, parse_key
from ratelimit_mw.keys.parts import part_of

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
    return KeyMaker(parse_key(entries)).build(values)


# -- names -------------------------------------------------------------------------------------------------


def test_features_are_built_in_or_families_or_own_words() -> None:
    """Names are built in, families or any word of your own. Header names ignore case."""
    for name, known_as in (
        *((name, name) for name in BUILT_IN),
        (" ip\n", "ip"),
        ("header:X-Api-Key", "header:x-api-key"),
        ("cookie:Session", "cookie:Session"),
        ("query:user[id]", "query:user[id]"),
        ("json:user.name", "json:user.name"),
        ("tenant", "tenant"),
        ("api_key", "api_key"),
        ("path:x", "path:x"),
        ("get:endpoint", "query:endpoint"),
        ("_x9", "_x9"),
    ):
        assert checked_name(name) == known_as


def test_an_invalid_name_or_key_is_rejected() -> None:
    """A name is a word, or a family with the name of one of its values. The error shows the entry."""
    for read, value, message in (
        (checked_name, "IP", "expected a feature: ip, user"),
        *(
            (checked_name, name, "expected a feature")
            for name in ("", "header:", "headers:x", "header:x y", "user-agent")
        ),
        (checked_name, "caf\u00e9", "expected a feature"),
        (checked_name, None, "got None"),
        (checked_name, 7, "got 7"),
        (parse_key, 7, "expected a list of features .* got 7"),
        (parse_key, {"ip": 1}, "expected a list of features"),
        (parse_key, [["ip"]], r"\[0\]: expected a feature such as"),
        (parse_key, ["ip", "us-er|ip"], r"\[1\]: expected a feature"),
        (parse_key, ["ip|"], r"\[0\]: expected a feature"),
        (
            parse_key,
            ["ip", "endpoint|user"],
            r"\[1\]: 'endpoint' is never missing, so 'user' is never used. Write 'user",
        ),
        (parse_key, ["view|ip"], r"\[0\]: 'view' is never missing, so 'ip' is never used"),
    ):
        expect_error(message, read, value)


# -- keys --------------------------------------------------------------------------------------------------

anything = st.text(st.characters(max_codepoint=127), max_size=70)
values = st.one_of(
    st.none(),
    st.just(""),
    st.text("ab/&=:#!|1{}%", max_size=6),
    st.text(max_size=70),
    st.sampled_from([*HOSTILE, INVALID, 0, 7, True]),
)


def form_of(name: str, value: Any) -> str:
    """Return the text that a key has for a value."""
    text = str(value)
    return text if name == "ip" else str(comparison_form("true" if value is True else text))


def meaning(entries: Any, features: dict[str, Any]) -> Any:
    """Return what a key means: for each entry the first feature that is present, and its value."""
    parts: list[Any] = []
    for entry in entries:
        names = [name for name in entry.split("|") if features.get(name) not in (None, "")]
        if names:
            value = features[names[0]]
            parts.append((names[0], value if value is INVALID else form_of(names[0], value)))
        elif "ip" in entry:
            parts.append(("ip", "unknown"))
        else:
            return None
    return tuple(parts)


@given(
    st.sampled_from([["user", "tenant"], ["user|ip", "tenant"], ["user|tenant"], ["user", "tenant|ip", "group"], []]),
    st.lists(st.fixed_dictionaries(dict.fromkeys(("user", "tenant", "ip", "group"), values)), min_size=2, max_size=6),
)
def test_keys_are_equal_exactly_when_their_meaning_is_equal(entries: list[str], sets: list[dict[str, Any]]) -> None:
    """No values give two different sets of features one key, or one set two keys."""
    pairs = [(key_of(entries, **features), meaning(entries, features)) for features in sets]
    for key, means in pairs:
        for other_key, other_means in pairs:
            assert (key == other_key) == (means == other_means)


def test_similar_values_do_not_share_a_key() -> None:
    """Values that run together, look alike or are truncated have different keys."""
    for one, other in (
        ({"user": "a/b", "tenant": "c"}, {"user": "a", "tenant": "b/c"}),
        ({"user": "a", "tenant": "bc"}, {"user": "ab", "tenant": "c"}),
        ({"user": "a&tenant=b", "tenant": "c"}, {"user": "a", "tenant": "b&tenant=c"}),
        ({"user": "1:a&tenant=b", "tenant": "b"}, {"user": "1", "tenant": "a&tenant=b"}),
        ({"user": INVALID, "tenant": "b"}, {"user": "!", "tenant": "b"}),
        ({"user": INVALID, "tenant": "b"}, {"user": "<object object>", "tenant": "b"}),
        ({"user": "x" * 65, "tenant": "b"}, {"user": "x" * 66, "tenant": "b"}),
        ({"user": "k\u0456ng", "tenant": "b"}, {"user": "king", "tenant": "b"}),  # Cyrillic
    ):
        for entries in (["user", "tenant"], ["tenant", "user"]):
            assert key_of(entries, **one) != key_of(entries, **other)


def test_a_long_or_unusual_value_has_a_key_of_bounded_length() -> None:
    """A 128-bit hash replaces a value over 64 bytes. Other values are shown in their comparison form."""
    for value in HOSTILE:
        key = key_of(["tenant", "user"], user=value, tenant=value)
        assert key is not None, value
        assert len(key.encode("utf-8", "surrogatepass")) <= 2 * (64 * 3 + len("tenant=99:&")), value
        assert (escape_braces(str(comparison_form(value))) in key) == (len(value) <= 64)


ONE_PART = ["user", "user as raw", "user as int", "ip", "path", "host", "endpoint", "user|ip"]
EDGES = [None, "", "ann", " Ann", "{a}", "%7B", "a\tnn", " ", "x" * 64, "x" * 65, "\u00e9" * 33, INVALID, 7]


@pytest.mark.parametrize("entries", [*([part] for part in ONE_PART), ["user", "ip"], []])
@given(st.sampled_from(EDGES) | st.text(max_size=70) | anything)
@example(" Ann")
def test_the_fast_path_makes_the_same_key(entries: list[str], value: Any) -> None:
    """One short ASCII part takes a fast path, which makes the same key of any value. No text has two keys."""
    maker = KeyMaker(parse_key(entries), "/login", warn=lambda: None)
    features = dict.fromkeys(("user", "ip", "endpoint", "path", "host"), value)
    expected = maker.build(features)
    assert maker.with_prefix("prefix|")(features) == (None if expected is None else "prefix|" + expected)


@pytest.mark.parametrize("secret", [None, "correct horse battery staple"])
def test_a_missing_ip_address_is_one_value_with_one_warning(
    caplog: pytest.LogCaptureFixture, secret: str | None
) -> None:
    """Requests without an IP address share one count. Each limiter logs one warning for all its rules."""
    rules = [{"name": "a", "limits": "2/m"}, {"name": "b", "limits": "9/m", "key": ["endpoint", "user|ip"]}]
    rates = [Limiter.from_settings({"rules": rules, "secret": secret}) for _ in range(2)]
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        for rate in rates:
            features = ({}, {"ip": None}, {"ip": ""}, {}, {"ip": "192.0.2.7"})
            assert [rate.hit(each).allowed for each in features] == [True, True, False, False, True]
    warned = "a request has no client address; all such requests are counted together as ip 'unknown'."
    assert [record.message.startswith(warned) for record in caplog.records] == [True] * 2


def test_an_ip_address_has_one_key_in_every_form() -> None:
    """An IPv4-mapped address is the IPv4 client with its limits, even in direct calls."""
    mapped = ("::ffff:192.0.2.7", "::FFFF:c000:207", "0:0:0:0:0:ffff:192.0.2.7", "::ffff:192.0.2.7%eth0")
    for same, secret, key in product(mapped, (None, "correct horse battery staple"), (["ip"], ["endpoint", "user|ip"])):
        with case(same, secret, key):
            rule = {"name": "api", "limits": "2/minute", "key": key, "per": {"ip": {"::ffff:192.0.2.8": "1/minute"}}}
            rate = Limiter.from_settings({"rules": [rule], "secret": secret})
            asked = (same, "192.0.2.7", same, "192.0.2.8", same.replace("7", "8"))
            assert [rate.hit({"ip": text}).allowed for text in asked] == [True, True, False, True, False]
            lone = Limiter([Rule(limits="1/minute", key=key)])
            asked_of_lone = (same, ip_address(same), "192.0.2.7")
            assert [lone.hit({"ip": text}).allowed for text in asked_of_lone] == [True, False, False]
            lone.reset("rule-1", {"ip": same, "endpoint": "unmatched"})
            assert lone.hit({"ip": "192.0.2.7"})


def test_other_addresses_and_text_stay_unchanged() -> None:
    """Only equivalent forms of one IP address are merged. Values of other features never change."""
    for text in ("2001:db8:1:2::/64", "2001:db8::1", "a:b", "a:b%c", "::ffff:1.2.3.4:80", ":" * 9999):
        assert part_of("ip").form(text) == text
        assert key_of(["user"], user="::ffff:192.0.2.7") == "{user=::ffff:192.0.2.7}", text


def test_an_endpoint_is_never_missing() -> None:
    """Without a route, the endpoint is the rule's own pattern or a constant, never the raw path."""
    for match, endpoint in (({"path": "/items/{id}"}, "/items/{id}"), ({}, "unmatched")):
        rate = limiter("1/minute", key=["endpoint"], match=match)
        keys = [rate.hit({"path": f"/items/{i}"}).decisions[0].hit[1] for i in range(2)]
        assert {key.rpartition("|")[2] for key in keys} == {f"{{endpoint={escape_braces(endpoint)}}}"}


def test_the_last_alternative_is_used_where_all_are_missing() -> None:
    """``endpoint``, ``view`` and ``ip`` have a value for that."""
    for key, expected in (
        ("user|endpoint", "{endpoint=unmatched}"),
        ("ip|endpoint", "{endpoint=unmatched}"),
        ("user|view", "{view=unmatched}"),
        ("ip|user", "{ip=unknown}"),
        ("user", None),
    ):
        assert key_of(key) == expected
    assert key_of("user|view", user="ann") == "{user=ann}"
