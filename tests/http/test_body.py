"""Body fields have the value that the application sees, or count as invalid."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from body_texts import BOUNDARY, END, FORM, JSON, MULTIPART, body, part
from calls import ask_wsgi
from tables import each
from wsgi_calls import listing

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.http.body import Body, parse_multipart
from ratelimit_mw.keys.features import INVALID
from ratelimit_mw.keys.parts import part_of
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware

# -- JSON --------------------------------------------------------------------------------------------------


@each(
    ("text", "path", "value"),
    [
        ('{"name": "ann"}', "name", "ann"),
        ('{"user": {"name": "ann"}}', "user.name", "ann"),
        ('{"a": {"b": {"c": 1}}}', "a.b.c", "1"),
        ('{"name": ""}', "name", ""),
        ('{"name": null}', "name", None),
        ("{}", "name", None),
        ('{"user": null}', "user.name", None),
        ('{"user": {}}', "user.name", None),
        ('{"user.name": "ann"}', "user.name", None),
        ('{"name": "\\u0061nn"}', "name", "ann"),
        ('{"name": "\\ud83d\\ude00"}', "name", "\U0001f600"),
        ('{"id": 7}', "id", "7"),
        ('{"id": 7.0}', "id", "7"),
        ('{"id": 7e0}', "id", "7"),
        ('{"id": -0.0}', "id", "0"),
        ('{"id": 7.5}', "id", "7.5"),
        ('{"id": true}', "id", "true"),
        ('{"id": false}', "id", "false"),
        ('{"id": 1e999}', "id", "inf"),
        ('{"id": NaN}', "id", "nan"),
    ],
)
def test_a_field_of_json_is_read_as_python_reads_it(text: str, path: str, value: str | None) -> None:
    """Dots address nested fields. The last of equal names counts, as in Python's parser. Equal numbers are one text."""
    assert body(text).json(path) == value
    assert body(text, "application/vnd.api+json; charset=utf-8").json(path) == value
    assert body(text.encode("utf-16")).json(path) == value


@each(
    "content",
    [
        b'{"name": "ann"',
        b"name=ann",
        b"\xff\xfe\xff",
        b"{'name': 'ann'}",
        b'{"name": ["ann"]}',
        b'{"name": {"first": "ann"}}',
        b'{"name": "\\ud800"}',
        b'{"name": "\\udc00ann"}',
        b'{"name": "' + b"\xff" + b'"}',
        b'{"name": "a\nb"}',
        b'{"name": ' + b"9" * 5000 + b"}",
        b"[" * 60_000,
        b'{"name":' * 8_000,
        b" ",
    ],
)
def test_json_that_cannot_be_parsed_is_invalid(content: bytes) -> None:
    """Malformed or deep JSON, a long number, a lone surrogate and a non-text value are invalid, never missing."""
    assert body(content).json("name") is INVALID


@each(
    ("text", "path"),
    [
        ('["name"]', "name"),
        ('[{"name": "ann"}]', "name"),
        ("[]", "name"),
        ('"name"', "name"),
        ("7", "name"),
        ("7.5", "name"),
        ("true", "name"),
        ("NaN", "name"),
        ("null", "name"),
        ('{"user": "ann"}', "user.name"),
        ('{"user": [{"name": "ann"}]}', "user.name"),
        ('{"user": 0}', "user.name"),
        ('{"user": ""}', "user.name"),
        ('{"user": false}', "user.name"),
        ('{"a": {"b": []}}', "a.b.c"),
    ],
)
def test_json_without_an_object_where_the_field_would_be_is_invalid(text: str, path: str) -> None:
    """A list, a number or a text in the place of an object is there and has no fields, so no rule is evaded."""
    for read in (Body.json, Body.field):
        assert read(body(text), path) is INVALID
    for kind in (FORM, MULTIPART, "text/plain"):  # some applications parse JSON under any content type
        assert body(text, kind).json(path) is INVALID
    parsed = Body.from_data(json.loads(text))
    assert parsed.json(path) is INVALID


# -- forms -------------------------------------------------------------------------------------------------


