"""The access to the admin API of ``ratelimit-mw serve``."""

from __future__ import annotations

from typing import Any

import pytest
from decision_service import ADMIN, API, BANNING, TOKEN, Asked


@pytest.mark.parametrize(("method", "path", "options"), ADMIN)
def test_without_a_token_the_admin_api_is_for_programs_of_this_machine(method: str, path: str, options: Any) -> None:
    """A trusted proxy, a request with the header of a proxy, and a page of another host get a 403.

    So does a request without the header of an admin: an application may send it for a client.
    """
    asked = Asked(BANNING, trusted_proxies=["127.0.0.1", "10.0.0.9"])
    assert asked.ask(method, path, **options).status_code == 200
    assert asked.ask(method, path, "http://localhost:8429", **options).status_code == 200
    rejected = [asked.ask(method, path, "http://evil.example", **options)]
    names = ("x-forwarded-for", "forwarded", "via", "x-real-ip")
    rejected += [asked.ask(method, path, headers={name: "127.0.0.1"}, **options) for name in names]
    asked.peer = "10.0.0.9"
    rejected.append(asked.ask(method, path, **options))
    assert {each.status_code for each in rejected} == {403}
    assert all("--admin-token-file" in each.json()["error"] for each in rejected)
    asked.peer, asked.headers = "127.0.0.1", {}
    bare = asked.ask(method, path, **options)
    assert (bare.status_code, "X-RateLimit-Admin: yes" in bare.json()["error"]) == (403, True)


@pytest.mark.parametrize(("method", "path", "options"), ADMIN)
def test_with_a_gateway_the_admin_api_needs_a_token(method: str, path: str, options: Any) -> None:
    """A plain ``proxy_pass`` adds no header, so its requests look like those of a program of this machine."""
    without = Asked(BANNING, service={"gateway": "nginx"}).ask(method, path, **options)
    assert without.status_code == 403
    assert without.json()["error"] == (
        "with --gateway, the admin API needs a token. Start the service with --admin-token-file FILE"
    )
    asked = Asked(BANNING, service={"gateway": "nginx", "token": TOKEN})
    assert asked.ask(method, path, **options).status_code == 200


@pytest.mark.parametrize(("method", "path", "options"), ADMIN)
def test_a_token_opens_the_admin_api(method: str, path: str, options: Any) -> None:
    """With a token, the API needs it on this machine, too."""
    asked = Asked(BANNING, service={"token": TOKEN})
    asked.headers = {"x-ratelimit-admin": "yes"}
    for value in (None, "Bearer wrong", "Bearer", TOKEN, f"Basic {TOKEN}", "Bearer é"):
        headers = [] if value is None else [(b"authorization", value.encode("latin-1"))]
        assert asked.ask(method, path, headers=headers, **options).status_code == 401
    asked.peer = "198.51.100.7"
    headers = [(b"authorization", f"bearer {TOKEN}".encode())]
    assert asked.ask(method, path, "http://limits.example", headers=headers, **options).status_code == 200


def test_a_check_of_another_machine_needs_trust() -> None:
    """Only this machine and trusted proxies may say who a client is."""
    asked = Asked(API, trusted_proxies=["10.0.0.9"])
    asked.peer = "10.0.0.9"
    asked.check(features={"ip": "192.0.2.7"})
    asked.peer = "10.0.0.8"
    assert "trusted_proxies" in asked.check(403, features={"ip": "192.0.2.7"})["error"]


def test_a_web_page_cannot_post_a_form() -> None:
    """A browser sends no JSON to another host without asking first, and the service never agrees."""
    response = Asked(API).ask("POST", "/v1/reset", data={"key": "x"})
    assert response.status_code == 415
    assert Asked(API).ask("OPTIONS", "/v1/reset").status_code == 405
