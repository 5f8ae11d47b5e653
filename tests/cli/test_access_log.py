"""Lines of the common, the combined and JSON formats: every field is read, and no other line has a wrong client."""

import json
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from ratelimit_mw import INVALID
from ratelimit_mw.cli.access_log import FORWARDED_FOR, MAX_LINE, InvalidLineError, LogEntry, RequestTarget
from ratelimit_mw.cli.log_formats import LineParser
from ratelimit_mw.cli.logs import RequestLog

COMMON = '192.0.2.7 - alice [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 12'
FEATURES = ("user", "header:referer", "header:user-agent")
NOON = 1431857103  # 17 May 2015, 10:05:03 UTC


def line(
    client: str = "192.0.2.7",
    user: str = "-",
    time: str = "17/May/2015:10:05:03 +0000",
    request: str = "GET / HTTP/1.1",
    status: str = "200",
    size: str = "12",
    referer: str = "-",
    agent: str = "-",
) -> str:
    """Return a combined line with the given fields."""
    return f'{client} - {user} [{time}] "{request}" {status} {size} "{referer}" "{agent}"'


def parse(text: bytes | str) -> LogEntry:
    return LineParser(FEATURES)(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))


def why_not(text: bytes | str) -> str:
    with pytest.raises(InvalidLineError) as error:
        parse(text)
    return str(error.value)


def part_of(entry: LogEntry, name: str) -> object:
    return getattr(entry, name) if name in LogEntry._fields else entry.features.get(name)


def test_the_common_format_is_read() -> None:
    expected = LogEntry("192.0.2.7", NOON, "GET", RequestTarget("/a"), 200, {"user": "alice"}, "common")
    assert parse(COMMON) == expected


@each(
    ("text", "field", "value"),
    [
        (line(referer="https://example.com/").encode() + b"\r\n", "header:referer", "https://example.com/"),
        # Some formats append fields to the combined format.
        (line(agent="curl") + ' "198.51.100.4" 0.004', "header:user-agent", "curl"),
        (COMMON + ' 0.004 "x', "header:referer", None),
        # A response without a body has a dash instead of its size.
        (line(size="-", status="304"), "status", 304),
        *((line(user=absent), "user", None) for absent in ("-", '""', "")),
        *((line(user=user), "user", user) for user in ("a[b", "][")),
        # A line may be truncated within its last field.
        (line(agent="Mozilla/5.0 (compat")[:-1], "header:user-agent", "Mozilla/5.0 (compat"),
        # Escapes of Apache and nginx, and bytes that are not UTF-8.
        *(
            (line(agent=written), "header:user-agent", text)
            for written, text in (
                *((r"say \"hi\"", 'say "hi"'), (r"a\\b", "a\\b"), (r"\x22\x5C", '"\\'), (r"caf\xc3\xa9", "caf\u00e9")),
                *((r"\xff", "\ufffd"), (r"a\tb", "a\tb"), ("\udcff", "\ufffd"), ("\udcff\\n", "\ufffd\n")),
            )
        ),
        # Any zone, and a leap second, which becomes the second before.
        (line(time="17/May/2015:12:05:03 +0200"), "time", NOON),
        (line(time="17/May/2015:06:35:03 -0330"), "time", NOON),
        (line(time="01/Jan/1970:00:00:00 +0000"), "time", 0),
        (line(time="31/Dec/2016:23:59:60 +0000"), "time", 1483228799),
        (line(time="29/Feb/2024:00:00:00 +0000"), "time", 1709164800),
        (line(request="get /a b HTTP/1.0"), "method", "GET"),
        (line(request="get /a b HTTP/1.0"), "target", RequestTarget("/a b")),
        # The format main of nginx ends with X-Forwarded-For, and the client may have sent its left part.
        (line() + r' "\x22x, 203.0.113.1" 0.004', "features", {FORWARDED_FOR: '"x, 203.0.113.1'}),
        (line() + ' "x, 203.0.113.1"', "format", "combined with X-Forwarded-For"),
        *(
            (line() + ending, "features", {})
            for ending in ("", ' "-"', ' "3.20"', ' "unknown"', ' 0.004 "203.0.113.1"', ' "203.0.113.1')
        ),
    ],
)
def test_a_field_of_a_line(text: bytes | str, field: str, value: object) -> None:
    """Each field is read in all spellings of both servers. Other text after the user agent changes nothing."""
    assert part_of(parse(text), field) == value