@each(
    ("text", "value"),
    [
        ("name=ann", "ann"),
        ("a=1&name=ann&b=2", "ann"),
        ("name=ann&name=bob", INVALID),
        ("name=ann&name=", INVALID),
        ("name=ann&n%61me=bob", INVALID),
        ("name=ann&name=%61nn", "ann"),
        ("name=", ""),
        ("name", ""),
        ("a=1&a=2", None),
        ("name=%61nn+b", "ann b"),
        ("n%61me=ann", "ann"),
        ("name=caf%C3%A9", "caf\u00e9"),
        ("a=caf\u00e9&name=ann", "ann"),
        ("name=%ff", INVALID),
        ("name=a=b", "a=b"),
        ("name=%zz", "%zz"),
        ("a=%3B&name=ann", "ann"),
        ("a=x;y&name=ann", "ann"),
    ],
)
def test_a_field_of_a_form(text: str, value: object) -> None:
    """A field is decoded once. Different values of one name are invalid: frameworks show the first or the last."""
    for kind in (FORM, FORM.upper() + "; charset=UTF-8"):
        assert body(text, kind).form("name") == value


@each(
    "content",
    [
        b"name=\xff",
        b"&".join([b"name=1"] * 1001),
        b"a=1;name=ann",  # Some parsers read two fields.
        b"name=ann;b=2",
        "name=caf\u00e9".encode(),  # Some parsers read UTF-8, others Latin-1.
    ],
)
def test_a_form_that_cannot_be_parsed_is_invalid(content: bytes) -> None:
    """Binary data, too many fields and fields that parsers read differently are invalid."""
    assert body(content, FORM).form("name") is INVALID


def test_a_multipart_form_has_text_fields_of_one_value() -> None:
    """Different values of one name are invalid. A file is not a text field."""
    content = (
        part("ann", "name")
        + part("ann", "name")
        + part("ann", "two")
        + part("bob", "two")
        + part("x", "file", '; filename="a.txt"')
        + part("", "")
        + END
    )
    fields = body(content, MULTIPART)
    names = ("name", "two", "file", "none", "")
    assert [fields.form(name) for name in names] == ["ann", INVALID, INVALID, None, ""]


@each(
    ("text", "value"),
    [
        ('{"name": "ann", "name": "bob"}', INVALID),
        ('{"name": "ann", "name": "ann"}', "ann"),
        ('{"name": 1, "name": true}', INVALID),
        ('{"name": "ann", "na\\u006de": "bob"}', INVALID),
        ('{"name": "ann", "name": null}', INVALID),
        ('{"a": 1, "a": 2, "name": "ann"}', "ann"),
        ('{"name": {"x": 1}, "name": {"x": 2}}', INVALID),
        ('{"user": {"name": "ann"}, "user": {"name": "bob"}, "name": "ann"}', "ann"),
    ],
)
def test_a_field_that_json_has_twice(text: str, value: object) -> None:
    """Parsers show the first or the last of them, so different values are invalid."""
    assert body(text).json("name") == value
    assert body('{"user": ' + text + "}").json("user.name") == value
    assert body('{"user": {"name": "ann"}, "user": {"name": "bob"}}').json("user.name") is INVALID


PLAIN = part("ann@x.org", "email")
LONG = "-" * 190 + BOUNDARY[-10:]


@each(
    ("content_type", "content"),
    [
        (f'multipart/form-data; boundary="{BOUNDARY}"', PLAIN + END),
        (f"Multipart/Form-Data;boundary={BOUNDARY}; charset=utf-8", PLAIN + END),
        (f'multipart/form-data; charset="UTF-8" ; boundary={BOUNDARY}', PLAIN + END),
        # Werkzeug's test client sometimes sends more than the 70 characters of RFC 2046. All frameworks accept them.
        (f"multipart/form-data; boundary={LONG}", (PLAIN + END).replace(BOUNDARY.encode(), LONG.encode())),
        (MULTIPART, b"\r\n" + PLAIN + END),
        (MULTIPART, PLAIN + END.rstrip()),
        (MULTIPART, part("ann@x.org", headers="Content-Type: text/plain; charset=utf-8\r\n") + END),
        (MULTIPART, part("ann@x.org", headers="content-transfer-encoding: 8bit\r\nX-Own: 1\r\n") + END),
        (MULTIPART, part(b"\xff\x00", "file", '; filename="a"', "Content-Type: image/png\r\n") + PLAIN + END),
        (MULTIPART, part("", "file", "; filename*=utf-8''a") + PLAIN + END),
        (MULTIPART, PLAIN.replace(b"form-data; name", b"form-data;name") + END),
    ],
)
def test_multipart_forms_of_real_clients_are_read(content_type: str, content: bytes) -> None:
    """The parser reads multipart forms as browsers and libraries write them."""
    assert body(content, content_type).form("email") == "ann@x.org"


