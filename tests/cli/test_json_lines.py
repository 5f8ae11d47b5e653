"""JSON lines of common servers are read like lines of the combined format, and fields can be named."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each, expect_error

from ratelimit_mw import INVALID
from ratelimit_mw.cli.access_log import FORWARDED_FOR, InvalidLineError, LogEntry, RequestTarget
from ratelimit_mw.cli.json_lines import check_field
from ratelimit_mw.cli.log_formats import LineParser

NOON = 1431857103  # 17 May 2015, 10:05:03 UTC
SIMPLE = {"time": NOON, "ip": "192.0.2.7", "method": "GET", "path": "/a?b=1", "status": 200}


def parse(record: Any, fields: dict[str, str] | None = None, *needs: str) -> LogEntry:
    return LineParser(fields, needs)(json.dumps(record).encode())


def why_not(record: Any, fields: dict[str, str] | None = None) -> str:
    with pytest.raises(InvalidLineError) as error:
        parse(record, fields)
    return str(error.value)


SERVERS = [json.loads(text) for text in Path(__file__).with_name("logs").joinpath("json.log").read_text().splitlines()]
"""The same request in the logs of nginx with two settings, Caddy, Traefik and Envoy."""


@each("record", SERVERS)
def test_logs_of_common_servers(record: dict[str, Any]) -> None:
    """The request has the same parts. Envoy writes no user, and no header."""
    entry = parse(record, None, "header:x-api-key")
    target = RequestTarget("/a", "b=1", "example.com")
    user, features = ("alice", {"header:x-api-key": "k1"}) if record is not SERVERS[-1] else (None, {})
    assert entry == LogEntry("192.0.2.7", user, NOON, "GET", target, 200, None, "curl/8.1", features, "JSON lines")


TIMES = [
    *((NOON, NOON), (NOON + 0.25, NOON + 0.25), (str(NOON), NOON), (f"{NOON}.250", NOON + 0.25)),
    *((NOON * 10**power + 10**power // 4, NOON + 0.25) for power in (3, 6, 9)),
    *((text, NOON) for text in ("2015-05-17T10:05:03Z", "2015-05-17T10:05:03+0000", "2015-05-17 10:05:03")),
    *(("2015-05-17T12:05:03.250+02:00", NOON + 0.25), ("17/May/2015:10:05:03 +0000", NOON)),
]
NESTED_STATUS = {"status": None, "http": {"response": {"status_code": 404}}}


@each(
    ("record", "field", "value"),
    [
        # Any form of a time that servers write. Without a zone it is UTC.
        *(({"time": written}, "time", seconds) for written, seconds in TIMES),
        # A missing client and a missing user are missing.
        *(({"ip": missing}, "client", None) for missing in (None, [])),
        *(({name: ""}, name, None) for name in ("user", "user_agent")),
        ({"user": "-"}, "user", None),
        # A dot may separate names, or may be a part of a name.
        *((names, "user", "alice") for names in ({"user": {"name": "alice"}}, {"user.name": "alice"})),
        *((names, "status", 404) for names in (NESTED_STATUS, {"status": None, "http.response.status_code": 404})),
        ({"path": "/a%20b", "args": "c=1"}, "target", RequestTarget("/a b", "c=1")),
        # A list keeps what the client may have sent on its left: only trusted proxies decide how far it is read.
        ({"ip": "x, 203.0.113.1"}, "client", "x, 203.0.113.1"),
        ({"ip": ["x", "203.0.113.1"]}, "client", "x,203.0.113.1"),
    ],
)
def test_a_part_of_a_request(record: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(parse({**SIMPLE, **record}), field) == value


NO_TIMES = ["", "-", None, True, [], "noon", "nan", "inf", -1, 10**30, 10**400, "9" * 5000, "2015-02-30T00:00:00Z"]
NO_CLIENTS = [
    *("2015-05-17T10:05:03Z", "ios", 5, "10.0.0.1/8", "x, y", "203.0.113.1, ", "203.0.113.1,junk", ["a b"], "a:443"),
]


@each(
    ("record", "reason"),
    [
        *(({"time": time}, "the date is invalid|the date is before 1970|not JSON") for time in NO_TIMES),
        *(({"status": each}, "the status is invalid|not JSON") for each in ("", "ok", None, -1, 1000, 10**400, [200])),
        *(({"ip": client}, "is neither an IP address nor a host name") for client in NO_CLIENTS),
        # A connection without a request is not a request.
        ({"path": None, "request": ""}, "not an HTTP request"),
        ({"path": None, "request": None}, "not an HTTP request"),
    ],
)
def test_a_line_with_an_invalid_part_is_invalid(record: dict[str, Any], reason: str) -> None:
    assert re.search(reason, why_not({**SIMPLE, **record}))


@each("name", ["time", "ip", "method", "path", "status"])
def test_required_parts(name: str) -> None:
    """A line without one of these parts is invalid, with the option that names its field."""
    record = {key: value for key, value in SIMPLE.items() if key != name}
    assert why_not(record) == f"no field for the {name}. Name it with --field {name}=FIELD"
    assert why_not(record, {name: "at.all"}) == f"no field 'at.all' for the {name}"


@each(
    ("name", "record", "expected"),
    [
        # X-Forwarded-For is found by the names of common servers, and all its lines are one list.
        (FORWARDED_FOR, {"x_forwarded_for": "a, 203.0.113.1"}, "a, 203.0.113.1"),
        (FORWARDED_FOR, {"http_x_forwarded_for": "a, 203.0.113.1"}, "a, 203.0.113.1"),
        (FORWARDED_FOR, {"request": {"headers": {"X-Forwarded-For": ["a", " 203.0.113.1"]}}}, "a, 203.0.113.1"),
        # An empty line hides no other line. Several lines of another header are invalid, as in the middleware.
        (FORWARDED_FOR, {"xff": ["", "203.0.113.1"]}, ",203.0.113.1"),
        ("header:x-real-ip", {"http_x_real_ip": ["", "203.0.113.1"]}, INVALID),
        ("header:x-real-ip", {"http_x_real_ip": ["203.0.113.1", "203.0.113.1"]}, INVALID),
        ("header:x-real-ip", {"http_x_real_ip": ["203.0.113.1"]}, "203.0.113.1"),
        *(("header:x-real-ip", {"http_x_real_ip": missing}, None) for missing in ([""], [], None)),
    ],
)
def test_lines_of_a_header(name: str, record: dict[str, Any], expected: Any) -> None:
    assert parse({**SIMPLE, **record}, None, name).features.get(name) == expected


def test_named_fields() -> None:
    """``--field`` replaces the names of a part, and adds features."""
    parser = LineParser({"ip": "peer", "plan": "account.plan", "header:x-a": "a", "email": "mail", "n": "n"})
    record = {**SIMPLE, "peer": "198.51.100.1", "account": {"plan": "pro"}, "a": ["1", "2"], "mail": " Ann@X.org "}
    entry = parser(json.dumps({**record, "n": 1.5}).encode())
    assert entry.client == "198.51.100.1"
    assert entry.features == {"plan": "pro", "header:x-a": INVALID, "email": "ann@x.org", "n": "1.5"}
    assert parser.found == set(entry.features)
    assert parse({**SIMPLE, "plan": None}, {"plan": "plan"}).features == {}


def test_option_field() -> None:
    """A name is a part of a request or a feature, in its canonical form. Anything else is an error."""
    texts = ["time=ts", "user=account.id", "header:X-API-Key=key", "plan=a=b", "user.id=account.id"]
    fields = {"time": "ts", "user": "account.id", "header:x-api-key": "key", "plan": "a=b", "user.id": "account.id"}
    assert dict(map(check_field, texts)) == fields
    for text in ("", "user", "user=", "=a", "User=a", "query:a=b", "plan as int=a", "a b=c"):
        expect_error("expected", check_field, text)


@each(
    "line",
    [b"{", b"{}x", b'{"a":' * 20_000, b'{"time": NaN}', b'{"path": "\\ud800"}', b"{" + b"x" * 70_000, b"{1: 2}"],
)
def test_hostile_json_is_invalid(line: bytes) -> None:
    """A line that is not JSON is invalid, however deep or long it is."""
    with pytest.raises(InvalidLineError):
        LineParser()(line)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*SIMPLE, *chain(*SERVERS), "account"]), VALUES, max_size=9))
def test_any_record_is_read_or_invalid(record: dict[str, Any]) -> None:
    """Any values give an entry or an ``InvalidLineError``, and no other exception."""
    try:
        entry = parse({**SIMPLE, **record}, {"plan": "account"}, "header:x-api-key")
    except InvalidLineError:
        return
    assert 0 <= entry.time < 10**12
    assert isinstance(entry.target.path, str)
    assert isinstance(entry.client, str | None)
