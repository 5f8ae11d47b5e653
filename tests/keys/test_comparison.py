"""Spellings that an application may read as one value have one count. Types without a stable text are errors."""

import unicodedata
from collections.abc import Awaitable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import partial
from typing import Annotated, Any, NewType
from uuid import UUID

import pytest
from calls import limiter
from hypothesis import given
from hypothesis import strategies as st
from tables import case, expect_error

from ratelimit_mw import INVALID, ConfigError, FeatureTypeError, Limiter, Rule, normalized_email
from ratelimit_mw.http.functions import returned_types
from ratelimit_mw.keys.forms import comparison_form
from ratelimit_mw.keys.key import KeyMaker, parse_key
from ratelimit_mw.keys.parts import part_of
from ratelimit_mw.testing import ManualClock

ID = UUID("12345678-1234-5678-1234-567812345678")


def key_of(entries: Any, **features: Any) -> str | None:
    return KeyMaker(parse_key(entries)).build(features)


@dataclass
class User:
    id: Any
    requests: int = 0


class Row:
    """A row of a database, which has items but no attributes."""

    def __getitem__(self, name: str) -> Any:
        return {"id": "ann"}[name]


# -- text --------------------------------------------------------------------------------------------------


def test_spellings_of_a_name_are_one() -> None:
    """Spaces, case, width, control and invisible characters and combining marks do not matter."""
    for text in (
        *("admin", "Admin", "ADMIN", " admin", "admin \t", "\r\nadmin", "ad\x00min", "\x7fadmin"),
        *("\uff41\uff44\uff4d\uff49\uff4e", "\uff21dmin", "\u24d0dmin", "\U0001d41admin", "admin\u3000"),
        *("ad\u00admin", "ad\u200bmin", "\u2060admin", "\ufeffadmin", "ad\ufe0fmin"),
        *("\u202eadmin\u202c", "admin\u115f"),
        *("\u00e1dmin", "a\u0301dmin", "a\u0301\u0323dmin", "adm\u0130n", "admin\u20dd"),
    ):
        assert comparison_form(text) == "admin"
        assert key_of("user", user=text) == "{user=admin}"
    assert comparison_form("\u1fb3") == comparison_form("\u03b1\u0399")  # with a subscript that is a letter in capitals


def test_letters_that_databases_take_for_others_are_one() -> None:
    """The default collations of MySQL and MariaDB ignore some letters, and compare others as letters of ASCII."""
    for text, form in (
        *(("ann\u0640", "ann"), ("\u0640a\u07fan\u0345n\u06de", "ann"), ("\u1fb3\u0345", "\u03b1\u03b9")),
        *(("\U0001f150\U0001f17dn", "ann"), ("\U0001f170\u2c65", "aa"), ("\u0141\u00d8\u0110\u00d0", "lodd")),
        *(("\u00c6\u0152\ua74f\u02a3", "aeoeoodz"), ("\ua79b\ua7c1", "aa"), ("b\u0363n", "ban")),
        *(("ann\u0661\u06f2\u24ff", "ann120"), ("\u0f2a\u0f2b", "12"), ("\u2174\u00bd", "v1\u20442")),
        ("\u0259\u0430\u4e00", "\u0259\u0430\u4e00"),
    ):
        assert comparison_form(text) == form
    for email in (
        "\U0001f150nn@example.com",
        "ann@ex\u00e1mple.com",
        "Ann@exampl\u00c9\u0640.com",
        "ann@xn--exmple-qta.com",
    ):
        assert key_of("email", email=normalized_email(email)) == "{email=ann@example.com}"
    assert key_of("email", email="a@xn--99999999") == "{email=a@xn--99999999}"


@given(st.text(max_size=20))
def test_a_comparison_form_is_stable(text: str) -> None:
    """It is its own form, and does not depend on how the text is normalized."""
    form = comparison_form(text)
    assert comparison_form(form) == form
    if "\u037a" not in text:  # a subscript of no letter is a space and a subscript in other forms
        assert {comparison_form(unicodedata.normalize(how, text)) for how in ("NFC", "NFD")} == {form}


def test_the_forms_of_long_texts() -> None:
    """A long text that is not ASCII is invalid, because folding it takes long. A long ASCII text is folded."""
    assert comparison_form("\u00e9" * 321) is INVALID
    assert comparison_form("\u00e9" * 320) == "e" * 320
    assert comparison_form(" " + "A" * 65_536) == "a" * 65_536
    assert key_of("user", user="\ufdfa" * 9999) == key_of("user", user=INVALID)


def test_the_middleware_writes_some_features_in_one_form() -> None:
    """Paths, templates, methods and regions are compared exactly."""
    assert key_of("path", path="/Caf\u00e9 ") == "{path=/Caf\u00e9 }"
    assert key_of(["endpoint", "method"], endpoint="/Items", method="GET") == "{endpoint=6:/Items&method=GET}"


