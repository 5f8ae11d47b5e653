"""An application behind nginx or Caddy, which asks ``ratelimit-mw serve`` first."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
from decision_service import GATEWAY_FILES, PROGRAM, WITH_TOKEN, token_options
from deployed import NGINX_FOLDERS, nginx_command, replace
from http_servers import reachable
from servers import PATIENCE, free_port, program, wait_for

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


class GatewaySite(NamedTuple):
    """An application behind a gateway, which asks the service first."""

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
        response = httpx.get(f"http://127.0.0.1:{self.service_port}/v1/keys", headers=WITH_TOKEN, timeout=PATIENCE)
        keys: list[dict[str, Any]] = response.raise_for_status().json()["keys"]
        return keys

    def start_service(self, port: int | None = None, name: str = "service") -> None:
        port = port or self.service_port
        command = [str(PROGRAM), "serve", "ratelimit.toml", "--port", str(port), *self.options]
        process = self.processes[name] = start(self.folder, command)
        wait_for(lambda: reachable(port) or process.poll() is not None, "the service")
        assert process.poll() is None, (self.folder / "servers.log").read_text()[-2000:]

    def stop_service(self, signal_: int = signal.SIGTERM, name: str = "service") -> None:
        process = self.processes[name]
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
    lines: Sequence[tuple[str, str]] = (),
    gateway: str = "nginx",
    application: Callable[[int], Sequence[str]] | None = None,
) -> Iterator[GatewaySite]:
    """Run the application, the service and the gateway.

    Args:
        folder: The folder of their files.
        rules: The settings file, after its options about proxies and the store.
        store: The store URL.
        options: More options of the service.
        lines: Lines to replace in the example file of the gateway.
        gateway: The gateway.
        application: Returns the command of another application, with the port to listen on.
    """
    port, service_port, application_port = free_port(), free_port(), free_port()
    command = _GATEWAYS[gateway](folder, port, (*lines, ("8429", str(service_port)), ("8000", str(application_port))))
    head = f'trusted_proxies = ["127.0.0.1"]\nstore = "{store}"\nstore_timeout = "10s"\n'
    (folder / "ratelimit.toml").write_text(head + rules)
    (folder / "application.py").write_text(APPLICATION)
    options = ("--gateway", gateway, *token_options(folder), *options)
    site = GatewaySite(folder, port, service_port, options, {})
    with ExitStack() as stack:
        stack.callback(stop, site.processes)
        uvicorn = [sys.executable, "-m", "uvicorn", "application:app", "--port", str(application_port)]
        site.processes["application"] = start(folder, application(application_port) if application else uvicorn)
        site.start_service()
        site.processes[gateway] = start(folder, command)
        wait_for(lambda: reachable(application_port) and reachable(port), f"{gateway} and the application: {folder}")
        yield site


def _nginx(folder: Path, port: int, lines: Sequence[tuple[str, str]]) -> list[str]:
    shutil.copy(GATEWAY_FILES / "nginx.conf", folder)
    temporary = "".join(f"    {name}_temp_path {folder}/{name};\n" for name in NGINX_FOLDERS)
    for old, new in (
        ("        listen [::]:80;\n", ""),
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("/var/log/nginx", str(folder)),
        ("http {\n", f"http {{\n{temporary}"),
        *lines,
    ):
        replace(folder / "nginx.conf", old, new)
    return nginx_command(folder)


def _caddy(folder: Path, port: int, lines: Sequence[tuple[str, str]]) -> list[str]:
    caddyfile = folder / "Caddyfile"
    shutil.copy(GATEWAY_FILES / "Caddyfile", caddyfile)
    for old, new in ((":80 {", f":{port} {{\n\tbind 127.0.0.1"), *lines):
        replace(caddyfile, old, new)
    caddyfile.write_text(f"{{\n\tadmin off\n}}\n{caddyfile.read_text()}")
    return [program("caddy", "caddy"), "run", "--config", str(caddyfile), "--adapter", "caddyfile"]


_GATEWAYS: Final = {"nginx": _nginx, "caddy": _caddy}


def stop(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        process.terminate()
    for process in processes.values():
        process.wait(PATIENCE)