@each(
    ("before", "client", "host", "after"),
    [
        ("shop.example.org 203.0.113.9", "203.0.113.9", "shop.example.org", " after a host name"),
        ("shop:443 203.0.113.9", "203.0.113.9", "shop", " after a host name"),
        ("localhost [2001:DB8::1]:443", "2001:db8::1", "localhost", " after a host name"),
        ("<13>May  7 10:05:01 web1 nginx[12]: 203.0.113.9", "203.0.113.9", "", " after a syslog prefix"),
        ("2026-05-17T10:05:01.4+00:00 web1 nginx: ::1", "::1", "", " after a syslog prefix"),
        ("2026-05-17T10:05:01Z stderr F 203.0.113.9", "203.0.113.9", "", " after a Kubernetes prefix"),
        ("2026-05-17T10:05:01.123456789Z 203.0.113.9", "203.0.113.9", "", " after a time prefix"),
        (
            "2026-05-17T10:05:01Z stdout F a.example 203.0.113.9",
            *("203.0.113.9", "a.example", " after a Kubernetes prefix and a host name"),
        ),
        ("203.0.113.9:4711", "203.0.113.9", "", ""),
        ("[2001:db8::1]", "2001:db8::1", "", ""),
        ("Client.Example.org", "client.example.org", "", ""),
        ("unix:", "unix:", "", ""),
        ("-", None, "", ""),
        ("\ufeff203.0.113.9", "203.0.113.9", "", ""),
    ],
)
def test_words_before_the_client(before: str, client: str | None, host: str, after: str) -> None:
    """The client is found after known words, without its port and brackets."""
    entry = parse(line(before))
    assert (entry.client, entry.target.host, entry.format) == (client, host, f"combined{after}")


BEFORE_THE_TIME = [
    *("203.0.113.1, 10.0.0.1", "203.0.113.1,10.0.0.1", "10.0.0.9 203.0.113.1", "203.0.113.1:4711 10.0.0.1"),
    *("[203.0.113.1]x", "fe.example fe.de", "shop 203.0.113.1", "shop.example:443", "shop.example x", "nginx:"),
    *("May", "May 17 10:05:01 web1", "2026-05-17T10:05:01+00:00", "2026-05-17T10:05:01Z stdout P 203.0.113.1"),
    *("1715940301.123", "web_1  | 203.0.113.1", "203.0.113.1 - [203.0.113.1]", "<script>", "0.0.0.0"),
    *("a" * 300 + ".example", "1" * 300),
]
USERS = ["Alice B", "- Alice", "203.0.113.1", "x 203.0.113.1 - -"]
OTHER_FORMATS = [
    'INFO:     192.0.2.7:5000 - "GET / HTTP/1.1" 200 OK',
    '[17/May/2026 10:05:01] "GET / HTTP/1.1" 200 12',
    '127.0.0.1 - - [17/May/2026 10:05:01] "GET / HTTP/1.1" 200 -',
    '127.0.0.1 192.0.2.7 - [17/May/2026:10:05:01 +0000] "GET / HTTP/1.1" 200 -',
    "2026-05-17 10:05:01 10.0.0.1 GET / - 443 - 192.0.2.7 curl/8 - 200 0 0 15",
    "2026-05-17\t10:05:01\tFRA2\t512\t192.0.2.7\tGET\td111.cloudfront.net\t/\t200\t-\tcurl/8\t-\t-\tHit",
    'o b [17/May/2026:10:05:01 +0000] 192.0.2.7 - 3E57 REST.GET.OBJECT a "GET /a HTTP/1.1" 200 - 1 1 "-" "-" -',
    '192.0.2.7 - - [17/May/2026:10:05:01 +0000] "shop.example" "GET / HTTP/1.1" 200 512 "-" "curl/8"',
    '192.0.2.7 - - [17/May/2026:10:05:01 +0000] "GET / HTTP/1.1" 200 0.004 512 "-" "curl/8"',
    '192.0.2.7 - - [17/May/2026:10:05:01 +0000] 0.004 "GET / HTTP/1.1" 200 512 "-" "curl/8"',
    '192.0.2.7\t-\t-\t[17/May/2026:10:05:01 +0000]\t"GET / HTTP/1.1"\t200\t512',
    '{"log":"192.0.2.7 - - [17/May/2026:10:05:01 +0000] ..."}',
]
HOSTILE = [
    "a b " + " [" * 30_000,
    "a b " + '[x] "' * 12_000,
    'a b c [17/May/2015:10:05:03 +0000] "' + "\\x" * 30_000,
    'a b c [17/May/2015:10:05:03 +0000] "GET /' + " HTTP/x" * 9_000 + '" 200 1',
    '[17/May/2015:10:05:03 +0000] "' * 2_000,
    " " * 60_000,
]


