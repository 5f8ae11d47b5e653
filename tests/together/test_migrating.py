"""After a migration from another package the responses are the same, except for differences that its page names.

Each example application is in `examples/migrating` twice, before and after. Both get the same requests.
"""

import difflib
import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from folders import ROOT, SUPPORT, page_of
from served_examples import running
from tables import each

pytestmark = pytest.mark.slow

FOLDER = ROOT / "examples" / "migrating"
OTHERS = sorted({path.stem for path in FOLDER.glob("*.py")} - {"flask_limiter_after"})
PLAYER = SUPPORT / "migrating_player.py"
TWO_DAYS = 2 * 86_400
PACKAGES = {
    "flask_limiter": "app",
    "slowapi": "app",
    "django_ratelimit": "application",
    "rest_framework": "application",
    "django_axes": "application",
    "fastapi_limiter": "app",
}


class Scene(NamedTuple):
    """Requests and the statuses of both applications, or of the application before and after the migration.

    ``page`` is a part of the sentence that names the difference on the page of the package.
    """

    steps: list[dict[str, Any]]
    statuses: list[int]
    statuses_after: list[int] | None = None
    page: str = ""


def ask(method: str, url: str, times: int = 1, after: float = 0, **request: Any) -> list[dict[str, Any]]:
    """Repeat a request, first ``after`` seconds after the previous one."""
    step = {"method": method, "url": url, **request}
    return [{**step, "after": after}, *[step] * (times - 1)]


get, post = functools.partial(ask, "GET"), functools.partial(ask, "POST")


ANN, BOB = {"X-API-Key": "ann"}, {"X-API-Key": "bob"}
MONITORING = {"X-API-Key": "monitoring"}
RIGHT = {"password": "secret"}
KNOWN = {"username": "ann", "password": "secret"}
WRONG, OTHER = ({"username": name, "password": "guess"} for name in ("ann", "bob"))
LIMITED = {"django_ratelimit": get("/search?q=tea"), "django_axes": post("/login", data=WRONG)}
"""The request that an example limits, where it is not ``GET /``."""
LATE_BURST = [*get("/"), *get("/", after=55), *get("/", 2), *get("/", after=6), *get("/")]

OF_BOTH: dict[str, Scene] = {
    "default limits on each view separately": Scene(get("/", 5), [200] * 4 + [429]),
    "the next minute": Scene([*get("/", 5), *get("/", after=90)], [200] * 4 + [429, 200]),
    "a limit beside the default ones": Scene(get("/about", 3), [200, 200, 429]),
    "a shared limit": Scene([*get("/search/tea", 2), *get("/suggest/te", 2)], [200, 200, 200, 429]),
    "cost": Scene(get("/export", 3), [200, 200, 429]),
    "an exempt view": Scene(get("/health", 9), [200] * 9),
    "requests without a route": Scene(
        get("/nowhere", 5), [404] * 5, [404] * 4 + [429], "Requests that no route matches"
    ),
    "no second burst where a window ends": Scene(LATE_BURST, [200] * 6, [200] * 5 + [429], "fixed-window"),
}
"""The scenes of Flask-Limiter and slowapi, whose examples have the same views."""

