"""``ratelimit-mw serve`` behind a real nginx, with the files of examples/gateways, even restarted under load."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from decision_service import GATEWAY_FILES, PROGRAM, TOKEN
from deployed import NGINX_FOLDERS, accepts, new_address, nginx_command, replace
from folders import DOCS
from servers import PATIENCE, free_port, program, redis_running, wait_for

from ratelimit_mw.cli.serve.command import serve

pytestmark = pytest.mark.slow

APPLICATION = """
import json

async def app(scope, receive, send):
    size, more = 0, scope["type"] == "http"
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = json.dumps({"method": scope["method"], "path": scope["path"], "size": size}).encode()
    status = 403 if scope["path"] == "/forbidden" else 200
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length]})
    await send({"type": "http.response.body", "body": body})
"""
FIRST = '[[rules]]\nname = "api"\nlimits = "3/day"\n'
AMOUNT = 60


class GatewaySite(NamedTuple):
    """An application behind nginx, which asks the service first."""

    folder: Path
    port: int
    service_port: int
    options: Sequence[str]
    processes: dict[str, subprocess.Popen[bytes]]

    def get(self, path: str = "/", client: str = "127.0.0.1", method: str = "GET", **options: object) -> httpx.Response:
        transport = httpx.HTTPTransport(local_address=client)
        with httpx.Client(transport=transport, timeout=PATIENCE) as session:
            return session.request(method, f"http://127.0.0.1:{self.port}{path}", **options)  # type: ignore[arg-type]

    def clients(self) -> list[dict[str, Any]]:
        """Return the clients that the admin API shows."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        response = httpx.get(f"http://127.0.0.1:{self.service_port}/v1/keys", headers=headers, timeout=PATIENCE)
        keys: list[dict[str, Any]] = response.raise_for_status().json()["keys"]
        return keys

    def start_service(self) -> None:
        command = [str(PROGRAM), "serve", "ratelimit.toml", "--port", str(self.service_port), *self.options]
        self.processes["service"] = start(self.folder, command)
        wait_for(lambda: accepts(self.service_port) or self.processes["service"].poll() is not None, "the service")
        assert self.processes["service"].poll() is None, (self.folder / "servers.log").read_text()[-2000:]

    def stop_service(self, signal_: int = signal.SIGTERM) -> None:
        process = self.processes["service"]
        process.send_signal(signal_)
        process.wait(PATIENCE)


