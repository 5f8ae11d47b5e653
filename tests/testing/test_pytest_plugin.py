"""The pytest plugin in the tests of a project that has the package installed, each in a pytest process of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from folders import ROOT

FLASK = """
from flask import Flask
from ratelimit_mw.flask import RateLimiter, limit

app = Flask(__name__)
RateLimiter(app)

@app.get("/")
@limit("2/minute")
def home():
    return "home"

client = app.test_client()
"""
STARLETTE = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from ratelimit_mw.starlette import RateLimitMiddleware, limit

@limit("2/minute")
def home(request=None):
    return PlainTextResponse("home")

app = Starlette(routes=[Route("/", home)])
app.add_middleware(RateLimitMiddleware, settings={})
client = TestClient(app)
"""
FASTAPI = """
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware, limit

app = FastAPI()
app.add_middleware(RateLimitMiddleware, settings={})

@app.get("/", dependencies=[Depends(RateLimit("2/minute"))])
@limit("3/minute")
async def home_awaited():
    return "home"

@limit("3/minute")
def home():
    return "home"

client = TestClient(app)
"""
DJANGO = """
import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW={"rules": []},
)
django.setup()

from django.http import HttpResponse
from django.test import Client
from django.urls import path
from ratelimit_mw.django import limit

@limit("2/minute")
def home(request=None):
    return HttpResponse("home")

urlpatterns = [path("", home)]
client = Client()
"""
APPLICATIONS = {"flask": FLASK, "starlette": STARLETTE, "fastapi": FASTAPI, "django": DJANGO}

TESTS = """
import pytest

from application import client, home


def statuses(times):
    return [client.get("/").status_code for _ in range(times)]


@pytest.mark.parametrize("again", [1, 2, 3])
def test_counts_start_empty(ratelimit_clock, again):
    assert statuses(3) == [200, 200, 429]
    ratelimit_clock.advance(120)
    assert statuses(3) == [200, 200, 429]


def test_the_clock_starts_at_noon(ratelimit_clock):
    assert ratelimit_clock.time == 1_767_268_800
    assert client.get("/").headers["x-ratelimit-reset"] == "60"


def test_nothing_is_limited(ratelimit_off):
    assert statuses(9) == [200] * 9
    assert "x-ratelimit-limit" not in client.get("/").headers


def test_a_view_can_be_called(ratelimit_off):
    home()


def test_a_view_cannot_be_called_otherwise():
    with pytest.raises(Exception, match="RateLimitMiddleware|RateLimiter|middleware"):
        home()


def test_limits_are_on_again():
    assert 429 in statuses(9)  # a minute may end in between


def test_off_takes_precedence_over_the_clock(ratelimit_clock, ratelimit_off):
    assert statuses(9) == [200] * 9
"""


def run(folder: Path, *options: str) -> str:
    """Run pytest in a folder and return its output."""
    warnings = ["-W", "error::pytest.PytestWarning"]  # other warnings are not from the plugin
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *warnings, *options]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("application", APPLICATIONS.values(), ids=APPLICATIONS.keys())
def test_the_fixtures_in_each_framework(application: str, tmp_path: Path) -> None:
    """The fixtures affect an application that was built on import, and end with their test."""
    (tmp_path / "application.py").write_text(application)
    (tmp_path / "test_application.py").write_text(TESTS)
    assert "9 passed" in run(tmp_path)


@pytest.mark.slow
def test_fixtures_work_in_async_tests(tmp_path: Path) -> None:
    """An awaited limiter uses the clock."""
    (tmp_path / "test_awaited.py").write_text(
        "import pytest\n\nfrom ratelimit_mw import Limiter, Rule\n\n"
        "limiter = Limiter([Rule(name='api', limits='1/minute', key=[])])\n\n\n"
        "@pytest.mark.anyio\n@pytest.mark.parametrize('anyio_backend', ['asyncio'])\n"
        "async def test_awaited(ratelimit_clock):\n"
        "    assert [bool(await limiter.ahit({})) for _ in range(2)] == [True, False]\n"
        "    ratelimit_clock.advance(120)\n"
        "    assert await limiter.ahit({})\n"
    )
    assert "1 passed" in run(tmp_path)


@pytest.mark.slow
def test_unused_plugin_imports_nothing(tmp_path: Path) -> None:
    """Neither the package nor its dependencies are imported before a fixture is used."""
    (tmp_path / "test_alone.py").write_text(
        "import sys\n\n\ndef test_alone(request):\n"
        "    assert request.config.pluginmanager.has_plugin('ratelimit_mw')\n"
        "    names = [name.partition('.')[0] for name in sys.modules]\n"
        "    assert not {'ratelimit_mw', 'msgspec'} & set(names)\n"
    )
    assert "1 passed" in run(tmp_path)


@pytest.mark.slow
def test_fixtures_have_a_description(tmp_path: Path) -> None:
    """``pytest --fixtures`` shows it."""
    (tmp_path / "test_nothing.py").write_text("")
    output = subprocess.run(
        [sys.executable, "-m", "pytest", "--fixtures", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    ).stdout
    for name in ("ratelimit_clock", "ratelimit_off"):
        assert output.partition(f"\n{name} ")[2].splitlines()[1].strip()


def test_plugin_is_installed_with_the_package() -> None:
    """The entry point exists, and the wheel and the sdist contain the module."""
    (plugin,) = entry_points(group="pytest11", name="ratelimit_mw")
    assert plugin.load().__all__ == ["ratelimit_clock", "ratelimit_off"]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert f"{plugin.module}.py" in build["wheel"]["packages"]
    assert f"/{plugin.module}.py" in build["sdist"]["include"]