SCENES: dict[str, dict[str, Scene]] = {
    "flask_limiter": OF_BOTH
    | {
        "only failures count": Scene(
            [*post("/login", 3, data=RIGHT), *post("/login", 2), *post("/login", data=RIGHT)],
            [200, 200, 200, 401, 401, 429],
        ),
        "the longer of two limits in one string": Scene(
            [*post("/login", 2, after=90) * 5, *post("/login", after=90)], [401] * 10 + [429]
        ),
        "a blueprint's limit on each of its views": Scene(
            [*get("/api/items", 3), *get("/api/prices", 3)], [200, 200, 429] * 2
        ),
        "a key of one's own": Scene(
            [*get("/api/items", 3, headers=ANN), *get("/api/items", 3, headers=BOB)], [200, 200, 429] * 2
        ),
        "a request filter": Scene(get("/", 9, headers=MONITORING), [200] * 9),
        "a limit on the whole application": Scene(get("/", 4, after=120) * 26, [200] * 100 + [429] * 4),
        "rejected requests consume nothing": Scene(
            [*get("/export", 120), *get("/")],
            [200, 200, *[429] * 119],
            [200, 200, *[429] * 118, 200],
            "consumes nothing",
        ),
    },
    "slowapi": OF_BOTH
    | {
        "some methods only": Scene([*post("/items", 3), *get("/items", 6)], [200, 200, 429, *[200] * 6]),
        "the longer of two limits in one string": Scene(
            [*post("/items", 2, after=90) * 5, *post("/items", after=90)], [200] * 10 + [429]
        ),
        "a key of one's own": Scene(
            [*post("/items", 3, headers=ANN), *post("/items", 3, headers=BOB)], [200, 200, 429] * 2
        ),
        "an exemption by a function": Scene(post("/items", 9, headers=MONITORING), [200] * 9),
        "rejected requests consume nothing": Scene(
            [*post("/items", 12), *post("/items", 3, after=90)],
            [200, 200, *[429] * 13],
            [200, 200, *[429] * 10, 200, 200, 429],
            "consumes nothing",
        ),
    },
    "django_ratelimit": {
        "no limit where there is none": Scene(get("/", 9), [200] * 9),
        "an address": Scene([*get("/search?q=a", 2), *get("/search?q=b", 2), *get("/search?q=c")], [200] * 5),
        "a field of the query": Scene(get("/search?q=a", 3), [200, 200, 429]),
        "a field of a form": Scene(
            [*post("/login", 3, data={"username": "ann"}), *post("/login", data={"username": "bob"})],
            [200, 200, 429, 200],
        ),
        "some methods only": Scene(get("/login", 9), [200] * 9),
        "a group, and a header": Scene(
            [*get("/items", 2, headers=ANN), *get("/prices", 2, headers=ANN), *get("/prices", headers=BOB)],
            [200, 200, 200, 429, 200],
        ),
        "functions for key and rate": Scene(
            [*get("/export", 5, headers={"X-Client": "partner"}), *get("/export", 2, headers={"X-Client": "other"})],
            [200] * 4 + [429, 200, 429],
        ),
        "a view with a verdict and without a block": Scene(get("/contact", 3), [200] * 3),
        "a method of a class": Scene([*post("/basket", 3), *get("/basket")], [200, 200, 429, 405]),
        "rejected requests consume nothing": Scene(
            [*get("/search?q=a", 4), *get("/search?q=b", 2)],
            [200, 200, 429, 429, 200, 429],
            [200, 200, 429, 429, 200, 200],
            "consumes nothing",
        ),
        "requests that lack the field": Scene(get("/search", 3), [200, 200, 429], [200] * 3, "does not apply"),
    },
    "rest_framework": {
        "clients that are not signed in, over all views": Scene([*get("/", 3), *get("/about", 2)], [200] * 4 + [429]),
        "users": Scene([*get("/", 7, headers=ANN), *get("/", headers=BOB)], [200] * 6 + [429, 200]),
        "the next minute": Scene([*get("/", 5), *get("/", after=60)], [200] * 4 + [429, 200]),
        "a scope": Scene([*get("/uploads", 3), *get("/", 5)], [200, 200, 429, *[200] * 4, 429]),
        "a burst and a rate per day": Scene(
            [*get("/search", 2), *get("/search", 2, after=2), *get("/search", 2, after=2)], [200] * 5 + [429]
        ),
        "a key of one's own": Scene(
            [*get("/report?company=a", 4), *get("/report?company=b", 4), *get("/report", 9)],
            [200] * 3 + [429] + [200] * 3 + [429] + [200] * 9,
        ),
        "a view without throttles": Scene(get("/health", 9), [200] * 9),
        "an address that a client has invented": Scene(
            [step for n in range(5) for step in get("/", headers={"X-Forwarded-For": f"198.51.100.{n}"})],
            [200] * 4 + [429],
        ),
        "a rejection consumes nothing": Scene(
            [*get("/search", 3), *get("/search", 2, after=2), *get("/search", 2, after=2)],
            [200, 200, 429, 200, 200, 429, 429],
            [200, 200, 429, 200, 200, 200, 429],
            "consumes nothing",
        ),
    },
    "django_axes": {
        "a page without a password": Scene(get("/", 9), [200] * 9),
        "a success starts again at zero": Scene(
            [*post("/login", 2, data=WRONG), *post("/login", data=KNOWN)] * 3, [401, 401, 200] * 3
        ),
        "three passwords are tried": Scene(
            [*post("/login", 4, data=WRONG), *post("/login", data=KNOWN), *post("/login", data=OTHER)],
            [401, 401, 429, 429, 429, 401],
            [401, 401, 401, 429, 429, 401],
            "the third failure",
        ),
        "the cool-off": Scene(
            [*post("/login", 2, data=WRONG), *post("/login", data=WRONG, after=3_601)], [401, 401, 401]
        ),
        "a reset by code": Scene(
            [*post("/login", 2, data=WRONG), *get("/unlock/ann"), *post("/login", 2, data=WRONG)],
            [401, 401, 200, 401, 401],
        ),
        "attempts while locked": Scene(
            [
                *post("/login", 4, data=WRONG),
                *post("/login", data=WRONG, after=1_800),
                *post("/login", data=KNOWN, after=1_900),
            ],
            [401, 401, 429, 429, 429, 429],
            [401, 401, 401, 429, 429, 200],
            "do not extend",
        ),
        "spellings of a name": Scene(
            [*post("/login", 2, data=WRONG), *post("/login", 2, data={**WRONG, "username": "Ann"})],
            [401] * 4,
            [401, 401, 401, 429],
            "one spelling",
        ),
    },
    "fastapi_limiter": {
        "a limit of a dependency": Scene([*get("/", 5), *get("/", after=61)], [200] * 4 + [429, 200]),
        "two rates": Scene(
            [*get("/search", 2), *get("/search", 2, after=2), *get("/search", 2, after=2)], [200] * 5 + [429]
        ),
        "a rejected request": Scene([*get("/search", 3), *get("/search", after=2)], [200, 200, 429, 200]),
        "a key of one's own": Scene(get("/items", 3, headers=ANN), [200, 200, 429]),
        "an exempt route": Scene(get("/health", 9), [200] * 9),
        "two clients": Scene(
            [*get("/items", 2, headers=ANN), *get("/items", headers=BOB)],
            [200, 200, 429],
            [200, 200, 200],
            "one bucket for all clients",
        ),
    },
}


