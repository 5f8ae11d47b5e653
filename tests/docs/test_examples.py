"""Every application in examples/ limits requests as described, run by its own command, over real HTTP."""

import re

import httpx
import pytest
from folders import ROOT
from served_examples import running

from ratelimit_mw import load_settings

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
APPS = sorted(EXAMPLES.glob("*_app.py"))  # test_migrating.py runs those in migrating/
COMMANDS = [
    (path.stem, command) for path in APPS for command in re.findall(r"^# Run it: (.+)$", path.read_text(), re.MULTILINE)
]
IS_SECOND = [number > 0 and COMMANDS[number - 1][0] == name for number, (name, _) in enumerate(COMMANDS)]
"""Whether a command runs an application on another server."""
MORE_THAN_ANY_LIMIT = 150
FRAMEWORKS = ("starlette_app", "fastapi_app", "flask_app", "django_app")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        pytest.param(name, command, id=f"{name}:{command.split()[0]}", marks=pytest.mark.thorough if is_second else ())
        for (name, command), is_second in zip(COMMANDS, IS_SECOND, strict=True)
    ],
)
def test_an_example_limits_as_described(name: str, command: str) -> None:
    """Each check has an IP address of its own, so that the checks do not share limits."""
    checks = [requests_are_rejected_after_the_limit]
    if name in (*FRAMEWORKS, "asgi_app", "wsgi_app"):
        checks += [only_wrong_passwords_count, each_user_has_a_limit, a_rejection_has_the_response_of_the_application]
    if name in FRAMEWORKS:
        checks += [limits_of_views_are_added_to_the_file, an_exempt_view_is_not_limited]
    with running(command) as address:
        for number, check in enumerate(checks, 2):
            transport = httpx.HTTPTransport(local_address=f"127.0.0.{number}")
            with httpx.Client(base_url=address, transport=transport, timeout=180) as client:
                check(client)


def until_rejected(client: httpx.Client, method: str, path: str, **options: object) -> list[httpx.Response]:
    """The responses up to the first rejection, inclusive."""
    responses = [client.request(method, path, **options)]  # type: ignore[arg-type]
    while responses[-1].status_code != 429 and len(responses) < MORE_THAN_ANY_LIMIT:
        responses.append(client.request(method, path, **options))  # type: ignore[arg-type]
    assert responses[-1].status_code == 429
    return responses


def signed_in(client: httpx.Client, name: str, password: str) -> dict[str, str]:
    """The header of a user who has logged in."""
    response = client.post("/login", json={"name": name, "password": password})
    assert response.status_code == 200, response.text
    return {"authorization": f"Bearer {response.json()['token']}"}


def requests_are_rejected_after_the_limit(client: httpx.Client) -> None:
    """Responses report what remains. Status 429 follows when nothing remains."""
    *responses, rejected = until_rejected(client, "GET", "/")
    first = responses[0]
    assert {response.status_code for response in responses} == {200}
    assert int(first.headers["x-ratelimit-remaining"]) == int(first.headers["x-ratelimit-limit"]) - 1
    assert "r=0" not in first.headers["ratelimit"]
    assert len(responses) >= int(first.headers["x-ratelimit-limit"])
    assert int(rejected.headers["retry-after"]) >= 1
    assert "r=0" in rejected.headers["ratelimit"]


def only_wrong_passwords_count(client: httpx.Client) -> None:
    """Right passwords are not limited. After five wrong passwords per minute the right one is rejected, too."""
    for _ in range(7):
        signed_in(client, "ann", "sesame")
    *wrong, rejected = until_rejected(client, "POST", "/login", json={"name": "ann", "password": "guess"})
    assert {response.status_code for response in wrong} == {401}
    assert len(wrong) >= 5
    assert '"login"' in rejected.headers["ratelimit"]
    assert client.post("/login", json={"name": "ann", "password": "sesame"}).status_code == 429


def each_user_has_a_limit(client: httpx.Client) -> None:
    """A rejection of Ann does not affect Bob, who has the same IP address."""
    ann, bob = signed_in(client, "ann", "sesame"), signed_in(client, "bob", "lettuce")
    *responses, _ = until_rejected(client, "GET", "/api/report", headers=ann)
    assert [response.json() for response in responses] == [{"for": "ann"}] * len(responses)
    assert client.get("/api/report", headers=bob).json() == {"for": "bob"}
    assert client.get("/api/report").status_code == 401


def a_rejection_has_the_response_of_the_application(client: httpx.Client) -> None:
    """The application writes the body, the middleware adds its headers."""
    rejected = until_rejected(client, "POST", "/login", json={"name": "bob", "password": "guess"})[-1]
    assert rejected.json()["error"] == "slow down"
    assert 0 < rejected.json()["seconds"] <= int(rejected.headers["retry-after"])
    assert rejected.headers["content-type"] == "application/json"
    assert rejected.headers["x-ratelimit-remaining"] == "0"


def limits_of_views_are_added_to_the_file(client: httpx.Client) -> None:
    """A view allows three reports per minute, and the file ten."""
    bob = signed_in(client, "bob", "lettuce")
    responses = until_rejected(client, "GET", "/api/report", headers=bob)
    assert len(responses) <= 7  # even when a new minute begins in between
    assert '"report"' in responses[-1].headers["ratelimit"]
    assert {'"api"', '"report"', '"site"'} <= set(re.findall(r'"[a-z]+"', responses[0].headers["ratelimit-policy"]))
    assert client.get("/api/items/7", headers=bob).json() == {"id": 7}


def an_exempt_view_is_not_limited(client: httpx.Client) -> None:
    """Health checks are allowed when all other requests are rejected."""
    until_rejected(client, "GET", "/")
    responses = [client.get("/health") for _ in range(5)]
    assert {response.status_code for response in responses} == {200}
    assert not [name for name in responses[0].headers if "ratelimit" in name]


def test_every_example_is_listed_and_short() -> None:
    """The README lists every application with its command, and the settings are valid."""
    listed = (EXAMPLES / "README.md").read_text()
    for path in APPS:
        assert f"]({path.name})" in listed
        assert path.stem in [name for name, _ in COMMANDS]
        assert len(path.read_text().splitlines()) <= 80
    assert load_settings(EXAMPLES / "ratelimit.toml").rules