@each(
    ("content_type", "content"),
    [
        ("multipart/form-data", PLAIN + END),
        (f"multipart/form-data; boundary={BOUNDARY}; boundary=other", PLAIN + END),
        (f"multipart/form-data; boundary={BOUNDARY}; charset=utf-16", PLAIN + END),
        ("multipart/form-data; boundary=a b", PLAIN + END),
        ("multipart/form-data; boundary=" + "a" * 201, PLAIN + END),
        (MULTIPART, PLAIN),
        (MULTIPART, b""" x""" + PLAIN + END),
        (MULTIPART, PLAIN + END + b"x"),
        (MULTIPART, PLAIN + END + END),
        (MULTIPART, PLAIN.replace(b"\r\n", b"\n") + END),
        (MULTIPART, part(f"a\n--{BOUNDARY}\nb") + END),
        (MULTIPART, part("a", headers="Content-Transfer-Encoding: base64\r\n") + END),
        (MULTIPART, part("a", headers="Content-Type: text/plain; charset=utf-7\r\n") + END),
        (MULTIPART, part("a", headers='Content-Disposition: form-data; name="other"\r\n') + END),
        (MULTIPART, part("a", headers=" folded\r\n") + END),
        (MULTIPART, part("a", headers="X: \x0b\r\n") + END),
        (MULTIPART, part("a", headers="no header\r\n") + END),
        (MULTIPART, part("a", more="; name=other") + END),
        (MULTIPART, part("a", name='a\\"b') + END),
        (MULTIPART, part("a", name=" email") + END),
        (MULTIPART, part("a", name="email\u2003") + END),
        (MULTIPART, part("a", name="other", more='; filename=""; name="email"') + END),
        (MULTIPART, part("a", headers="Content-Type: text/plain; charset=utf-8-sig\r\n") + END),
        (MULTIPART, part(b"\xff") + END),
        (MULTIPART, part("a").replace(b"email", b"em\xffil") + END),
        (MULTIPART, part("a").replace(b'"email"', b"email") + END),
        (MULTIPART, f"--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\na\r\n".encode() + END),
        (MULTIPART, f"--{BOUNDARY}\r\n\r\na\r\n".encode() + END),
        (MULTIPART, PLAIN.replace(b"\r\n", b"xx", 1) + END),
        (MULTIPART, PLAIN[:-2] + b"xx" + END),
        (MULTIPART, PLAIN.replace(b"\r\n\r\n", b"\r\n") + END),
        (MULTIPART, PLAIN * 1001 + END),
        (MULTIPART, PLAIN * 1010 + END),
    ],
)
def test_unusual_multipart_forms_are_invalid(content_type: str, content: bytes) -> None:
    """A body that is no multipart form, or that parsers read differently, is invalid."""
    assert body(content, content_type).form("email") is INVALID


def test_a_thousand_parts_are_read() -> None:
    """The parser accepts as many parts as the frameworks."""
    assert len(parse_multipart(PLAIN * 1000 + END, MULTIPART) or ()) == 1000
    assert parse_multipart(END, MULTIPART) == []


def test_a_form_parsed_by_a_framework_has_the_same_fields() -> None:
    """When the bytes are gone, the form of the framework gives the same values, including unusual ones."""
    pairs = [
        ("name", "ann;b=2&c+%41"),
        ("two", "ann"),
        ("two", "bob"),
        ("\u00e9", "\u00fc"),
        ("", ""),
        ("email", "Ann@x.org"),
    ]
    fields = Body.from_form(pairs)
    assert (fields.form("name"), fields.form("\u00e9"), fields.form("none")) == ("ann;b=2&c+%41", "\u00fc", None)
    assert (fields.field("email"), fields.json("name"), fields.form("two")) == ("Ann@x.org", None, INVALID)
    assert Body.from_form([]).form("name") is None
    assert [Body.from_form([], ["name"]).form(name) for name in ("name", "two")] == [INVALID, None]


# -- content types -----------------------------------------------------------------------------------------


@each("content_type", [JSON, FORM, MULTIPART, "text/plain", ""])
def test_an_empty_body_is_missing_and_a_malformed_one_is_invalid(content_type: str) -> None:
    """This holds for every content type."""
    for read in (Body.form, Body.json, Body.field):
        assert read(body(None, content_type), "email") is None
        assert read(body(b"", content_type), "email") is None
        assert read(body(INVALID, content_type), "email") is INVALID


