"""Django behind gunicorn and uvicorn: disconnects and files."""

from collections.abc import Iterator

import httpx
import pytest
from folders import SUPPORT
from http_servers import connected, served_port
from servers import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uvicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log = tmp_path_factory.mktemp("server") / "log"
    with served_port(log, "uvicorn served_django:asgi --log-level critical --lifespan off") as port:
        yield port


@pytest.fixture(scope="module")
def gunicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log = tmp_path_factory.mktemp("server") / "log"
    with served_port(log, "gunicorn served_django:wsgi --threads 24 --log-level critical") as port:
        yield port


@pytest.fixture(params=["uvicorn", "gunicorn"])
def port(request: pytest.FixtureRequest) -> int:
    port: int = request.getfixturevalue(request.param)
    return port


def client_of(port: int) -> httpx.Client:
    """Open a connection for each request, because gunicorn closes one whose body was not read."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=180, trust_env=False, limits=limits)


def begin_response(port: int, where: str) -> int:
    """Return the status of a response whose client disconnects before its end."""
    with connected(port) as sock:
        sock.sendall(f"GET /{where} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return int(sock.recv(1000).split()[1])


@pytest.mark.parametrize(("server", "where"), [("uvicorn", "astream"), ("gunicorn", "stream")])
def test_a_disconnect_releases_the_slot(server: str, where: str, request: pytest.FixtureRequest) -> None:
    """A stream holds its slot until its client closes the connection."""
    port: int = request.getfixturevalue(server)
    with connected(port) as sock:
        sock.sendall(f"GET /{where} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert b" 200 " in sock.recv(1000)
        assert begin_response(port, where) == 429
    wait_for(lambda: begin_response(port, where) == 200, "the slot")


def test_a_file_arrives_whole_and_releases_its_slot(port: int) -> None:
    """When the server sends the file itself, the slot is free after the server closes it."""
    with client_of(port) as client:
        assert client.get("/file").text == (SUPPORT / "served_django.py").read_text()
        for _ in range(2):
            wait_for(lambda: client.get("/file").status_code == 200, "the slot")
