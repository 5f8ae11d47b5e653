"""The access to the API of ``ratelimit-mw serve``."""

from __future__ import annotations

from typing import Any

import pytest
from decision_service import ADMIN, API, BANNING, CHECK, TOKEN, Asked


@pytest.mark.parametrize(("method", "path", "options"), [*ADMIN, CHECK])
def test_the_token_opens_the_api(method: str, path: str, options: Any) -> None:
    """The API needs it on this machine, too: behind a TCP proxy, each client looks like a program of this machine."""
    for gateway in (None, "nginx"):
        asked = Asked(BANNING, service={"gateway": gateway})
        asked.headers = {"x-ratelimit-admin": "yes"}
        for value in (None, "Bearer wrong", "Bearer", TOKEN, f"Basic {TOKEN}", "Bearer é"):
            headers = [] if value is None else [(b"authorization", value.encode("latin-1"))]
            assert asked.ask(method, path, headers=headers, **options).status_code == 401
        asked.peer = "198.51.100.7"
        headers = [(b"authorization", f"bearer {TOKEN}".encode())]
        assert asked.ask(method, path, "http://limits.example", headers=headers, **options).status_code == 200


def test_a_web_page_cannot_post_a_form() -> None:
    """A browser sends no JSON to another host without asking first, and the service never agrees."""
    response = Asked(API).ask("POST", "/v1/reset", data={"key": "x"})
    assert response.status_code == 415
    assert Asked(API).ask("OPTIONS", "/v1/reset").status_code == 405