@each(
    "lines",
    [
        map(line, BEFORE_THE_TIME),
        (line(client, user) for user in USERS for client in ("192.0.2.7", "shop.example")),
        OTHER_FORMATS,
        HOSTILE,
    ],
)
def test_a_line_that_is_not_understood_is_invalid(lines: Iterable[str]) -> None:
    """Where another word may be the client, and in linear time: with backtracking, a hostile line would not end.

    A user with a blank, or with the form of an address, cannot become another client.
    """
    for text in lines:
        assert why_not(text), text


@each(
    ("text", "reason"),
    [
        *(
            (line(time=f"{time} +0000"), "the date is invalid")
            for time in (
                *("31/Feb/2015:10:05:03", "17/May/2015:24:05:03", "17/May/2015:10:60:03", "17/May/2015:10:05:61"),
                *("17/Mai/2015:10:05:03", "17/May/0000:10:05:03", "yesterday"),
            )
        ),
        (line(time="31/Dec/1969:23:59:59 +0000"), "the date is before 1970"),
        (line(time="31/Dec/9999:23:59:59 -9999"), "the date is invalid"),
        *(
            (line(request=request), "not an HTTP request")
            for request in ("-", "", r"\x16\x03\x01\x02", "GET /", "GET HTTP/1.1", "SSH-2.0-Go", "GET  HTTP/1.1")
        ),
        (line(request="GET http://[::1/ HTTP/1.1"), "the URL of the request is invalid"),
        *(
            (text, "not in the common or combined format")
            for text in ("", "\n", "192.0.2.7", "\x00\x01\x02", line(status="20"), line(size="x"), COMMON[:40])
        ),
    ],
)
def test_an_invalid_line_has_its_reason(text: str, reason: str) -> None:
    assert why_not(text) == reason


def test_a_line_over_the_maximum_is_invalid(tmp_path: Path) -> None:
    """A longer line is invalid; a line of exactly the maximum is read, with any line end."""
    fits = line(agent="x" * (MAX_LINE - len(line(agent=""))))
    path = tmp_path / "log"
    assert len(fits) == MAX_LINE
    for end in ("", "\n", "\r\n"):
        assert parse(fits + end).status == 200
        path.write_text(fits + end, newline="")
        assert RequestLog([str(path)], LineParser()).count == 1
    assert why_not(fits + "x") == f"longer than {MAX_LINE:,} bytes"


@each(
    ("target", "expected"),
    [
        ("/", RequestTarget("/")),
        ("/a%20b%2Fc?d=%20", RequestTarget("/a b/c", "d=%20")),
        ("/%2525", RequestTarget("/%25")),
        ("/a?b?c", RequestTarget("/a", "b?c")),
        ("//a", RequestTarget("//a")),
        ("/?u=http://x/", RequestTarget("/", "u=http://x/")),
        ("http://Example.com:8080/a?b#c", RequestTarget("/a", "b", "example.com")),
        ("http://example.com", RequestTarget("/", "", "example.com")),
        ("*", RequestTarget("*")),
        ("example.com:443", RequestTarget("example.com:443")),
    ],
)
def test_a_target_is_split_into_path_and_query(target: str, expected: RequestTarget) -> None:
    """A path is decoded once and separated from its query; URLs and other targets are read, too."""
    assert parse(line(request=f"GET {target} HTTP/2.0")).target == expected


def test_differing_values_of_a_query_field_are_invalid() -> None:
    """Different values of a field are invalid. Too many fields are not read."""
    assert RequestTarget("/", "a=1&b=&a=%20&c=%20&c=+").fields == {"a": INVALID, "b": "", "c": " "}
    assert RequestTarget("/", "a&" * 2000).fields is None


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_any_input_is_read_or_rejected(noise: bytes | str) -> None:
    """Any text gives an entry or an ``InvalidLineError``, and no other exception."""
    try:
        entry = LineParser()(noise)  # type: ignore[arg-type] # text of Docker is no bytes
    except InvalidLineError:
        return
    assert entry.time >= 0


FIELD = st.text(st.characters(codec="utf-8", exclude_characters='"\\\r\n'), min_size=1, max_size=30)


@given(
    user=FIELD.map(lambda text: "".join(text.split())),
    referer=FIELD,
    agent=FIELD,
    path=FIELD,
    status=st.integers(100, 599),
)
def test_noise_in_fields_moves_no_other_field(user: str, referer: str, agent: str, path: str, status: int) -> None:
    """Clients write user, referer, agent and path, and cannot change another field with them."""
    entry = parse(line("192.0.2.7", f"u{user}", referer=referer, agent=agent, request=f"GET /{path} HTTP/1.1",
                       status=str(status)))  # fmt: skip
    assert (entry.client, entry.time, entry.status, entry.method) == ("192.0.2.7", NOON, status, "GET")
    assert entry.features.get("header:user-agent") == (None if agent == "-" else agent)


