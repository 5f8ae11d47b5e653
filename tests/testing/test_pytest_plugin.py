"""The pytest plugin in the tests of projects that have the package installed, in pytest processes of their own."""

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
APPLICATIONS = {"flask": FLASK, "fastapi": FASTAPI, "django": DJANGO}

TESTS = """
import pytest

from APPLICATION import client, home


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


AWAITED = """
import pytest

from ratelimit_mw import Limiter, Rule

limiter = Limiter([Rule(name="api", limits="1/minute", key=[])])


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_awaited_limiter_uses_the_clock(ratelimit_clock):
    assert [bool(await limiter.ahit({})) for _ in range(2)] == [True, False]
    ratelimit_clock.advance(120)
    assert await limiter.ahit({})
"""
ALONE = """
import sys

import pytest


def test_alone(request):
    assert request.config.pluginmanager.has_plugin("ratelimit_mw")
    names = [name.partition(".")[0] for name in sys.modules]
    assert not {"ratelimit_mw", "msgspec"} & set(names)
"""


def run(folder: Path) -> str:
    """Run pytest in a folder and return its output."""
    warnings = ["-W", "error::pytest.PytestWarning"]  # other warnings are not from the plugin
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *warnings]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_fixtures_in_each_framework(tmp_path: Path) -> None:
    """The fixtures affect an application that was built on import, and end with their test, even an async one."""
    for name, application in APPLICATIONS.items():
        (tmp_path / f"{name}_application.py").write_text(application)
        (tmp_path / f"test_{name}.py").write_text(TESTS.replace("APPLICATION", f"{name}_application"))
    (tmp_path / "test_awaited.py").write_text(AWAITED)
    assert f"{9 * len(APPLICATIONS) + 1} passed" in run(tmp_path)


@pytest.mark.slow
def test_unused_plugin_imports_nothing(tmp_path: Path) -> None:
    """Neither the package nor its dependencies are imported before a fixture is used."""
    (tmp_path / "test_alone.py").write_text(ALONE)
    assert "1 passed" in run(tmp_path)


def test_plugin_is_installed_with_the_package() -> None:
    """The entry point exists, the fixtures are described, and the wheel and the sdist contain the module."""
    (plugin,) = entry_points(group="pytest11", name="ratelimit_mw")
    module = plugin.load()
    assert module.__all__ == ["ratelimit_clock", "ratelimit_off"]
    assert all(getattr(module, name).__doc__ for name in module.__all__)  # `pytest --fixtures` shows it
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert f"{plugin.module}.py" in build["wheel"]["packages"]
    assert f"/{plugin.module}.py" in build["sdist"]["include"]
