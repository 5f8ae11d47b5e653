"""The login of Django's admin is limited by the name of the user, in every spelling that a client sends."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from http_servers import free_port, running
from tables import each

pytestmark = pytest.mark.thorough

NAME = "alice"
SPACES = [" " * before + NAME + "\u3000" * after for before in range(10) for after in range(5)]
LETTERS = [
    "".join(chr(ord(letter) + 0xFEE0) if number >> i & 1 else letter for i, letter in enumerate(NAME))
    for number in range(1, 32)
]
SERVERS = {
    "uvicorn": ("uvicorn", "served_admin:asgi", "--log-level", "critical", "--lifespan", "off", "--port"),
    "gunicorn": ("gunicorn", "served_admin:wsgi", "--worker-class", "gthread", "--log-level", "critical", "--bind"),
}


@pytest.fixture(scope="module", params=[pytest.param("uvicorn", marks=pytest.mark.thorough), "gunicorn"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Open a client of the admin, which has the cookie and the token of the form."""
    port = free_port()
    where = str(port) if request.param == "uvicorn" else f"127.0.0.1:{port}"
    log = tmp_path_factory.mktemp(request.param) / "log"
    with (
        running(log, port, *SERVERS[request.param], where),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=180, trust_env=False) as client,
    ):
        assert client.get("/admin/login/").status_code == 200
        yield client


def sign_in(client: httpx.Client, name: str, password: str) -> int:
    token = client.cookies["csrftoken"]
    form = {"username": name, "password": password, "csrfmiddlewaretoken": token}
    return client.post("/admin/login/", data=form).status_code


def test_the_admin_login_counts_all_spellings_of_a_name(client: httpx.Client) -> None:
    """Each spelling tries the password of one user: 5 of 81 are allowed."""
    statuses = [sign_in(client, name, "wrong") for name in SPACES + LETTERS]
    assert statuses == [200] * 5 + [429] * 76


@each("name", ["bob", "  bob\u3000", "\uff42\uff4f\uff42"])
def test_django_signs_in_a_user_under_every_spelling(client: httpx.Client, name: str) -> None:
    """Django strips and normalizes the name. Without that, the test above would prove nothing."""
    assert sign_in(client, name, "right") == 302
    client.cookies.delete("sessionid")
    assert client.get("/admin/login/").status_code == 200