SIMPLE = {"time": NOON, "ip": "192.0.2.7", "method": "GET", "path": "/a?b=1", "status": 200}


def parse_json(record: Any, *needs: str) -> LogEntry:
    return LineParser(needs)(json.dumps(record).encode())


def why_no_json(record: Any) -> str:
    with pytest.raises(InvalidLineError) as error:
        parse_json(record)
    return str(error.value)


SERVERS = [json.loads(text) for text in Path(__file__).with_name("logs").joinpath("json.log").read_text().splitlines()]
"""The same request in the logs of nginx with two settings, ingress-nginx, Caddy, Traefik and Envoy."""


@each("record", SERVERS)
def test_logs_of_common_servers(record: dict[str, Any]) -> None:
    """The request has the same parts. Envoy writes no user, and no header."""
    entry = parse_json(record, "user", "header:user-agent", "header:x-api-key")
    target = RequestTarget("/a", "b=1", "example.com")
    features = {"user": "alice", "header:x-api-key": "k1"} if record is not SERVERS[-1] else {}
    features["header:user-agent"] = "curl/8.1"
    assert entry == LogEntry("192.0.2.7", NOON, "GET", target, 200, features, "JSON lines")


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
        *(({"ip": missing}, "client", None) for missing in ("-", [])),
        *(({name: ""}, name, None) for name in ("user", "header:user-agent")),
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
    assert part_of(parse_json({**SIMPLE, **record}, "user", "header:user-agent"), field) == value


NO_TIMES = ["", "-", None, True, [], "noon", "nan", "inf", -1, 10**30, 10**400, "9" * 5000, "2015-02-30T00:00:00Z"]
NO_CLIENTS = [
    *("2015-05-17T10:05:03Z", "ios", 5, "10.0.0.1/8", "x, y", "203.0.113.1, ", "203.0.113.1,junk", ["a b"], "a:443"),
]


@each(
    ("record", "reason"),
    [
        *(
            ({"time": time}, "the date is invalid|the date is before 1970|not JSON|no field for the time")
            for time in NO_TIMES
        ),
        *(
            ({"status": each}, "the status is invalid|not JSON|no field")
            for each in ("", "ok", None, -1, 1000, 10**400, [200])
        ),
        *(({"ip": client}, "is neither an IP address nor a host name") for client in NO_CLIENTS),
        # A connection without a request is not a request.
        ({"path": None, "request": ""}, "not an HTTP request"),
        ({"path": "", "method": ""}, "not an HTTP request"),
        ({"path": None, "request": None}, "no field for the path"),
        (dict.fromkeys(SIMPLE), "no field for the path"),
    ],
)
def test_a_line_with_an_invalid_part_is_invalid(record: dict[str, Any], reason: str) -> None:
    assert re.search(reason, why_no_json({**SIMPLE, **record}))


@each("name", ["time", "ip", "method", "path", "status"])
def test_a_line_without_a_required_part_is_invalid(name: str) -> None:
    """A line without one of these parts is invalid. So is a client that is null: it may be in another field."""
    record = {key: value for key, value in SIMPLE.items() if key != name}
    for lacking in (record, {**record, name: None}):
        assert why_no_json(lacking) == f"no field for the {name}"


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
def test_a_header_of_several_lines_is_read_as_live(name: str, record: dict[str, Any], expected: Any) -> None:
    assert parse_json({**SIMPLE, **record}, name).features.get(name) == expected


def test_features_have_fields_of_their_names() -> None:
    """A field may be inside another one. Fields that no rule uses are not read."""
    parser = LineParser(["plan", "user.id", "header:x-a", "email", "n"])
    record = {**SIMPLE, "plan": "pro", "user": {"id": 7}, "header:x-a": ["1", "2"], "email": " Ann@X.org ", "n": 1.5}
    features = {"plan": "pro", "user.id": 7, "header:x-a": INVALID, "email": "ann@x.org", "n": "1.5"}
    assert parser(json.dumps({**record, "other": 1}).encode()).features == features
    assert parser.found == set(features)
    assert parse_json({**SIMPLE, "plan": None}, "plan").features == {}


@each(
    "line",
    [
        b"{",
        b"{}x",
        b'{"a":' * 20_000,
        b'{"log":' * 9_000,
        b'{"time": NaN}',
        b'{"path": "\\ud800"}',
        b"{" + b"x" * 70_000,
        b"{1: 2}",
    ],
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
        entry = parse_json({**SIMPLE, **record}, "account", "header:x-api-key")
    except InvalidLineError:
        return
    assert 0 <= entry.time < 10**12
    assert isinstance(entry.target.path, str)
    assert isinstance(entry.client, str | None)
