"""The settings of a Django project, their overrides in tests, and the errors that stop the start."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import BaseCommand, call_command
from django.test import Client, override_settings
from django.urls import path
from django_calls import CLIENT, LOG, hello, one_rule, project, urls
from tables import each

from ratelimit_mw import ConfigError, Limiter
from ratelimit_mw.django import limit, limiter

TWICE = {"rules": [{"name": "api", "limits": "2/minute", **LOG}]}

both = each("is_async", [False, True])


@each("place", ["dictionary", "file", "named file", "limiter", "named limiter", "none"])
def test_the_sources_of_rules(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RATELIMIT_MW is settings, a file, a limiter, or one of these with functions. It may also be missing."""
    file = tmp_path / "limits.json"
    file.write_text(json.dumps(TWICE))
    monkeypatch.setattr("django_calls.limiter", one_rule(), raising=False)
    value: Any = {
        "dictionary": TWICE,
        "file": file,
        "named file": {"settings": str(file), "headers": ["ratelimit"]},
        "limiter": one_rule(),
        "named limiter": {"limiter": "django_calls.limiter"},
        "none": {},
    }[place]
    with project(value) as served:
        assert served.statuses() == [200, 200, 200 if place == "none" else 429]
        assert ("x-ratelimit-limit" in served.ask().headers) is (place not in ("named file", "none"))


@each(
    ("value", "message"),
    [
        ({"rules": [{"limits": "5/minit"}]}, "RATELIMIT_MW.*rules.0.*minit"),
        ({"rulez": []}, "RATELIMIT_MW.rulez: unknown setting"),
        (42, "RATELIMIT_MW: expected the path of a file, a dictionary, Settings or a Limiter; got 42"),
        ("absent.toml", "RATELIMIT_MW: settings file 'absent.toml' not found in "),
        ({"settings": TWICE, "limiter": "django_calls.CLIENT"}, "either settings"),
        ({"limiter": "django_calls.CLIENT"}, "expected a Limiter"),
        ({"settings": TWICE, "rules": []}, "rules: not an argument of the middleware"),
        ({**TWICE, "features": {"user": "django_calls.CLIENT"}}, "expected a function"),
        ({**TWICE, "features": ["user"]}, "expected a table"),
        ({**TWICE, "rejection": "nowhere.busy"}, "RATELIMIT_MW.rejection: cannot be imported"),
    ],
)
@each("application", [WSGIHandler, ASGIHandler])
def test_an_invalid_setting_is_an_error_at_the_start(application: Any, value: Any, message: str) -> None:
    """A mistake in the settings stops Django when its application is built. The error names the place."""
    with project(value), pytest.raises(ConfigError, match=message):
        application()


def test_a_misspelt_setting_stops_django() -> None:
    """A misspelt name would mean no limits. Names of your own are ignored."""
    with override_settings(RATELIMIT_MW=None, RATELIMIT_LOGIN="x", RATELIMIT_MV=TWICE):
        del settings.RATELIMIT_MW
        with pytest.raises(ConfigError, match=r"RATELIMIT_MV: unknown setting .*Did you mean 'RATELIMIT_MW'"):
            WSGIHandler()
        del settings.RATELIMIT_MV
        WSGIHandler()


@both
def test_overridden_settings_apply(is_async: bool) -> None:
    """They apply from the next request, with their own counts. ``limiter()`` returns the limiter that decides."""
    with project({"rules": [{"name": "api", "limits": "1/minute", **LOG}]}, is_async=is_async) as served:
        assert served.statuses(times=2) == [200, 429]
        with override_settings(RATELIMIT_MW=TWICE):
            assert served.statuses() == [200, 200, 429]
        assert served.statuses(times=2) == [200, 429]
        limiter().reset("api", {"ip": CLIENT})
        assert served.statuses(times=2) == [200, 429]


def test_urls_that_a_test_overrides_are_served() -> None:
    """The rules are written for the URLconf of the project. A test may replace it by another one, or replace both."""
    rule = {"rules": [{"limits": "1/minute", "match": {"path": "/login"}}]}
    with project(rule, path("login", hello)) as served:
        with override_settings(ROOT_URLCONF=urls(path("widget", hello))):
            assert served.ask("/widget").status_code == 200
            with override_settings(RATELIMIT_MW={**rule}), pytest.raises(ConfigError, match="no route has the path"):
                served.ask("/widget")
            assert served.ask("/widget").status_code == 200
        assert served.statuses("/login", 2) == [200, 429]


def test_the_store_of_overridden_settings_is_closed(tmp_path: Path) -> None:
    """Tests that override settings leave no store open. A limiter that a test passes stays open."""
    closed, kept = ({**TWICE, "store": f"memory://?snapshot={tmp_path / name}"} for name in ("closed", "kept"))
    client = Client()  # it builds the middleware once
    with project(closed), closing(Limiter.from_settings(kept)) as limiter:
        client.get("/")
        with override_settings(RATELIMIT_MW=limiter):
            assert client.get("/")["x-ratelimit-remaining"] == "1"
            assert (tmp_path / "closed").exists()
        assert client.get("/")["x-ratelimit-remaining"] == "0"
        assert not (tmp_path / "kept").exists()


REPLACED = {"rules": [{"overrides": "home", "limits": "3/minute"}, {"name": "all", "limits": "9/minute"}]}


class PeekCommand(BaseCommand):
    def handle(self, **_: Any) -> None:
        self.stdout.write(",".join(limiter().peek({"ip": CLIENT}).rules))


@each("read", [WSGIHandler, lambda: call_command(PeekCommand(), skip_checks=False)])
def test_the_limiter_knows_decorators_after_the_urlconf_is_read(read: Any) -> None:
    """The system checks or the application read the URLconf. Before that, a decision raises an error."""
    with project(REPLACED, path("", limit("1/minute", name="home")(hello))):
        with pytest.raises(ConfigError, match="no decorator has a rule named 'home'"):
            limiter().peek({"ip": CLIENT})
        read()
        assert limiter().peek({"ip": CLIENT}).rules == ("all",)
        limiter().reset("home", {"ip": CLIENT})
