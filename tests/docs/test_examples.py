"""Every application in examples/ does what it says, run by the very command that it gives, over real HTTP."""

import re
from collections.abc import Iterator
from itertools import count

import httpx
import pytest
from folders import ROOT
from served_examples import running

from ratelimit_mw import load_settings

EXAMPLES = ROOT / "examples"
APPS = sorted(EXAMPLES.glob("*_app.py"))  # those in migrating/ are run by test_migrating.py
COMMANDS = [
    (path.stem, command) for path in APPS for command in re.findall(r"^# Run it: (.+)$", path.read_text(), re.MULTILINE)
]
MORE_THAN_ANY_LIMIT = 150
FRAMEWORKS = ("starlette_app", "fastapi_app", "flask_app", "django_app")
_hosts = count(2)


def on(commands: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """Try it on these, each served once."""
    ids = [f"{name}:{command.split()[0]}" for name, command in commands]
    return pytest.mark.parametrize("served", commands, indirect=True, ids=ids, scope="module")


every = on(COMMANDS)
whole = on([(name, command) for name, command in COMMANDS if name in (*FRAMEWORKS, "asgi_app", "wsgi_app")])
decorated = on([(name, command) for name, command in COMMANDS if name in FRAMEWORKS])


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address that an example is served at."""
    with running(request.param[1]) as address:
        yield address


@pytest.fixture
def client(served: str) -> Iterator[httpx.Client]:
    """A client of the example with an address of its own, so that no test finds a limit used up."""
    transport = httpx.HTTPTransport(local_address=f"127.0.0.{next(_hosts)}")
    with httpx.Client(base_url=served, transport=transport, timeout=30) as client:
        yield client


def until_rejected(client: httpx.Client, method: str, path: str, **asked: object) -> list[httpx.Response]:
    """The answers up to the first rejection, that included."""
    answers = [client.request(method, path, **asked)]  # type: ignore[arg-type]
    while answers[-1].status_code != 429 and len(answers) < MORE_THAN_ANY_LIMIT:
        answers.append(client.request(method, path, **asked))  # type: ignore[arg-type]
    assert answers[-1].status_code == 429
    return answers


def signed_in(client: httpx.Client, name: str, password: str) -> dict[str, str]:
    """The header of a user."""
    answer = client.post("/login", json={"name": name, "password": password})
    assert answer.status_code == 200, answer.text
    return {"authorization": f"Bearer {answer.json()['token']}"}


@every
def test_it_serves_until_its_limit_and_then_rejects(client: httpx.Client) -> None:
    """It says how much is left, and answers 429 once nothing is."""
    *answers, rejected = until_rejected(client, "GET", "/")
    first = answers[0]
    assert {answer.status_code for answer in answers} == {200}
    assert int(first.headers["x-ratelimit-remaining"]) == int(first.headers["x-ratelimit-limit"]) - 1
    assert "r=0" not in first.headers["ratelimit"]
    assert len(answers) >= int(first.headers["x-ratelimit-limit"])
    assert int(rejected.headers["retry-after"]) >= 1
    assert "r=0" in rejected.headers["ratelimit"]


@whole
def test_only_wrong_passwords_count(client: httpx.Client) -> None:
    """Signing in works as often as one likes; five wrong passwords a minute, and not even the right one is heard."""
    for _ in range(7):
        signed_in(client, "ann", "sesame")
    *wrong, rejected = until_rejected(client, "POST", "/login", json={"name": "ann", "password": "guess"})
    assert {answer.status_code for answer in wrong} == {401}
    assert len(wrong) >= 5
    assert '"login"' in rejected.headers["ratelimit"]
    assert client.post("/login", json={"name": "ann", "password": "sesame"}).status_code == 429


@whole
def test_users_are_counted_apart(client: httpx.Client) -> None:
    """Ann's rejection is hers alone, though Bob comes from the same address."""
    ann, bob = signed_in(client, "ann", "sesame"), signed_in(client, "bob", "lettuce")
    *answers, _ = until_rejected(client, "GET", "/api/report", headers=ann)
    assert [answer.json() for answer in answers] == [{"for": "ann"}] * len(answers)
    assert client.get("/api/report", headers=bob).json() == {"for": "bob"}
    assert client.get("/api/report").status_code == 401


@whole
def test_a_rejection_is_the_application_s_own_answer(client: httpx.Client) -> None:
    """The body is its own, the headers are the package's."""
    rejected = until_rejected(client, "POST", "/login", json={"name": "bob", "password": "guess"})[-1]
    assert rejected.json()["error"] == "slow down"
    assert 0 < rejected.json()["seconds"] <= int(rejected.headers["retry-after"])
    assert rejected.headers["content-type"] == "application/json"
    assert rejected.headers["x-ratelimit-remaining"] == "0"


@decorated
def test_views_have_limits_of_their_own(client: httpx.Client) -> None:
    """What stands on a view goes on top of the file: three reports a minute, where the file would allow ten."""
    bob = signed_in(client, "bob", "lettuce")
    answers = until_rejected(client, "GET", "/api/report", headers=bob)
    assert len(answers) <= 7  # also where a new minute begins on the way
    assert '"report"' in answers[-1].headers["ratelimit"]
    assert {'"api"', '"report"', '"site"'} <= set(re.findall(r'"[a-z]+"', answers[0].headers["ratelimit-policy"]))
    assert client.get("/api/items/7", headers=bob).json() == {"id": 7}


@decorated
def test_an_exempt_view_is_left_alone(client: httpx.Client) -> None:
    """Health checks are answered when nothing else is."""
    until_rejected(client, "GET", "/")
    answers = [client.get("/health") for _ in range(5)]
    assert {answer.status_code for answer in answers} == {200}
    assert not [name for name in answers[0].headers if "ratelimit" in name]


def test_every_file_has_its_place() -> None:
    """The page lists every program; each is short and says how to run it; the settings load."""
    listed = (EXAMPLES / "README.md").read_text()
    for path in APPS:
        assert f"]({path.name})" in listed
        assert path.stem in [name for name, _ in COMMANDS]
        assert len(path.read_text().splitlines()) <= 80
    assert load_settings(EXAMPLES / "ratelimit.toml").rules