@each("kind", ["text/plain", "", "application/octet-stream", "text/json", f"{JSON}, {FORM}", "json"])
def test_an_unsupported_content_type_is_invalid(kind: str) -> None:
    """An application may parse such a body, so the field is invalid and the limit applies."""
    for content in ('{"email": "ann@x.org"}', "email=ann@x.org"):
        assert body(content, kind).form("email") is INVALID
        assert body(content, kind).json("email") is INVALID
        assert body(content, kind).field("email") is INVALID


def test_json_is_read_under_any_content_type() -> None:
    """Some applications parse JSON under any content type, so the limit reads its fields, too."""
    text = '{"name": "ann"}'
    assert body(text, FORM).json("name") == "ann"
    assert body(text, FORM).form("name") is None
    assert body(text, MULTIPART).json("name") is INVALID
    assert body(text, JSON).form("name") is None
    assert body("name=ann", FORM).json("name") is None
    assert body("name=ann", JSON).form("name") is INVALID
    assert body("name=ann;b", FORM).json("name") is None
    assert body(b"\xff", FORM).json("name") is INVALID


# -- fields of forms and JSON ------------------------------------------------------------------------------


@each(
    ("content", "kind", "field"),
    [
        ('{"email": " Ann@X.org"}', JSON, " Ann@X.org"),
        ('{"email": 7.0}', JSON, "7"),
        ("email=Ann%40X.org", FORM, "Ann@X.org"),
        (part("Ann@X.org") + END, MULTIPART, "Ann@X.org"),
        ('{"email": "Ann@X.org"}', FORM, "Ann@X.org"),
        ("email=+", FORM, " "),
        ("a=1", FORM, None),
        ("{}", JSON, None),
        (None, JSON, None),
        ("email=Ann", JSON, INVALID),
        ("email=Ann&email=Bob", FORM, INVALID),
        ('{"email": "Ann", "email": "Bob"}', JSON, INVALID),
        ('{"email": ["ann@x.org"]}', JSON, INVALID),
        ('{"email": "\\ud800@x.org"}', JSON, INVALID),
        (json.dumps({"email": "a" * 330}), JSON, "a" * 330),
        (part("Ann", more='; filename="a"') + END, MULTIPART, INVALID),
        ('{"email": "Ann"}', MULTIPART, INVALID),
        ("email=Ann", "text/plain", INVALID),
        ('{"email": "Ann"}', "text/plain", INVALID),
        ('{"email": "Ann", "a": "&email=Bob&"}', FORM, INVALID),
        ('{"email": "bob@x.org"', FORM, None),
    ],
)
def test_a_field_is_read_from_json_and_forms(content: Any, kind: str, field: Any) -> None:
    """No kind of body hides the field: it has one value in a form and in JSON, or it is invalid."""
    assert body(content, kind).field("email") == field


# -- email -------------------------------------------------------------------------------------------------


def test_a_field_of_an_email_may_be_nested() -> None:
    """Dots address nested fields in JSON. In a form the field has this literal name."""
    assert body('{"user": {"mail": "Ann@X.org"}}').field("user.mail") == "Ann@X.org"
    assert body("user.mail=Ann@X.org", FORM).field("user.mail") == "Ann@X.org"


def test_limits_by_value_match_any_spelling() -> None:
    """Tables and lists of the settings have every spelling."""
    rule = Rule(limits="2/minute", key=["email:form:username"], per_key={"Ann@B.example": ["3/minute"]})
    app = RateLimitMiddleware(listing, limiter=Limiter([rule], clock=ManualClock(1_000_000.0)))
    sent = [ask_wsgi(app, method="POST", data={"username": "ann@b.example"}).status_code for _ in range(4)]
    assert sent == [200, 200, 200, 429]


def test_a_secret_digests_the_address() -> None:
    """The addresses in all fields are personal."""
    settings = load_settings(
        {"secret": "correct horse battery staple", "rules": [{"key": "email:form:username", "limits": "1/minute"}]}
    )
    limiter = Limiter.from_settings(settings)
    keys = limiter.rules.by_name["rule-1"].key.build({"email:form:username": "ann@b.example"})
    assert keys is not None
    assert "ann" not in keys


@each("text", ["email:", "email:username", "email:email", "email:form:", "email:nope:x"])
def test_a_field_needs_its_place(text: str) -> None:
    """A field needs the place where it is."""
    with pytest.raises(ConfigError, match="expected a feature"):
        part_of(text)


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
    assert body(content, kind).field("email") in (None, INVALID)