@functools.cache
def play() -> dict[str, dict[str, list[tuple[int, str]]]]:
    """Return the responses of each application by scene. Each scene starts two days later at the same time."""
    asked = {}
    for package, scenes in SCENES.items():
        steps: list[dict[str, Any]] = []
        for scene in scenes.values():
            since = sum(step.get("after", 0) for step in steps)
            first, *others = scene.steps
            steps += [{**first, "after": -since % TWO_DAYS + TWO_DAYS}, *others]
        asked |= {str(FOLDER / f"{package}_{side}.py"): (PACKAGES[package], steps) for side in ("before", "after")}
    result = subprocess.run(
        [sys.executable, PLAYER], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    found = {}
    for path, responses in json.loads(result.stdout).items():
        left = iter(responses)
        scenes = SCENES[Path(path).stem.rpartition("_")[0]]
        found[Path(path).stem] = {says: [tuple(next(left)) for _ in scene.steps] for says, scene in scenes.items()}
    return found


@each(("package", "says"), [(package, says) for package, scenes in SCENES.items() for says in scenes])
def test_the_same_requests_have_the_same_responses(package: str, says: str) -> None:
    """Status and body are the same as before, or the page of the package names the difference."""
    scene = SCENES[package][says]
    before, after = (play()[f"{package}_{side}"][says] for side in ("before", "after"))
    assert [status for status, _ in before] == scene.statuses
    assert [status for status, _ in after] == (scene.statuses_after or scene.statuses)
    if scene.statuses_after is None:
        assert after == before
    else:
        assert scene.page
        assert scene.page in migration_page(package).read_text()


@each("package", PACKAGES)
def test_the_page_shows_the_difference_line_by_line(package: str) -> None:
    """The diff on the page has each line that differs, without the docstrings. Both applications run here."""
    before, after = ((FOLDER / f"{package}_{side}.py").read_text().splitlines() for side in ("before", "after"))
    shown = re.findall(r"^```diff\n(.*?)^```$", migration_page(package).read_text(), re.MULTILINE | re.DOTALL)
    lines = list(difflib.unified_diff(before, after, lineterm="", n=1))[3:]
    code = [line for line in lines if not line[1:].startswith(('"""', "# Run it:"))]
    expected = ["@@" if line.startswith("@@") else line.rstrip() for line in code]
    assert shown[0].splitlines() == "\n".join(expected).strip("\n@").splitlines()


@pytest.mark.parametrize(
    "name", ["flask_limiter_after", *(pytest.param(name, marks=pytest.mark.thorough) for name in OTHERS)]
)
def test_an_example_runs_with_its_command(name: str) -> None:
    """It serves and rejects over real HTTP, and reports the remaining requests after the migration."""
    (command,) = re.findall(r"^# Run it: (.+)$", (FOLDER / f"{name}.py").read_text(), re.MULTILINE)
    with running(command) as address, httpx.Client(base_url=address, trust_env=False, timeout=180) as client:
        (step,) = LIMITED.get(name.rpartition("_")[0], get("/"))
        responses = [client.request(**{key: step[key] for key in step if key != "after"}) for _ in range(9)]
    assert responses[0].status_code in (200, 401)
    assert 429 in [response.status_code for response in responses]
    assert ("x-ratelimit-remaining" in responses[0].headers) == name.endswith("_after")


def test_every_example_belongs_to_a_pair() -> None:
    """These tests run every file in the folder."""
    pairs = {f"{name}_{side}" for name in PACKAGES for side in ("before", "after")}
    assert {*OTHERS, "flask_limiter_after"} == pairs


def migration_page(package: str) -> Path:
    return page_of(f"from-{package.replace('_', '-')}")
