"""The formats of access logs that ``LineParser`` knows, by samples of each and by the logs of real servers."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import SITE, Write, answer_of, line, lines_of, replayed, run
from http_servers import status
from servers import HOST, program, running, wait_for
from tables import each

from ratelimit_mw.cli.access_log import FORWARDED_FOR, InvalidLineError, NoRequestError
from ratelimit_mw.cli.log_formats import NAMES_OF_FORMATS, LineParser

CLIENT = "192.0.2.7"
SAMPLES = [text.split("\t") for text in (Path(__file__).parent / "logs" / "formats.log").read_text().splitlines()]
"""The name of a format, and one request of this client in it."""
LINES = dict(reversed(SAMPLES))
"""The first sample of each format."""
UVICORN = 'INFO:     192.0.2.7:51320 - "GET /items/7?page=2 HTTP/1.1" 200 OK'
HAPROXY, GRANIAN, ENVOY = LINES["haproxy"], LINES["granian"], LINES["envoy"]
ISTIO = [text for name, text in SAMPLES if name == "envoy"][1]
IIS = """#Software: Microsoft Internet Information Services 10.0
#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query cs-username c-ip cs(User-Agent) sc-status
2026-11-28 19:57:40 10.0.0.1 GET /items/7 page=2 SHOP\\ann 192.0.2.7 Mozilla/5.0+(Windows) 200"""
CLOUDFRONT = """#Version: 1.0
#Fields: date time x-edge-location c-ip cs-method cs(Host) cs-uri-stem sc-status cs(User-Agent) cs-uri-query
2026-11-28\t19:57:40\tFRA2\t192.0.2.7\tGET\td1.example\t/items/7\t200\tcurl%20(X)\tpage=2"""


def parse(text: str, name: str = "") -> Any:
    return LineParser([FORWARDED_FOR], name)(text.encode())


@each(("name", "text"), SAMPLES)
def test_a_format_is_recognised(name: str, text: str) -> None:
    """The client, the path, the status and the second of a line are those of the request."""
    entry = parse(text)
    assert (entry.format, entry.client, entry.method, entry.status) == (name, CLIENT, "GET", 200)
    assert entry.target.path == "/items/7"
    assert 1_795_895_730 < entry.time < 1_795_895_870


@each(("name", "lines"), [("iis", IIS), ("cloudfront", CLOUDFRONT)])
def test_a_header_names_the_columns(name: str, lines: str) -> None:
    """Other lines may follow, such as those of another file."""
    parser, [*headers, request] = LineParser(["header:user-agent"]), lines.splitlines()
    for header in headers:
        with pytest.raises(InvalidLineError, match="describes other lines"):
            parser(header)
    entry = parser(request)
    assert (entry.format, entry.client, entry.target.path, entry.target.query) == (name, CLIENT, "/items/7", "page=2")
    assert entry.time == 1_795_895_860
    assert " (" in entry.features["header:user-agent"]
    assert parser(line().encode()).format == "combined"
    separator = "\t" if name == "cloudfront" else " "
    for text in ("2026-11-28 19:57:40 GET", f"{request}{separator}x", request.replace("2026-11-28", "-")):
        with pytest.raises(InvalidLineError, match="not in the common"):
            parser(text)


MESSAGES = [
    "INFO:     Started server process [7598]",
    "[INFO] Starting granian (main PID: 9810)",
    "2026-11-28T19:57:36.790123456Z INFO:     Started server process [7598]",
    '[WARNING] ASGI Lifespan errored, continuing without (to avoid Lifespan completely use "asginl" interface)',
    "[2026-11-28 19:55:44 +0000] [7598] [INFO] Running on http://127.0.0.1:8000 (CTRL + C to quit)",
    "2026-11-28 23:19:30,441 INFO     Listening on TCP address 127.0.0.1:7402",
    "[2026-11-28 19:55:44 +0000] [7] [WARNING] Invalid request from ip=127.0.0.1: 'GET /caf\xe9 HTTP/1.1'",
    '{"level":"info","ts":1795895860.1,"logger":"http.log","msg":"server running","name":"srv0"}',
    '{"level":"info","time":"2026-11-28T19:57:40Z","message":"Traefik version 3.0.0 built"}',
    '{"level":"error","logger":"http.log.error","msg":"x","request":{"method":"GET","uri":"/"},"status":502}',
]


@each(("text", "name"), [(IIS, "iis"), *((f"{message}\n{GRANIAN}", "granian") for message in MESSAGES)])
def test_a_message_of_a_server_is_no_invalid_line(rules: Write, log: Write, text: str, name: str) -> None:
    """Servers write both to the same output. Caddy also writes the request of each error there."""
    found = replayed(rules(SITE), log(text))
    assert (found["requests"], found["invalid"], found["formats"]) == (1, 0, {name: 1})


DAPHNE, HYPERCORN = LINES["daphne"], LINES["hypercorn"]


@each(
    ("text", "path", "query"),
    [
        *((sample.replace("/items/7", '/a" 200 5'), '/a" 200 5', "page=2") for sample in (DAPHNE, LINES["uvicorn"])),
        (DAPHNE.replace("page=2", 'q="'), "/items/7", 'q="'),
        *((sample.replace("/items/7", '/a" 200 5 %41?b'), '/a" 200 5 %41?b', "") for sample in (GRANIAN, HYPERCORN)),
        *((HYPERCORN.replace('"-" "curl/8"', text), "/items/7", "") for text in ('"a "b" c" "d"', '"-" "d "e""')),
    ],
)
def test_quotes_that_a_server_does_not_escape(text: str, path: str, query: str) -> None:
    """Hypercorn and Granian also write the path decoded, so it is not decoded again."""
    entry = parse(text)
    assert (entry.client, entry.target.path, entry.target.query, entry.status) == (CLIENT, path, query, 200)


@each(
    "text",
    [
        HYPERCORN.replace("curl/8", 'x 1.1" 404 - "-" "-'),
        HYPERCORN.replace('"curl/8"', '" "' * 20_000 + "x"),
        LINES["uvicorn"].replace(" OK", '" HTTP/1.1" 200' * 4_000 + "-"),
    ],
)
def test_a_client_cannot_choose_its_status(text: str) -> None:
    """Nor does a hostile line take long."""
    with pytest.raises(InvalidLineError):
        parse(text)


def test_two_addresses_are_a_host_and_a_client_by_name() -> None:
    """Apache without a ServerName writes its own address. Unnamed, either may be the client."""
    for host in ("127.0.1.1", "[2001:db8::1]"):
        text = f"{host}:80 {LINES['combined']}"
        with pytest.raises(InvalidLineError, match="not in the common"):
            parse(text)
        entry = parse(text, "vhost_combined")
        assert (entry.client, entry.target.host) == (CLIENT, host)


def test_uvicorn_writes_no_time() -> None:
    """The time of the container's log is that of the request. Without one, the error has the fix."""
    with pytest.raises(InvalidLineError, match="uvicorn writes no time"):
        parse(UVICORN)
    entry = parse(json.dumps({"log": f"{UVICORN}\n", "stream": "stdout", "time": "2026-11-28T19:57:40.5Z"}))
    assert (entry.format, entry.time) == ("uvicorn in a log of Docker", 1_795_895_860.5)


