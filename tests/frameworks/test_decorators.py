"""``@limit`` and ``@exempt`` on views: which requests they hold for, by which names, and together with the settings."""

from typing import Any

import pytest
from sites import Build, Call, exempt, limited, routed
from tables import each

from ratelimit_mw import ConfigError, MissingMiddlewareError, Rule

pytestmark = routed
API = Rule(name="api", limits="1/minute")


def policy(response: Any) -> str:
    return str(response.headers.get("ratelimit-policy", ""))


def test_a_limit_on_a_view_holds_only_for_its_route(site: Build) -> None:
    """HEAD counts as GET. Other routes have no limit, and no settings are needed. Each client has its own count."""
    served = site([], {"/": limited(200, "2/minute"), "/free": 200})
    assert [served.call(method).status_code for method in ("GET", "HEAD", "GET", "HEAD")] == [200, 200, 429, 429]
    assert served.call(client="192.0.2.8").status_code == 200
    assert (served.statuses(3, path="/free"), policy(served.call(path="/free"))) == ([200] * 3, "")


def test_stacked_limits_have_their_own_counts(site: Build) -> None:
    """When one of two limits on a view rejects, the other consumes nothing, and each counts once."""
    served = site([], limited(limited(200, "20/hour", name="many"), "2/minute", name="few"))
    assert served.statuses(4) == [200, 200, 429, 429]
    assert sorted(served.left()) == [0, 18]


def test_functions_with_the_same_name_do_not_share_a_limit(site: Build) -> None:
    """The later one has a number in its name. Stacked limits have one, too."""
    served = site([], {f"/{name}": limited(limited(200, "9/hour"), "2/minute") for name in "ab"})
    assert [served.statuses(3, path=path) for path in ("/a", "/b")] == [[200, 200, 429]] * 2
    name = policy(served.call(path="/a")).partition('"')[2].partition('"')[0]
    of_view = '"{0}{1}";q=9;w=3600, "{0}{2}";q=2;w=60'
    assert policy(served.call(path="/a")) == of_view.format(name, "", "#2")
    assert policy(served.call(path="/b")) == of_view.format(name, "#3", "#4")


def test_the_settings_override_a_decorator(site: Build) -> None:
    """A rule with ``overrides`` changes the fields that it sets and keeps the others of the decorator."""
    view = limited(200, "1/minute", name="home", key=[])
    served = site({"rules": [{"overrides": "home", "limits": "3/minute"}]}, view)
    assert [served.call(client=f"192.0.2.{number}").status_code for number in range(4)] == [200, 200, 200, 429]


def test_an_exempt_view_is_not_limited(site: Build) -> None:
    """@exempt removes a view from every rule. With names, those rules do not apply, and its own limits stay."""
    views = {
        "/free": exempt(200),
        "/less": exempt(limited(200, "2/minute", name="own"), "api"),
        "/": 200,
    }
    served = site([API, Rule(name="also", limits="9/minute")], views)
    assert served.statuses(2) == [200, 429]
    assert (served.statuses(3, path="/free"), policy(served.call(path="/free"))) == ([200] * 3, "")
    assert [*policy(served.call(path="/less")).split(", ")] == ['"also";q=9;w=60', '"own";q=2;w=60']
    assert served.statuses(2, path="/less") == [200, 429]


def test_a_limited_function_that_is_no_view_is_an_error(site: Build) -> None:
    """Nothing has decided it, so it does not run. The error names ``check``, and what to do for a view."""

    async def view(call: Call) -> str:
        with pytest.raises(MissingMiddlewareError, match=r"<lambda> is limited by .* call check\(\).* match\.path"):
            helper()
        return "done"

    served = site([], view)
    helper = served.of.limit("2/minute", unrouted=True)(lambda: pytest.fail("it has run"))
    assert served.call().text == "done"


@each(
    ("settings", "view", "message"),
    [
        ({"rules": [{"overrides": "homme", "limits": "3/m"}]}, limited(200, "1/m", name="home"), "rules.*'homme'"),
        ({}, exempt(200, "api"), "@exempt on .*: unknown rule 'api'"),
        ({"rules": [{"name": "api", "limits": "1/m"}]}, limited(200, "1/m", name="api"), "the name 'api' is already"),
        ({}, limited(200, "1/m", key=["plan"]), "key: uses the feature 'plan'"),
        ({}, limited(200, "1/m", key=["path:id|ip"]), "the limit on .*: key: / has no parameter 'id'"),
        ({"rules": [{"name": "all", "key": ["path:id"], "limits": "9/m"}]}, exempt(200), "rule .all.: key: the rule n"),
        ({}, limited(200, "1/m", key=["user.id"]), "built-in feature 'user' is a text. Write 'user'"),
    ],
)
def test_a_mistake_in_a_decorator_stops_the_application(site: Build, settings: Any, view: Any, message: str) -> None:
    """It is an error at the start, or of each request."""
    with pytest.raises(ConfigError, match=message):
        site(settings, view).start()