def test_a_blank_text_is_not_missing() -> None:
    """A client cannot evade a rule by a name of spaces."""
    assert key_of("user|ip", user=" \u200b", ip="192.0.2.7") == "{user=}"
    for missing in ("", b"", None):
        assert key_of("user|ip", user=missing, ip="192.0.2.7") == "{ip=192.0.2.7}"
    for present, text in ((0, "0"), (False, "false"), (Decimal(0), "0"), (" ", "")):
        assert key_of("user|ip", user=present, ip="192.0.2.7") == f"{{user={text}}}"


def test_counts_and_deny_lists_take_every_spelling_and_allow_lists_one() -> None:
    """A merged spelling shares a count. On an allow list, it would give rights to another client."""
    settings = {
        "lists": {"allow": {"user": ["Root"]}, "deny": {"user": ["Mallory"]}},
        "rules": [{"limits": "1/minute", "key": "user", "per_key": {"Ann": "3/minute"}}],
    }
    limiter = Limiter.from_settings(settings, clock=ManualClock(1.0))
    assert [limiter.hit({"user": name}).denied for name in ("mallory", " MALLORY", "m\u00e1llory", "mallory2")] == [
        *(True, True, True, False)
    ]
    assert [len(limiter.hit({"user": name}).decisions) for name in ("Root", "root")] == [0, 1]
    assert [limiter.peek({"user": name}).decisions[0].limit for name in ("Ann", "ann")] == [3, 1]


def test_a_rule_matches_every_spelling() -> None:
    """A rule limits, so a client must not evade it by another spelling."""
    rate = limiter("1/minute", key=[], match={"user": ["Mallory"], "path:id as int": [7]})
    requests = [("mallory", "07"), ("MALLORY ", 7), ("mallory", "8"), ("mallory2", "7")]
    assert [len(rate.peek({"user": user, "path:id": number}).decisions) for user, number in requests] == [1, 1, 0, 0]


def test_a_reset_takes_every_spelling() -> None:
    """The key of a reset is built as that of a request."""
    rate = limiter("1/minute", key=["form:code", "path:id as int"])
    features = {"form:code": "Abc", "path:id": "7"}
    assert [bool(rate.hit(features)) for _ in range(2)] == [True, False]
    rate.reset("api", {"form:code": " abc", "path:id": 7})
    assert rate.hit(features)


# -- types -------------------------------------------------------------------------------------------------


def test_a_type_has_one_text_for_each_value() -> None:
    """Other texts are invalid: all of them share one count."""
    for part, value, form in (
        *(("path:id as int", text, "7") for text in ("7", "007", "+7", " 7 ", "7.0", "7.", "\uff17", "\u0667", 7)),
        *(("path:id as int", text, "1000") for text in ("1000", "1_000", 1000)),
        *(("path:id as int", text, "-7") for text in ("-7", "-07")),
        *(("path:id as int", text, INVALID) for text in ("", "x", "7a", "7.5", "0x7", "1e3", "9" * 5000, INVALID)),
        *(("query:id as uuid", text, str(ID)) for text in (ID, str(ID).upper(), ID.hex, f"{{{ID}}}", ID.urn)),
        *(("query:id as uuid", text, INVALID) for text in ("x", 7, ID.hex[:-1], "\u00e9" * 321)),
        *(("form:code as raw", text, text) for text in ("aB", " x", "\u00e9")),
        *(("path as raw", path, path) for path in ("//a/", "/../b")),
        ("ip/24", "192.0.2.7", "192.0.2.0/24"),
    ):
        ((name,),) = parse_key(part)
        assert part_of(name).form(value) == form
        assert part_of(name).exact(value) == form


class Plan(Enum):
    FREE = "free"
    PAIR = ("a", "b")


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    ONE = "One"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((7, "7"), (True, "true"), (False, "false"), (ID, str(ID)), (b"Ann", "Ann"), (b"\xff\x01", "ff01")),
        *((Plan.FREE, "free"), (Plan.PAIR, "PAIR"), (Level.LOW, "1"), (Word.ONE, "One")),
        *(pytest.param(number, INVALID, id="long") for number in (10**5000, Decimal("1e1000000"))),
        (Decimal("7" * 40), "7" * 40),
        *((Decimal("7.00"), "7"), (Decimal("-0"), "0"), (Decimal("1E+3"), "1E+3"), (Decimal("NaN"), INVALID)),
    ],
)
def test_a_value_has_one_stable_text(value: Any, text: Any) -> None:
    """Equal values of one type have one key, and tables use the same text."""
    assert part_of("user").exact(value) == text
    assert key_of("user", user=value) == key_of("user", user=text)