def test_the_addresses_of_envoy_are_those_of_its_header() -> None:
    """The proxies of the settings are left out at the end, as in the application."""
    text = ENVOY.replace('"192.0.2.7"', '"198.51.100.1, 192.0.2.7"')
    assert parse(text).client == "198.51.100.1, 192.0.2.7"
    assert parse(LINES["JSON lines"]).features == {FORWARDED_FOR: "198.51.100.9"}


@each(
    "text",
    [
        HAPROXY.replace("GET /items/7?page=2 HTTP/1.1", "<BADREQ>"),
        ISTIO.replace('"GET /items/7 HTTP/1.1" 200', '"- - -" 0'),
        # A request of HTTP/0.9 in the log of nginx is not one of Daphne.
        f'{CLIENT} - - [28/Nov/2026:19:57:36 +0000] "GET /items/7" 200 5',
    ],
)
def test_what_is_no_request_is_none_in_any_format(text: str) -> None:
    with pytest.raises(NoRequestError, match="not an HTTP request"):
        parse(text)


@each("text", [ENVOY.replace(" 200 - ", " 0 DC "), HAPROXY.replace(" 200 76 ", " -1 0 ")])
def test_a_client_that_left_before_the_response_is_counted(text: str) -> None:
    """Envoy writes the status 0 then, and HAProxy -1."""
    assert (parse(text).client, parse(text).status) == (CLIENT, 0)


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
            parse(LINES["common"], name)


