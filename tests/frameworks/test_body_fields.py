"""A key and a cost may be in the body of a request, which the view receives unchanged. Deny lists hold in all forms."""

import json
from typing import Any
from urllib.parse import quote

from sites import Build, Call, limited, routed
from tables import each

from ratelimit_mw import Rule

JSON = {"content-type": "application/json"}
OPTIONS: Any = {"limits": "1000/minute", "cost": "json:max_tokens|10", "name": "tokens"}


async def echo(call: Call) -> str:
    return (await call.read()).decode("latin-1")


@each(
    ("body", "cost"),
    [
        (b'{"max_tokens": 150}', 150),
        (b'{"max_tokens": "150"}', 150),
        (b'{"max_tokens": 12.5}', 13),
        (b'{"max_tokens": 1000}', 1000),
        (b'{"max_tokens": 1001}', 1000),
        (b'{"max_tokens": 1e400}', 1000),
        (b'{"max_tokens": %s}' % (b"9" * 4000), 1000),
        (b'{"max_tokens": %s}' % (b"9" * 5000), 1000),
        (b'{"max_tokens": 1, "max_tokens": 900}', 1000),
        (b'{"max_tokens": [1]}', 1000),
        (b'{"max_tokens": 1', 1000),
        (b'{"max_tokens": 1, "prompt": "%s"}' % (b"x" * 70_000), 1000),
        (b'{"max_tokens": 0}', 10),
        (b'{"max_tokens": -5}', 10),
        (b'{"max_tokens": NaN}', 10),
        (b'{"max_tokens": true}', 10),
        (b'{"max_tokens": null}', 10),
        (b'{"max_tokens": "many"}', 10),
        (b"{}", 10),
        (b"[7]", 1000),
        (b"", 10),
    ],
)
def test_a_field_of_the_body_is_the_cost(site: Build, body: bytes, cost: int) -> None:
    """The first request passes whatever it says, and none costs nothing."""
    served = site(Rule(unit="tokens", **OPTIONS), echo)
    response = served.call("POST", content=body, headers=JSON)
    assert (response.status_code, response.content) == (200, body)
    assert served.left() == [1000 - cost]


@each("body", [b'{"max_tokens": 0}', b'{"max_tokens": 1000000}', b"{}", b"garbage"])
def test_no_estimate_passes_for_ever_or_never(site: Build, body: bytes) -> None:
    """Whatever the body says, some requests of a client pass, and then the limit rejects it."""
    served = site(Rule(**{**OPTIONS, "limits": "30/minute"}))
    assert served.statuses(5, "POST", content=body, headers=JSON)[::4] == [200, 429]


@routed
@each(("body", "cost"), [(b'{"max_tokens": 15}', 15), (b'{"max_tokens": 5000}', 1000), (b"{}", 10)])
def test_a_limit_on_a_view_reads_the_body(site: Build, body: bytes, cost: int) -> None:
    """It has the same cost, and the view receives the same body."""
    served = site([], limited(echo, **OPTIONS))
    assert served.call("POST", content=body, headers=JSON).content == body
    assert served.left() == [1000 - cost]


def test_a_field_has_one_count_for_each_value(site: Build) -> None:
    """It is the same for JSON, for a form and for parts. A rule skips a body without the field."""
    served = site(Rule(limits="2/minute", key=["field:email"]), echo)
    sent: list[dict[str, Any]] = []
    for email in ("ann@x.org", "bob@x.org"):
        sent += [{"json": {"email": email}}, {"data": {"email": email}}, {"files": {"email": (None, email)}}]
    assert [served.call("POST", **body).status_code for body in sent] == [200, 200, 429] * 2
    assert [served.call("POST", **body).status_code for body in [{"json": {"other": 1}}, {}] * 2] == [200] * 4
    assert served.left(**{"field:email": "ann@x.org"}) == [0]


@each(
    ("part", "sent"),
    [
        ("email", lambda text: {"json": {"email": text}}),
        ("email", lambda text: {"data": {"email": f" {text} "}}),
        ("email:form:username", lambda text: {"data": {"username": text}}),
        ("email:json:user.mail", lambda text: {"json": {"user": {"mail": text}}}),
        ("email:field:mail", lambda text: {"data": {"mail": text}}),
        ("email:header:x-mail", lambda text: {"headers": {"X-Mail": text}}),
    ],
)
def test_spellings_of_an_email_address_share_a_count(site: Build, part: str, sent: Any) -> None:
    """In each field that may hold one. A request without the field is not limited."""
    served = site(Rule(limits="1/minute", key=[part]))
    texts = ("ann@x.org", "Ann@X.org.", "bob@x.org")
    assert [served.call("POST", **sent(text)).status_code for text in texts] == [200, 429, 200]
    assert served.statuses(2, "POST") == [200, 200]
    assert served.left(**{part: "ann@x.org"}) == [0]


@each(
    ("part", "body"),
    [
        *((part, []) for part in ("field:email", "email", "json:user.email", "email:json:email")),
        *(("json:email", body) for body in ([{"email": "ann@b.c"}], [], 7, "ann@b.c", True)),
        ("json:user.email", {"user": ["x"]}),
        ("json:email", {"email": {}}),
    ],
)
def test_json_that_is_no_object_evades_no_rule(site: Build, part: str, body: Any) -> None:
    """All such bodies share one count."""
    served = site(Rule(limits="1/minute", key=[part]))
    assert served.statuses(3, "POST", content=json.dumps(body), headers=JSON) == [200, 429, 429]


