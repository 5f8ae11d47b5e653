"""The formats of access logs that ``LineParser`` knows, by samples of each and by the logs of real servers."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import SITE, Files, Write, answer_of, line, lines_of, replayed, run
from http_servers import status
from servers import HOST, program, running, wait_for
from tables import each

from ratelimit_mw.cli.access_log import FORWARDED_FOR, InvalidLineError, NoRequestError
from ratelimit_mw.cli.log_formats import NAMES_OF_FORMATS, LineParser, NoTimeError

CLIENT = "192.0.2.7"
UVICORN = 'INFO:     192.0.2.7:51320 - "GET /items/7?page=2 HTTP/1.1" 200 OK'
HYPERCORN = '192.0.2.7:51392 - - [28/Nov/2026:19:55:44 +0000] "GET /items/7 1.1" 200 - "-" "curl/8"'
COMMON = '192.0.2.7 - - [28/Nov/2026:19:55:36 +0000] "GET /items/7 HTTP/1.1" 200 5'
GRANIAN = '[2026-11-28 19:57:38 +0000] 192.0.2.7 - "GET /items/7 HTTP/1.1" 200 0.139'
HAPROXY = (
    "192.0.2.7:53358 [28/Nov/2026:19:57:40.289] web web/<NOSRV> 0/-1/-1/-1/0 200 76 - - LR-- 1/1/0/0/0 0/0"
    ' {curl #22x} "GET /items/7?page=2 HTTP/1.1"'
)
ALB = (
    "h2 2026-11-28T19:57:40.289Z app/lb/50dc6c495c0c9188 192.0.2.7:48160 10.0.0.66:9000 0.000 0.002 0.000 200 200 5 257"
    ' "GET https://shop.example:443/items/7?page=2 HTTP/2.0" "curl/8" ECDHE TLSv1.2 arn:aws:x "Root=1" "-" "-" 1'
    ' 2026-11-28T19:57:40.000000Z "forward" "-" "-" "10.0.0.66:9000" "200" "-" "-"'
)
ENVOY = (
    '[2026-11-28T19:57:40.289Z] "GET /items/7?page=2 HTTP/2" 200 - 154 0 226 100 "192.0.2.7" "curl/8" "cc21d9b0"'
    ' "shop.example" "tcp://10.0.2.1:80"'
)
ISTIO = (
    '[2026-11-28T19:57:40.289Z] "GET /items/7 HTTP/1.1" 200 - via_upstream - "-" 0 135 4 4 "192.0.2.7" "curl/8"'
    ' "84961386" "shop.example" "10.44.1.27:80" outbound|8000||shop 10.44.1.23:37652 10.0.45.184:8000 - default'
)
GATEWAY = (
    '{"start_time":"2026-11-28T19:57:40.289Z","method":"GET","x-envoy-origin-path":"/items/7?page=2","response_code":200,'
    '":authority":"shop.example","user-agent":"curl/8","x-forwarded-for":"198.51.100.9",'
    '"downstream_remote_address":"192.0.2.7:4711"}'
)
SAMPLES = [
    ("hypercorn", HYPERCORN),
    (
        "hypercorn",
        f"[2026-11-28 19:55:44 +0000] [7598] [INFO] {HYPERCORN}",
    ),
    ("daphne", f'{CLIENT}:58576 - - [28/Nov/2026:19:57:36] "GET /items/7?page=2" 200 5'),
    ("granian", GRANIAN),
    ("uvicorn", f"2026-11-28 19:57:36,790 {UVICORN}"),
    ("common after a time prefix", f"2026-11-28T19:55:36.790123456Z {COMMON}"),
    ("uvicorn", f"2026-11-28T19:57:36.790123456Z {UVICORN}"),
    ("JSON lines after a time prefix", f"2026-11-28T19:57:40.790123456Z {GATEWAY}"),
    ("uvicorn after a Kubernetes prefix", f"2026-11-28T19:57:36.790123456Z stdout F {UVICORN}"),
    ("haproxy", HAPROXY),
    ("haproxy after a syslog prefix", f"Nov 28 19:57:40 web1 haproxy[14389]: {HAPROXY}"),
    ("alb", ALB),
    ("envoy", ENVOY),
    ("envoy", ISTIO),
    ("JSON lines", GATEWAY),
    ("combined", f'{CLIENT} - - [28/Nov/2026:19:55:36 +0000] "GET /items/7 HTTP/1.1" 200 5 "-" "gunicorn"'),
    ("common", f'{CLIENT} - - [2026-11-28T19:55:36+00:00] "GET /items/7 HTTP/1.1" 200 5'),
    ("common", f'{CLIENT} - - [1795895736.123] "GET /items/7 HTTP/1.1" 200 5'),
    (
        "common in a log of Docker",
        json.dumps({"log": f"{COMMON}\n", "stream": "stdout", "time": "2026-11-28T19:55:36Z"}),
    ),
]
IIS = [
    "#Software: Microsoft Internet Information Services 10.0",
    "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query cs-username c-ip cs(User-Agent) sc-status",
    r"2026-11-28 19:57:40 10.0.0.1 GET /items/7 page=2 SHOP\ann 192.0.2.7 Mozilla/5.0+(Windows) 200",
]
_COLUMNS = {
    "date": "2026-11-28",
    "time": "19:57:40",
    "x-edge-location": "FRA2",
    "c-ip": "192.0.2.7",
    "cs-method": "GET",
    "cs(Host)": "d1.example",
    "cs-uri-stem": "/items/7",
    "sc-status": "200",
    "cs(User-Agent)": "curl%20(X)",
    "cs-uri-query": "page=2",
    "x-host-header": "shop.example",
}
CLOUDFRONT = ["#Version: 1.0", f"#Fields: {' '.join(_COLUMNS)}", "\t".join(_COLUMNS.values())]


def parse(text: str, name: str = "") -> Any:
    return LineParser({}, [FORWARDED_FOR], name)(text.encode())


@each(("name", "text"), SAMPLES)
def test_a_format_is_recognised(name: str, text: str) -> None:
    """The client, the path, the status and the second of a line are those of the request."""
    entry = parse(text)
    assert (entry.format, entry.client, entry.method, entry.status) == (name, CLIENT, "GET", 200)
    assert entry.target.path == "/items/7"
    assert 1_795_895_730 < entry.time < 1_795_895_870


@each(("name", "lines"), [("iis", IIS), ("cloudfront", CLOUDFRONT)])
def test_a_header_names_the_columns(name: str, lines: list[str]) -> None:
    """Other lines may follow, such as those of another file."""
    parser = LineParser()
    for header in lines[:-1]:
        with pytest.raises(InvalidLineError, match="describes other lines"):
            parser(header.encode())
    entry = parser(lines[-1].encode())
    assert (entry.format, entry.client, entry.target.path, entry.target.query) == (name, CLIENT, "/items/7", "page=2")
    assert entry.time == 1_795_895_860
    assert " (" in (entry.user_agent or "")
    assert parser(line().encode()).format == "combined"
    with pytest.raises(InvalidLineError, match="not in the common"):
        parser(b"2026-11-28 19:57:40 GET")


def test_a_header_of_iis_is_no_invalid_line(rules: Write, log: Write) -> None:
    found = replayed(rules(SITE), log([f"{each}\n" for each in IIS]))
    assert (found["requests"], found["invalid"], found["formats"]) == (1, 0, {"iis": 1})


@each(
    "message",
    [
        "INFO:     Started server process [7598]",
        "[INFO] Starting granian (main PID: 9810)",
        '[WARNING] ASGI Lifespan errored, continuing without (to avoid Lifespan completely use "asginl" interface)',
        "[2026-11-28 19:55:44 +0000] [7598] [INFO] Running on http://127.0.0.1:8000 (CTRL + C to quit)",
        "2026-11-28 23:19:30,441 INFO     Listening on TCP address 127.0.0.1:7402",
    ],
)
def test_a_message_of_a_server_is_no_invalid_line(rules: Write, log: Write, message: str) -> None:
    """Servers write their messages to the same output as their access log."""
    found = replayed(rules(SITE), log([f"{message}\n", f"{GRANIAN}\n"]))
    assert (found["requests"], found["invalid"], found["formats"]) == (1, 0, {"granian": 1})


def test_uvicorn_writes_no_time() -> None:
    """The time of the container's log is that of the request. Without one, the error has the fix."""
    with pytest.raises(NoTimeError, match="uvicorn writes no time"):
        parse(UVICORN)
    entry = parse(json.dumps({"log": f"{UVICORN}\n", "stream": "stdout", "time": "2026-11-28T19:57:40.5Z"}))
    assert (entry.format, entry.time) == ("uvicorn in a log of Docker", 1_795_895_860.5)