def test_a_client_cannot_hide_behind_quotes_in_its_headers() -> None:
    """Envoy writes headers as they are. The address that it adds at the end of X-Forwarded-For is never another one."""
    sent = [
        *('x" 5 "9.9.9.9" "a', 'x" 5 "9.9.9.9', '9.9.9.9" "a\\', '9.9.9.9" "a" "b" "c" "d', '9.9.9.9" "a'),
        *('9.9.9.9" "a" "b" "c" "d" "e', '9.9.9.9" - "a" "b', '9.9.9.9", "'),
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
UVICORN_SITE = """
import sys, time, uvicorn
from site_app import app
config = uvicorn.config.LOGGING_CONFIG
config["formatters"]["access"]["fmt"] = "%(asctime)s " + config["formatters"]["access"]["fmt"]
uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", log_config=config)
"""
CONFIGS = {"nginx": NGINX, "haproxy": HAPROXY_CONFIG}
COMMANDS = {
    "nginx": "{nginx} -p {folder} -c {config}",
    "haproxy": "{haproxy} -db -f {config} > {log}",
    "caddy": "env HOME={folder} {caddy} respond --listen {host}:{port} --access-log hello 2> {log}",
    "uvicorn": "env TZ=UTC {python} {config} {port} > {log}",
    "gunicorn": "{python} -m gunicorn --bind {host}:{port} --access-logfile {log} site_app:wsgi",
    "hypercorn": "{python} -m hypercorn --bind {host}:{port} --access-logfile {log} site_app:app",
    "daphne": "env TZ=UTC {python} -m daphne --bind {host} --port {port} --access-log {log} site_app:app",
    "granian": "{python} -m granian --interface asgi --port {port} --access-log site_app:app > {log}",
}


@pytest.mark.thorough
@pytest.mark.parametrize("server", COMMANDS)
def test_the_log_of_a_real_server_is_read(server: str, tmp_path: Path) -> None:
    """Each server writes its access log in its default format, uvicorn with a time."""
    (tmp_path / "site_app.py").write_text(APP)
    log, config = tmp_path / "access.log", tmp_path / "config.py"

    def command(port: int) -> list[str]:
        config.write_text(CONFIGS.get(server, "").format(port=port, log=log) or UVICORN_SITE)
        programs = {server: program(server, server)} if server in ("nginx", "haproxy", "caddy") else {}
        places = {"folder": tmp_path, "config": config, "log": log, "host": HOST, "port": port}
        return ["sh", "-c", f"exec {COMMANDS[server].format(**places, python=sys.executable, **programs)}"]

    begin = time.time()
    with running(command, tmp_path) as site:
        assert status(site.port, "GET /items/7?page=2") == 200
        wait_for(lambda: log.exists() and "/items/7" in log.read_text(), f"the log of {server}")
        site.process.terminate()  # with its workers
        with suppress(subprocess.TimeoutExpired):
            site.process.wait(5)
    name = {"nginx": "combined", "gunicorn": "combined", "caddy": "JSON lines"}.get(server, server)
    parser = LineParser()
    entries = [parser(text.encode()) for text in log.read_text().splitlines() if "/items/7" in text]
    assert [(each.format, each.client, each.method, each.target.path, each.status) for each in entries] == [
        (name, HOST, "GET", "/items/7", 200)
    ]
    assert abs(entries[0].time - begin) < 60