INVALID: list[dict[str, Any]] = [
    {"content": b"{", "headers": JSON},
    {"content": b'{"user": [1]}', "headers": JSON},
    {"content": b'{"user": "ann"}', "headers": {"content-type": "text/plain"}},
    {"content": b'{"user": "ann"}'},
    {"content": b'{"user": "ann"}', "headers": {**JSON, "content-encoding": "gzip"}},
    {"content": b'{"user": "ann"}', "headers": [*JSON.items(), ("content-type", "text/plain")]},  # frameworks differ
    {"content": b" " * 65_536 + b'{"user": "ann"}', "headers": JSON},
]


@each("request_", INVALID)
def test_invalid_bodies_share_one_count(site: Build, request_: dict[str, Any]) -> None:
    """None has the count of a valid value, and all arrive whole."""
    served = site(Rule(limits="1/minute", key=["json:user"]), echo)
    first = served.call("POST", **request_)
    assert (first.status_code, first.content) == (200, request_["content"])
    others = (INVALID[0], {"json": {"user": "ann"}})
    assert [served.call("POST", **other).status_code for other in others] == [429, 200]


@each("encoding", ["identity", "Identity "])
def test_identity_encoding_changes_nothing(site: Build, encoding: str) -> None:
    served = site(Rule(limits="1/minute", key=["json:user"]))
    sent = [{"json": {"user": name}, "headers": {"content-encoding": encoding}} for name in ("ann", "ann", "bob")]
    assert [served.call("POST", **body).status_code for body in sent] == [200, 429, 200]


@each(("options", "limit"), [({}, 65_536), ({"body_limit": "1KiB"}, 1024), ({"body_limit": 20}, 20)])
def test_a_body_at_the_bound_is_read_and_one_byte_more_is_not(site: Build, options: Any, limit: int) -> None:
    """``body_limit`` is text or a number of bytes."""
    served = site(Rule(limits="9/minute", key=["json:user"]), echo, **options)
    for size in (limit, limit + 1):
        content = b'{"user": "ann"}'.ljust(size)
        assert served.call("POST", content=content, headers=JSON).content == content
    assert served.left(**{"json:user": "ann"}) == [8]


# -- no way to write a denied value gets past a deny list ------------------------------------------------------

FORM = {"content-type": "application/x-www-form-urlencoded"}
DENIED = ["form:name", "json:name", "query:name", "cookie:name", "header:x-name"]
SPELLINGS = [" mallory", "MALLORY", "\uff4dallory", "mal\u200blory", "m\u00e1llory"]


def sent(feature: str, *values: str) -> dict[str, Any]:
    """Return a request that has these values of a feature."""
    encoded = [quote(value) for value in values]
    if feature == "form:name":
        return {"method": "POST", "headers": FORM, "content": "&".join(f"name={value}" for value in encoded)}
    if feature == "json:name":
        fields = ", ".join(f'"name": "{value}"' for value in values)
        return {"method": "POST", "headers": JSON, "content": f"{{{fields}}}"}
    if feature == "query:name":
        return {"path": "/?" + "&".join(f"name={value}" for value in encoded)}
    if feature == "cookie:name":
        return {"headers": {"cookie": "; ".join(f"name={value}" for value in values)}}
    return {"headers": [("x-name", value) for value in values]}


@each("feature", DENIED)
def test_a_denied_value_is_denied(site: Build, feature: str) -> None:
    """In spellings that the application may take for it, and beside other values, of which it may show the first."""
    spellings = [(text,) for text in SPELLINGS] if feature in DENIED[:3] else []
    doubled = [("mallory", "ann"), ("ann", "mallory"), ("mallory", "")] if feature in DENIED[:-1] else []
    served = site({"lists": {"deny": {feature: ["Mallory"]}}})
    for values in [("Mallory",), *spellings, *doubled]:
        denied = served.call(**sent(feature, *values))
        assert (denied.status_code, denied.json()["title"]) == (403, "Forbidden"), values
        assert denied.json()["violated-policies"] == []
    assert served.call(**sent(feature, "ann")).status_code == 200


@each(
    ("feature", "request_"),
    [
        ("json:name", {"headers": JSON, "content": '{"name": "ann"'}),
        ("json:name", {"headers": JSON, "content": '{"name": ["ann"]}'}),
        ("json:name", {"headers": {"content-type": "application/json; charset=utf-16"}, "content": '{"name": "x"}'}),
        ("form:name", {"headers": FORM, "content": "name=ann&x=" + "y" * 70_000}),
        ("form:name", {"headers": {**FORM, "content-encoding": "gzip"}, "content": "name=ann"}),
        ("form:name", {"headers": FORM, "content": "&".join(["x=1"] * 1001) + "&name=ann"}),
        ("query:name", {"path": "/?" + "&".join(["x=1"] * 1001) + "&name=ann"}),
    ],
)
def test_an_unreadable_value_is_denied(site: Build, feature: str, request_: dict[str, Any]) -> None:
    """The application may read a value that the middleware cannot. These would be allowed if they were readable."""
    served = site({"lists": {"deny": {feature: ["Mallory"]}}})
    assert served.call(**{"method": "POST", **request_}).status_code == 403