def test_other_types_are_an_error_without_the_value() -> None:
    """The text of such a value may change with each request, and may be personal: its memory address, for example."""
    for value in (1.5, ["a"], {"id": 7}, ("a",), User("ann"), User, object(), lambda request: "x"):
        rate = limiter(key=["user"])
        with (
            case(value),
            pytest.raises(FeatureTypeError, match=r"'user' is of type .* Return a str, int,.* 'user.id'") as caught,
        ):
            rate.hit({"user": value})
        assert isinstance(caught.value, ConfigError), value
        assert isinstance(caught.value, TypeError), value
        assert "ann" not in str(caught.value), value


# -- attributes --------------------------------------------------------------------------------------------


def test_a_part_reads_an_attribute_or_an_item() -> None:
    """A user keeps its count when other fields of it change."""
    rate = limiter("2/minute", key=["user.id"])
    users = [User("Ann", 1), User("ann", 2), {"id": "ann", "requests": 3}, Row()]
    assert [bool(rate.hit({"user": user})) for user in users] == [True, True, False, False]
    assert [rate.hit({"user": user}).rules for user in (None, {}, User(None), User(""))] == [()] * 4
    assert key_of("user.id", user=INVALID) == key_of("user.id", user=User(INVALID)) == "{user.id!&}"


def test_a_missing_attribute_is_an_error() -> None:
    """Else the rule would never apply."""
    for user in (User(7), Row(), "ann", 7):
        with pytest.raises(FeatureTypeError, match=r"'user' is of type .*, which has no attribute 'name'"):
            limiter(key=["user.name"]).hit({"user": user})


def test_lists_matches_and_tables_read_attributes() -> None:
    """Parts are read in one way everywhere."""
    rule = {"limits": "1/minute", "match": {"user.id": ["ann", "bob"]}, "per": {"user.requests": {"2": "9/minute"}}}
    settings = {"lists": {"deny": {"user.id": ["mallory"]}, "allow": {"user.id": ["root"]}}, "rules": [rule]}
    limiter = Limiter.from_settings(settings)
    assert limiter.rules.needs == ("user", "ip")
    assert limiter.hit({"user": User("Mallory")}).denied
    assert [len(limiter.hit({"user": User(name)}).decisions) for name in ("root", "carl", "ann")] == [0, 0, 1]
    assert [limiter.peek({"user": User("ann", n)}).decisions[0].limit for n in (1, 2)] == [1, 9]


def test_a_secret_digests_an_attribute() -> None:
    """The user's id is as personal as the user."""
    rule = {"limits": "1/minute", "key": "user.id"}
    limiter = Limiter.from_settings({"rules": [rule], "secret": "correct horse battery staple"})
    key = limiter.hit({"user": {"id": "ann"}}).decisions[0].key
    assert "user.id#" in key
    assert "ann" not in key


def test_an_invalid_part_is_an_error() -> None:
    """The error shows the part, and what to write."""
    for key, message in (
        ("path:id as integer", 'expected "path:id as int", "path:id as uuid" or "path:id as raw"; got'),
        ("path:id as", "expected a feature"),
        ("ip as raw", "'ip' is compared as an IP address. Leave out 'as raw'"),
        ("ip/24 as int", "'ip/24' is compared as an IP address"),
        ("path as int", "'path' is never a number or a UUID. Leave out 'as int'"),
        ("host.name", "'host' is a text and has no attributes; got 'host.name'"),
        ("user.a.b", "expected a feature"),
        ("user.", "expected a feature"),
    ):
        expect_error(message, parse_key, key)


def test_a_value_that_no_request_has_is_an_error() -> None:
    """A rule or a limit of such a value would never apply."""
    for rule, message in (
        ({"match": {"path:id as int": ["x"]}}, "match.path:id as int: 'x' is never a value of 'path:id as int'"),
        ({"per": {"query:id as uuid": {"x": "1/m"}}}, "'x' is never a value of 'query:id as uuid'"),
        ({"match": {"ip/24": ["192.0.2.0/24"]}}, 'expected "ip", whose values may be networks'),
    ):
        expect_error(message, Rule, limits="1/minute", **rule)


# -- annotations -------------------------------------------------------------------------------------------

Name = NewType("Name", str)


def returning(annotation: Any, of: Any = None) -> Any:
    def read(request: Any) -> Any:
        return None

    read.__annotations__["return"] = annotation
    return of(read) if of else read


class Reader:
    def __call__(self, request: Any) -> list[str]:
        return []


def test_annotations_that_name_no_class_give_no_types() -> None:
    """Those that cannot be read, or name no class, return no types."""
    for annotation, types in (
        (str, [str]),
        (Name, [str]),
        (str | None, [str, type(None)]),
        (Annotated[int | None, "id"], [int, type(None)]),
        (Awaitable[UUID], [UUID]),
        (dict[str, str], [dict]),
        (Any, []),
        ("Unknown", []),
    ):
        assert returned_types(returning(annotation)) == types, annotation
    assert returned_types(returning(User, partial)) == returned_types(User) == [User]
    assert returned_types(Reader()) == [list]
    assert returned_types(len) == []
