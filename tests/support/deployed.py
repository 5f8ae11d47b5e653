"""The files of examples/deploying as a user copies them, with other paths and ports, and limits by the day."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import httpx
from folders import ROOT
from http_servers import free_port, reachable
from servers import PATIENCE, program, wait_for

FILES = ROOT / "examples" / "deploying"
AMOUNT = 100
"""The limit of ratelimit.toml. Tests count by the day, so that their own duration has no effect."""
GUNICORN = ("gunicorn", "-c", "gunicorn.conf.py")
COMMANDS = {
    "uvicorn-workers": (*GUNICORN, "app:app"),
    "gthread": (*GUNICORN, "-k", "gthread", "wsgi_app:app"),
    "sync": (*GUNICORN, "-k", "sync", "wsgi_app:app"),
    "gevent": ("gevent.monkey", "--module", *GUNICORN, "-k", "gevent", "wsgi_app:app"),
    "uvicorn": ("uvicorn", "app:app", "--uds", "app.sock", "--workers", "2", "--no-proxy-headers"),
}
PATIENT = 'store_timeout = "10s"\n'
"""A worker of a busy machine may pause for longer than the default, and would then count alone."""
NGINX_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_clients = count(2)


class Site(NamedTuple):
    """An application behind nginx."""

    url: str
    server: subprocess.Popen[bytes]
    nginx: subprocess.Popen[bytes]
    log: Path

    def client(self, address: str) -> httpx.Client:
        """Return a client with an IP address of its own, and a connection for each request."""
        transport = httpx.HTTPTransport(local_address=address)
        return httpx.Client(base_url=self.url, transport=transport, timeout=PATIENCE, headers={"connection": "close"})


def new_address() -> str:
    number = next(_clients)
    return f"127.0.{os.getpid() % 200 + 1}.{number}"


def reload(process: subprocess.Popen[bytes]) -> None:
    """Send the signal of `nginx -s reload` and of a reload of gunicorn, and wait until all workers are new ones."""
    before = workers_of(process)
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: (now := workers_of(process)) and not now & before, f"new workers of {process.args}")


def workers_of(process: subprocess.Popen[bytes]) -> set[str]:
    return set(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())


@contextmanager
def deployed(folder: Path, command: Sequence[str], store: str, more_rules: str = "") -> Iterator[Site]:
    """Run the command and nginx with the files of the example."""
    port = free_port()
    copy_files(folder, port)
    with (folder / "ratelimit.toml").open("a") as settings:
        settings.write(more_rules)
    environment = {**os.environ, "RATELIMIT_STORE": store, "HOME": str(folder)}
    socket_path = str(folder / "app.sock")
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-m", *command], cwd=folder, env=environment, stdout=log, stderr=log)
        nginx = subprocess.Popen(nginx_command(folder), cwd=folder, stdout=log, stderr=log)
        try:
            wait_for(lambda: server.poll() is not None or reachable(socket_path), f"{command}: {folder}")
            wait_for(lambda: nginx.poll() is not None or reachable(port), f"nginx: {folder}")
            assert server.poll() is None, (folder / "server.log").read_text()
            assert nginx.poll() is None, (folder / "server.log").read_text()
            site = Site(f"http://127.0.0.1:{port}", server, nginx, folder / "server.log")
            wait_for(lambda: httpx.get(f"{site.url}/health").status_code == 200, f"{command} behind nginx: {folder}")
            yield site
        finally:
            for process in (nginx, server):
                process.terminate()
            for process in (nginx, server):
                process.wait(PATIENCE)


def copy_files(folder: Path, port: int) -> None:
    """Copy the files, with paths and ports of this test instead of those of a machine."""
    for path in FILES.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    replace(folder / "nginx.conf", "unix:/run/shop/app.sock", f"unix:{folder}/app.sock")
    replace(folder / "nginx.conf", "/var/log/nginx", str(folder))
    replace(folder / "nginx.conf", "listen 80;", f"listen 127.0.0.1:{port};")
    replace(folder / "nginx.conf", "        listen [::]:80;\n", "")
    temporary = "".join(f"    {name}_temp_path {folder}/{name};\n" for name in NGINX_FOLDERS)
    replace(folder / "nginx.conf", "http {\n", f"http {{\n{temporary}")
    replace(folder / "gunicorn.conf.py", "unix:/run/shop/app.sock", f"unix:{folder}/app.sock")
    replace(folder / "ratelimit.toml", f"{AMOUNT}/minute", f"{AMOUNT}/day")
    replace(folder / "ratelimit.toml", "exempt =", f"{PATIENT}exempt =")


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path.name} without {old!r}"
    path.write_text(text.replace(old, new))


def assert_valid(unit: Path) -> None:
    """Check that systemd accepts a unit, without a warning."""
    verify = [program("systemd-analyze", "systemd"), "verify", "--man=no", "--recursive-errors=no", str(unit)]
    result = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert unit.name not in result.stdout + result.stderr  # a warning names the unit


def nginx_command(folder: Path) -> list[str]:
    """Run nginx in the foreground. Its workers need the rights on a temporary folder that only its owner has."""
    user = "user root;" if os.geteuid() == 0 else ""
    globals_ = f"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; {user}"
    return [program("nginx", "nginx"), "-c", str(folder / "nginx.conf"), "-g", globals_]


def statuses(site: Site, requests: int, address: str, headers: dict[str, str] | None = None) -> list[int]:
    """Send requests from one address, four at a time, each over a connection of its own."""
    with site.client(address) as client, ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: client.get("/", headers=headers).status_code, range(requests)))