def test_the_addresses_of_envoy_are_those_of_its_header() -> None:
    """The proxies of the settings are left out at the end, as in the application."""
    text = ENVOY.replace('"192.0.2.7"', '"198.51.100.1, 192.0.2.7"')
    assert parse(text).client == "198.51.100.1, 192.0.2.7"
    assert parse(GATEWAY).features == {FORWARDED_FOR: "198.51.100.9"}


@each(
    ("text", "reason"),
    [
        (HAPROXY.replace("GET /items/7?page=2 HTTP/1.1", "<BADREQ>"), "not an HTTP request"),
        (f'{CLIENT} - - [28/Nov/2026:19:57:36 +0000] "GET /items/7" 200 5', "not an HTTP request"),
    ],
)
def test_what_is_no_request_is_none_in_any_format(text: str, reason: str) -> None:
    """A request of HTTP/0.9 in the log of nginx is not one of Daphne."""
    with pytest.raises(NoRequestError, match=reason):
        parse(text)


def test_a_client_that_left_before_the_response_is_counted() -> None:
    """Envoy writes the status 0 then, and HAProxy -1. A connection without a request is none."""
    for text in (ENVOY.replace(" 200 - ", " 0 DC "), HAPROXY.replace(" 200 76 ", " -1 0 ")):
        entry = parse(text)
        assert (entry.client, entry.status) == (CLIENT, 0)
    with pytest.raises(NoRequestError):
        parse(ISTIO.replace('"GET /items/7 HTTP/1.1" 200', '"- - -" 0'))


