"""The dashboard behind a real nginx."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from deployed import NGINX_FOLDERS
from http_servers import running
from mounted_dashboards import FRAMEWORKS, SERVERS, SETTINGS
from servers import PATIENCE, Server, free_port, program
from servers import running as server_running

pytestmark = pytest.mark.slow

RULES = 'traffic_log = "memory://"\n[[rules]]\nname = "site"\nlimits = "3/day"\n'
SMOKE = ("serve", "flask", "starlette")
"""The servers that run with each change. In this process, ``test_mounts.py`` has all of them."""
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error crit;
events {{ worker_connections 64; }}
http {{
    access_log off; {temporary}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://127.0.0.1:{behind}; }}
    }}
}}
"""


@contextmanager
def behind_nginx(folder: Path, name: str) -> Iterator[Server]:
    """Run the application of a framework behind a plain ``proxy_pass``."""
    file, behind = folder / "ratelimit.toml", free_port()
    file.write_text(RULES)
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in NGINX_FOLDERS)

    def nginx(port: int) -> list[str]:
        content = NGINX.format(folder=folder, temporary=temporary, port=port, behind=behind)
        (folder / "nginx.conf").write_text(content)
        return [program("nginx", "nginx"), "-c", str(folder / "nginx.conf")]

    command = [word.format(port=behind, file=file) for word in SERVERS[name]]
    with running(folder / "log", behind, *command, **{SETTINGS: str(file)}), server_running(nginx, folder) as server:
        yield server


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.thorough] * (each not in SMOKE)) for each in SERVERS]
)
def test_a_plain_proxy_does_not_open_the_dashboard(name: str, tmp_path: Path) -> None:
    """nginx sends the address of its upstream as the host, and no header of a proxy."""
    with behind_nginx(tmp_path, name) as nginx:
        path = "/dashboard/" if name == "serve" else f"{FRAMEWORKS[name].path}/"
        url, headers = f"http://127.0.0.1:{nginx.port}{path}", {"Host": "localhost"}
        response = httpx.get(url, headers=headers, timeout=PATIENCE)
        assert (response.status_code, "site" in response.text) == (401, False)