def start(folder: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    with (folder / "servers.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


@contextmanager
def site_of(
    folder: Path,
    rules: str,
    store: str = "memory://",
    options: Sequence[str] = (),
    nginx: Sequence[tuple[str, str]] = (),
) -> Iterator[GatewaySite]:
    """Run the application, the service and nginx. ``nginx`` are lines of its file to replace."""
    port, service_port, application_port = free_port(), free_port(), free_port()
    shutil.copy(GATEWAY_FILES / "nginx.conf", folder)
    temporary = "".join(f"    {name}_temp_path {folder}/{name};\n" for name in NGINX_FOLDERS)
    for old, new in (
        ("        listen [::]:80;\n", ""),
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("127.0.0.1:8429", f"127.0.0.1:{service_port}"),
        ("127.0.0.1:8000", f"127.0.0.1:{application_port}"),
        ("/var/log/nginx", str(folder)),
        ("http {\n", f"http {{\n{temporary}"),
        *nginx,
    ):
        replace(folder / "nginx.conf", old, new)
    head = f'trusted_proxies = ["127.0.0.1"]\nstore = "{store}"\nstore_timeout = "10s"\n'
    (folder / "ratelimit.toml").write_text(head + rules)
    (folder / "application.py").write_text(APPLICATION)
    (folder / "admin-token").write_text(TOKEN)
    options = ("--gateway", "nginx", "--admin-token-file", "admin-token", *options)
    site = GatewaySite(folder, port, service_port, options, {})
    with ExitStack() as stack:
        stack.callback(stop, site.processes)
        uvicorn = [sys.executable, "-m", "uvicorn", "application:app", "--port", str(application_port)]
        site.processes["application"] = start(folder, uvicorn)
        site.start_service()
        site.processes["nginx"] = start(folder, nginx_command(folder))
        wait_for(lambda: accepts(application_port) and accepts(port), f"nginx and the application: {folder}")
        yield site


def stop(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        process.terminate()
    for process in processes.values():
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    login = '[[rules]]\nname = "login"\nmatch = { path = "/login" }\nlimits = "1/day"\n'
    shed = '[[rules]]\nname = "closed"\nmatch = { path = "/closed" }\nkey = ["query:x"]\nlimits = "1/day"\n'
    lists = '[lists]\ndeny = { ip = ["127.99.0.0/16"] }\n'
    with site_of(tmp_path_factory.mktemp("nginx"), f"{FIRST}{login}{shed}{lists}") as running:
        yield running


def test_nginx_sends_a_429_with_the_headers_and_the_body(site: GatewaySite) -> None:
    """Allowed responses have the rate limit headers, and the rejection is that of the middleware."""
    client = new_address()
    allowed = [site.get(client=client) for _ in range(3)]
    assert [response.status_code for response in allowed] == [200] * 3
    assert [response.headers["x-ratelimit-remaining"] for response in allowed] == ["2", "1", "0"]
    assert allowed[0].headers["ratelimit-policy"] == '"api";q=3;w=86400'
    assert "retry-after" not in allowed[0].headers
    assert "x-ratelimit-status" not in allowed[0].headers
    rejected = site.get(client=client)
    assert rejected.status_code == 429
    assert int(rejected.headers["retry-after"]) > 86_000
    assert rejected.headers["content-type"] == "application/problem+json"
    assert rejected.headers["cache-control"] == "no-store"
    assert rejected.headers["ratelimit"].startswith('"api";r=0;t=')
    problem = rejected.json()
    assert (problem["status"], problem["violated-policies"]) == (429, ["api"])
    assert problem["detail"] == f"Retry after {rejected.headers['retry-after']} seconds."
    head = site.get(client=client, method="HEAD")
    assert (head.status_code, head.content) == (429, b"")
    assert site.get(client=client, method="POST", content=b"x" * 100_000).status_code == 429


def test_a_client_cannot_choose_its_key(site: GatewaySite) -> None:
    """nginx overwrites each header that the service reads."""
    client, named = new_address(), new_address()
    forged = {"X-Original-URI": "/free", "X-Original-Method": "OPTIONS", "X-Forwarded-For": named, "X-Real-IP": named}
    forged |= {"Forwarded": f"for={named}", "X_Original_URI": "/free", "X-RateLimit-Status": "200"}
    statuses = [site.get(client=client, headers=forged).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    assert site.get(client=named).headers["x-ratelimit-remaining"] == "2"


@pytest.mark.parametrize("path", ["/login?x=1", "/x/../login", "/%6cogin", "//login", "/x/%2e%2e/login"])
def test_a_path_is_limited_in_all_spellings(site: GatewaySite, path: str) -> None:
    """The rule of a path applies to what nginx sends to the application."""
    client = new_address()
    url = f"http://127.0.0.1:{site.port}{path}"
    command = ["curl", "-s", "--path-as-is", "--interface", client, "-o", "/dev/null", "-w", "%{http_code}", url]
    assert [subprocess.check_output(command, text=True) for _ in range(2)] == ["200", "429"]


def test_other_statuses_stay_what_they_are(site: GatewaySite) -> None:
    """A 403 of the application is its own, and the deny list is a 403."""
    forbidden = site.get("/forbidden", client=new_address())
    assert (forbidden.status_code, forbidden.json()["path"]) == (403, "/forbidden")
    denied = site.get(client="127.99.0.1")
    assert (denied.status_code, denied.json()["title"]) == (403, "Forbidden")


def test_the_application_receives_the_whole_request(site: GatewaySite) -> None:
    """The service reads no body, and the application gets it."""
    body = b"x" * 50_000
    response = site.get("/upload", client=new_address(), method="POST", content=body)
    assert response.json() == {"method": "POST", "path": "/upload", "size": 50_000}


def test_the_service_is_not_reachable_through_nginx(site: GatewaySite) -> None:
    """A client that asks for the paths of the service reaches the application, or gets a 404."""
    assert site.get("/_ratelimit", client=new_address()).status_code == 404
    assert site.get("/v1/keys", client=new_address()).json()["path"] == "/v1/keys"


def test_a_dead_service_rejects_all_requests(tmp_path: Path) -> None:
    """The file as it is fails closed. Each request gets a 500 until the service runs again."""
    with site_of(tmp_path, FIRST) as site:
        assert site.get().status_code == 200
        site.stop_service()
        assert site.get().status_code == 500
        site.start_service()
        assert site.get().status_code == 200


OPEN = """proxy_pass http://ratelimit/auth;
            error_page 502 504 = @allowed;"""
ALLOWED = """location @allowed {
            return 204;
        }

        location @rejected {"""


def test_a_dead_service_allows_all_requests_where_you_say_so(tmp_path: Path) -> None:
    """With the lines of the documentation nginx fails open, and rejections are as before."""
    page = (DOCS / "gateways.md").read_text()
    assert all(line.strip() in page for line in f"{OPEN}\n{ALLOWED}".splitlines()[1:4])
    lines = [("proxy_pass http://ratelimit/auth;", OPEN), ("location @rejected {", ALLOWED)]
    with site_of(tmp_path, FIRST, nginx=lines) as site:
        assert [site.get().status_code for _ in range(4)] == [200, 200, 200, 429]
        site.stop_service()
        assert [site.get().status_code for _ in range(5)] == [200] * 5


USER = """proxy_pass http://ratelimit/auth;
            proxy_set_header X-Forwarded-User $remote_user;"""
PASSWORD = """auth_basic "shop";
            auth_basic_user_file users;
            auth_request /_ratelimit;"""


def test_users_are_limited_after_the_limit_of_nginx_and_the_password(tmp_path: Path) -> None:
    """nginx checks limit_req, then the password, then the service. Only the last one counts by user."""
    (tmp_path / "users").write_text("ann:{PLAIN}a\nbob:{PLAIN}b\n")
    lines = [
        ("proxy_pass http://ratelimit/auth;", USER),
        ("auth_request /_ratelimit;", PASSWORD),
        ("rate=50r/s", "rate=1r/m"),
        ("burst=100", "burst=6"),
    ]
    rules = '[[rules]]\nname = "users"\nkey = ["user"]\nlimits = "3/day"\n'
    with site_of(tmp_path, rules, nginx=lines, options=["--user-header", "X-Forwarded-User"]) as site:

        def ask(user: str, password: str) -> int:
            credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
            headers = {"Authorization": f"Basic {credentials}", "X-Forwarded-User": "bob"}
            return site.get(headers=headers).status_code

        assert [ask("bob", "wrong") for _ in range(2)] == [401] * 2
        assert [ask("ann", "a") for _ in range(4)] == [200, 200, 200, 429]
        first = site.get("/", headers={"Authorization": "Basic " + base64.b64encode(b"bob:b").decode()})
        assert first.headers["x-ratelimit-remaining"] == "2"
        limited = site.get()
        assert limited.status_code == 429
        assert "x-ratelimit-limit" not in limited.headers
        shown = site.clients()
        assert {key["client"]: key["remaining"] for key in shown} == {"user=ann": 0, "user=bob": 2}


def test_caddy_sends_a_429_with_the_headers_and_the_body(tmp_path: Path) -> None:
    """With the file of the example. A client cannot choose its path or its IP address."""
    port, service_port, application_port = free_port(), free_port(), free_port()
    caddyfile = tmp_path / "Caddyfile"
    shutil.copy(GATEWAY_FILES / "Caddyfile", caddyfile)
    for old, new in (
        (":80 {", f"http://127.0.0.1:{port} {{"),
        ("8429", str(service_port)),
        ("8000", str(application_port)),
    ):
        replace(caddyfile, old, new)
    caddyfile.write_text(f"{{\n\tadmin off\n}}\n{caddyfile.read_text()}")
    login = '[[rules]]\nname = "login"\nmatch = { path = "/login" }\nlimits = "1/day"\n'
    (tmp_path / "ratelimit.toml").write_text(f'trusted_proxies = ["127.0.0.1"]\nstore_timeout = "10s"\n{FIRST}{login}')
    (tmp_path / "application.py").write_text(APPLICATION)
    site = GatewaySite(tmp_path, port, service_port, ("--gateway", "caddy"), {})
    with ExitStack() as stack:
        stack.callback(stop, site.processes)
        uvicorn = [sys.executable, "-m", "uvicorn", "application:app", "--port", str(application_port)]
        site.processes["application"] = start(tmp_path, uvicorn)
        site.start_service()
        command = [program("caddy", "caddy"), "run", "--config", str(caddyfile), "--adapter", "caddyfile"]
        site.processes["caddy"] = start(tmp_path, command)
        wait_for(lambda: accepts(application_port) and accepts(port), f"Caddy and the application: {tmp_path}")
        forged = {"X-Forwarded-Uri": "/free", "X-Forwarded-Method": "PUT", "X-Forwarded-For": "203.0.113.9"}
        allowed, rejected = (site.get("/login?x=1", headers=forged) for _ in range(2))
        assert (allowed.status_code, allowed.json()["path"], allowed.headers["x-ratelimit-limit"]) == (
            200,
            "/login",
            "1",
        )
        assert (rejected.status_code, rejected.json()["violated-policies"]) == (429, ["login"])
        assert int(rejected.headers["retry-after"]) > 86_000
        assert site.get("/forbidden").status_code == 403
        assert site.get("/v1/keys").json()["path"] == "/v1/keys"
        site.stop_service()
        assert site.get().status_code == 502


@pytest.fixture(params=["lmdb", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A store that outlives the service, and a number of workers."""
    if request.param == "lmdb":
        yield f"lmdb://{tmp_path}/state", 1
        return
    with redis_running(tmp_path) as server:
        yield f"redis://127.0.0.1:{server.port}/0", 2


def test_restarts_under_load_allow_no_request_too_many(shared: tuple[str, int], tmp_path: Path) -> None:
    """Six clients ask without a pause while the service stops, or is killed, and starts again. Each gets its limit."""
    store, workers = shared
    rules = f'[[rules]]\nname = "api"\nlimits = "{AMOUNT}/day"\n'
    flood = [("rate=50r/s", "rate=10000r/s"), ("burst=100", "burst=10000")]
    ends, counts = threading.Event(), {new_address(): Counter[int]() for _ in range(6)}

    def ask(client: str) -> None:
        transport = httpx.HTTPTransport(local_address=client)
        with httpx.Client(transport=transport, timeout=PATIENCE, base_url=f"http://127.0.0.1:{site.port}") as session:
            while not ends.wait(0.01):
                counts[client][session.get("/").status_code] += 1

    def allowed() -> int:
        return sum(count[200] for count in counts.values())

    with (
        site_of(tmp_path, rules, store, ["--workers", str(workers)], flood) as site,
        ThreadPoolExecutor(len(counts)) as pool,
    ):
        asking = [pool.submit(ask, client) for client in counts]
        try:
            for end in (signal.SIGTERM, signal.SIGKILL if workers == 1 else signal.SIGTERM):
                enough = allowed() + AMOUNT
                wait_for(lambda enough=enough: allowed() > enough, "requests")  # type: ignore[misc]
                site.stop_service(end)
                site.start_service()
            wait_for(lambda: all(count[429] for count in counts.values()), "a rejection of each client")
        finally:
            ends.set()
        for each in asking:
            each.result()
    for client, count in counts.items():
        assert set(count) <= {200, 429, 500}, (client, count)
        assert AMOUNT - 15 <= count[200] <= AMOUNT, (client, count)  # a decision of a killed service reaches nobody


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_reads_the_settings_again(tmp_path: Path, workers: int) -> None:
    """Under load, no request fails, and a mistake keeps the earlier rules. Nothing else looks at the file."""
    flood = [("rate=50r/s", "rate=10000r/s"), ("burst=100", "burst=10000")]
    rules = f"reload_interval = 0\n{FIRST.replace('3/day', '1000000/day')}"
    client, seen, ends = new_address(), Counter[tuple[int, str]](), threading.Event()

    def ask() -> None:
        with httpx.Client(transport=httpx.HTTPTransport(local_address=client), timeout=PATIENCE) as session:
            while not ends.is_set():
                response = session.get(f"http://127.0.0.1:{site.port}/")
                seen[response.status_code, response.headers.get("x-ratelimit-limit", "")] += 1

    def is_limit(text: str) -> bool:
        seen.clear()
        wait_for(lambda: sum(seen.values()) >= 50, "requests")
        return {limit for _, limit in seen} == {text}

    def log() -> str:
        return (tmp_path / "servers.log").read_text()

    options = ["--workers", str(workers)]
    with site_of(tmp_path, rules, f"lmdb://{tmp_path}/state", options, flood) as site, ThreadPoolExecutor(4) as pool:
        service, file = site.processes["service"], tmp_path / "ratelimit.toml"
        asking = [pool.submit(ask) for _ in range(4)]
        try:
            before, good = "1000000", file.read_text()
            for i in range(3):
                after = f"{2_000_000 + i}"
                good = good.replace(f"{before}/day", f"{after}/day")
                file.write_text(good.replace("/day", "/dya"))
                mistakes = log().count("/dya")
                service.send_signal(signal.SIGHUP)
                wait_for(lambda mistakes=mistakes: log().count("/dya") > mistakes, "the error")  # type: ignore[misc]
                assert is_limit(before)
                file.write_text(good)
                service.send_signal(signal.SIGHUP)
                wait_for(lambda after=after: is_limit(after), "the new limit")  # type: ignore[misc]
                before = after
        finally:
            ends.set()
        for each in asking:
            each.result()
        assert service.poll() is None
    statuses = {line.split('"')[2].split()[0] for line in (tmp_path / "access.log").read_text().splitlines()}
    assert statuses == {"200"}


def test_the_unit_is_valid(tmp_path: Path) -> None:
    """systemd accepts the unit, and its command has the options of `ratelimit-mw serve`."""
    unit = tmp_path / "ratelimit.service"
    shutil.copy(GATEWAY_FILES / unit.name, unit)
    replace(unit, "/opt/ratelimit/bin/ratelimit-mw", str(PROGRAM))
    verify = [program("systemd-analyze", "systemd"), "verify", "--man=no", "--recursive-errors=no", str(unit)]
    result = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert unit.name not in result.stdout + result.stderr  # a warning names the unit
    (command,) = (line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    words = shlex.split(command)[1:]
    for path, word in ((GATEWAY_FILES / "ratelimit.toml", words[1]), (tmp_path / "token", words[-1])):
        path.touch()
        words = [str(path) if each == word else each for each in words]
    with serve.make_context("serve", words[1:]) as context:
        assert context.params["gateway"] == "nginx"


def test_several_workers_follow_a_changed_file(tmp_path: Path) -> None:
    """Each worker reads the changed file on its own."""
    with site_of(tmp_path, FIRST, f"lmdb://{tmp_path}/state", ["--workers", "2"]) as site:
        assert site.get(client=new_address()).headers["x-ratelimit-limit"] == "3"
        replace(site.folder / "ratelimit.toml", "3/day", "9/day")

        def all_changed() -> bool:
            with ThreadPoolExecutor(4) as pool:
                clients = [new_address() for _ in range(8)]
                responses = list(pool.map(lambda client: site.get(client=client), clients))
            return {response.headers["x-ratelimit-limit"] for response in responses} == {"9"}

        wait_for(all_changed, "the new limit in all workers")


def test_a_request_that_has_begun_is_finished(tmp_path: Path) -> None:
    """The service stops after the response of a request that waits in a queue."""
    algorithm = '{ name = "leaky-bucket", mode = "queue" }'
    rules = f'[[rules]]\nname = "queue"\nlimits = "1/second burst 5"\nalgorithm = {algorithm}\n'
    with site_of(tmp_path, rules) as site, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(site.get) for _ in range(3)]
        wait_for(lambda: any(key["remaining"] <= 3 for key in site.clients()), "three in the queue")
        os.kill(site.processes["service"].pid, signal.SIGTERM)
        assert [each.result().status_code for each in waiting] == [200] * 3
        assert site.processes["service"].wait(PATIENCE) in (0, -signal.SIGTERM)  # uvicorn ends by the signal