def test_a_named_format_is_the_only_one(rules: Write, log: Write) -> None:
    """A line in another one is invalid. The help lists the names."""
    assert parse(GRANIAN, "granian").format == "granian"
    with pytest.raises(InvalidLineError, match="not in the format haproxy"):
        parse(GRANIAN, "haproxy")
    settings, access_log = rules(SITE), log([f"{GRANIAN}\n", f"{GRANIAN}\n"])
    answer = answer_of("replay", settings, access_log, "--format", "granian")
    assert "format: granian" in lines_of(answer)
    wrong = run("replay", settings, access_log, "--format", "alb")
    assert (wrong.exit_code, "not in the format alb" in wrong.stderr) == (1, True)
    shown = run("replay", "--help").stdout
    assert all(name in shown for name in NAMES_OF_FORMATS)
    for name in ("iis", "cloudfront"):
        with pytest.raises(InvalidLineError, match="not in the columns of a line #Fields"):
            parse(COMMON, name)


def test_a_client_cannot_hide_behind_quotes_in_its_headers() -> None:
    """Envoy writes headers as they are. The address that it adds at the end of X-Forwarded-For is never another one."""
    sent = [
        'x" 5 "9.9.9.9" "a',
        'x" 5 "9.9.9.9',
        '9.9.9.9" "a\\',
        '9.9.9.9" "a" "b" "c" "d',
        '9.9.9.9" "a" "b" "c" "d" "e',
        '9.9.9.9" "a',
        '9.9.9.9" - "a" "b',
        '9.9.9.9", "',
    ]
    for header in sent:
        for text in (ENVOY, ISTIO):
            # In X-Forwarded-For, and in the user agent behind it.
            for place in (f'"{header}, {CLIENT}"', f'"{CLIENT}" "{header}'):
                try:
                    entry = parse(text.replace(f'"{CLIENT}"' if "," in place else f'"{CLIENT}" "', place))
                except InvalidLineError:
                    continue
                assert str(entry.client).endswith(CLIENT), (header, place)


@each("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_logs_are_read(rules: Write, tmp_path: Path, pack: Any) -> None:
    """The first bytes tell the compression, whatever the name is. A cut file is an error."""
    packed = pack("".join(line(at=i) for i in range(50)).encode())
    whole, cut = Files(tmp_path).log(packed, "access.1"), Files(tmp_path).log(packed[:-9], "cut.1")
    assert replayed(rules(SITE), whole)["requests"] == 50
    result = run("replay", rules(SITE), cut)
    assert (result.exit_code, "cannot read the compressed file to its end" in result.stderr) == (1, True)


@each("start", [b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"])
def test_a_damaged_compressed_log_is_named(
    rules: Write, tmp_path: Path, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file, whatever exception the library of its compression has."""

    class ZstdError(Exception):
        pass

    def fail(_file: Any) -> Any:
        raise ZstdError("it is damaged")

    monkeypatch.setitem(sys.modules, "compression.zstd", SimpleNamespace(open=fail))
    result = run("replay", rules(SITE), Files(tmp_path).log(start + b"not compressed", "access.1"))
    assert (result.exit_code, "access.1: cannot read the compressed file to its end" in result.stderr) == (1, True)


def test_zst_without_its_package_has_a_hint(rules: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    packed = Files(tmp_path).log(b"\x28\xb5\x2f\xfd\x00", "access.log.zst")
    result = run("replay", rules(SITE), packed)
    assert (result.exit_code, "zstdcat FILE | ratelimit-mw" in result.stderr) == (1, True)


APP = """
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})

def wsgi(environ, start_response):
    start_response("200 OK", [])
    return [b"hello"]
"""
NGINX = """
daemon off; pid nginx.pid; error_log stderr; events {{}}
http {{ access_log {log} combined; server {{ listen 127.0.0.1:{port}; location / {{ return 200 hello; }} }} }}
"""
HAPROXY_CONFIG = """
global
    log stdout format raw local0
defaults
    mode http
    log global
    option httplog
    timeout client 9s
    timeout server 9s
    timeout connect 9s
frontend web
    bind 127.0.0.1:{port}
    http-request return status 200 content-type text/plain string hello
"""
CADDY = """
{{
    admin off
    auto_https off
}}
http://:{port} {{
    bind 127.0.0.1
    log {{
        output file {log}
    }}
    respond hello
}}
"""
UVICORN_SITE = """
import sys, time, uvicorn
from site_app import app
config = uvicorn.config.LOGGING_CONFIG
config["formatters"]["access"]["fmt"] = "%(asctime)s " + config["formatters"]["access"]["fmt"]
uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", log_config=config)
"""
CONFIGS = {
    "nginx": NGINX,
    "haproxy": HAPROXY_CONFIG,
    "caddy": CADDY,
    "uvicorn": UVICORN_SITE,
    "gunicorn": "",
    "hypercorn": "",
}
COMMANDS = {
    "nginx": "{nginx} -p {folder} -c {config}",
    "haproxy": "{haproxy} -db -f {config} > {log}",
    "caddy": "env HOME={folder} {caddy} run --config {config} --adapter caddyfile",
    "uvicorn": "env TZ=UTC {python} {config} {port} > {log}",
    "gunicorn": "{python} -m gunicorn --bind 127.0.0.1:{port} --access-logfile {log} site_app:wsgi",
    "hypercorn": "{python} -m hypercorn --bind 127.0.0.1:{port} --access-logfile {log} site_app:app",
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("server", "name"),
    [
        ("nginx", "combined"),
        ("haproxy", "haproxy"),
        ("caddy", "JSON lines"),
        ("uvicorn", "uvicorn"),
        ("gunicorn", "combined"),
        ("hypercorn", "hypercorn"),
    ],
)
def test_the_log_of_a_real_server_is_read(server: str, name: str, tmp_path: Path) -> None:
    """Each server writes its access log in its default format, uvicorn with a time."""
    (tmp_path / "site_app.py").write_text(APP)
    log, config = tmp_path / "access.log", tmp_path / "config.py"

    def command(port: int) -> list[str]:
        config.write_text(CONFIGS[server].format(port=port, log=log) if server != "uvicorn" else UVICORN_SITE)
        programs = {server: program(server, server)} if server in ("nginx", "haproxy", "caddy") else {}
        words = COMMANDS[server].format(
            folder=tmp_path, config=config, log=log, port=port, python=sys.executable, **programs
        )
        return ["sh", "-c", f"exec {words}"]

    begin = time.time()
    with running(command, tmp_path) as site:
        assert status(site.port, "GET /items/7?page=2") == 200
        wait_for(lambda: log.exists() and "/items/7" in log.read_text(), f"the log of {server}")
        site.process.terminate()  # with its workers
        with suppress(subprocess.TimeoutExpired):
            site.process.wait(5)
    parser = LineParser()
    entries = [parser(text.encode()) for text in log.read_text().splitlines() if "/items/7" in text]
    assert [(each.format, each.client, each.method, each.target.path, each.status) for each in entries] == [
        (name, HOST, "GET", "/items/7", 200)
    ]
    assert abs(entries[0].time - begin) < 60
