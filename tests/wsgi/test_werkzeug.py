"""The WSGI middleware reads the URL map of a Werkzeug application: its views, names, templates and parameters."""

from typing import Any

import pytest
from tables import each
from werkzeug.routing import Map
from werkzeug.routing import Rule as URLRule
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.wsgi import RateLimitMiddleware, exempt, limit


def show(request: Request, note: int) -> Response:
    return Response(f"note {note}")


@limit("1/minute", name="change", key=["path:note"])
def change(request: Request, note: int) -> Response:
    return Response("changed")


@exempt
def health(request: Request) -> Response:
    return Response("ok")


URLS = Map(
    [
        URLRule("/notes/<int:note>", endpoint=show, methods=["GET"]),
        URLRule("/notes/<int:note>", endpoint=change, methods=["POST"]),
        URLRule("/health", endpoint=health),
        URLRule("/named/<note>", endpoint="named"),
    ]
)
ALL = Rule(name="all", limits="3/minute")


def application(urls: Map) -> Any:
    """Return an application that calls the endpoints of a map."""

    @Request.application
    def site(request: Request) -> Any:
        view, values = urls.bind_to_environ(request.environ).match()
        return (show if view == "named" else view)(request, **values)

    return site


def client(*rules: Rule, urls: Any = URLS) -> Client:
    limiter = Limiter(rules, clock=ManualClock(1_000_000.0))
    return Client(RateLimitMiddleware(application(urls), limiter=limiter, url_map=urls))


def statuses(client: Client, *paths: str, method: str = "GET") -> list[int]:
    return [client.open(path, method=method).status_code for path in paths]


def test_limits_of_views_apply() -> None:
    """Each has its own count."""
    asked = client()
    assert statuses(asked, "/notes/7", "/notes/007", "/notes/8", method="POST") == [200, 429, 200]
    assert statuses(asked, "/notes/7", "/notes/7") == [200, 200]


def test_an_exempt_view_is_not_limited() -> None:
    """Other paths share the limit of everyone, those without a route too."""
    asked = client(Rule(name="everyone", limits="2/minute"))
    assert statuses(asked, *["/health"] * 3, "/notes/7", "/nowhere", "/notes/7") == [200] * 4 + [404, 429]


@each("match", [{"view": "show"}, {"path": "/notes/{note}", "methods": "GET"}, {"view": "named"}])
def test_a_rule_names_an_endpoint_or_its_path(match: Any) -> None:
    """A function is named by its name."""
    asked = client(Rule(name="one", limits="1/minute", match=match, key=["endpoint"]))
    path = "/named/" if match == {"view": "named"} else "/notes/"
    assert statuses(asked, f"{path}7", f"{path}8") == [200, 429]
    assert statuses(asked, "/notes/7", "/notes/7", method="POST") == [200, 429]


def test_a_405_counts_under_the_template_of_its_path() -> None:
    """As a request that reaches a view does, with the parameters of the path."""
    urls = Map([URLRule("/notes/<int:note>", endpoint=change, methods=["POST"])])
    asked = client(Rule(name="note", limits="1/minute", key=["endpoint", "path:note"]), urls=urls)
    assert statuses(asked, "/notes/7", "/notes/7", "/notes/8", method="PUT") == [405, 429, 405]
    assert statuses(asked, "/notes/7", method="POST") == [429]


def test_a_rule_that_no_route_has_is_an_error() -> None:
    """It would limit nothing."""
    for rule in (
        Rule(name="one", limits="1/minute", match={"path": "/note"}),
        Rule(name="one", limits="1/minute", match={"view": "shwo"}),
        Rule(name="one", limits="1/minute", key=["path:id"]),
    ):
        with pytest.raises(ConfigError, match=r"one.*no route has"):
            client(rule)


@limit("1/minute", name="tenant", key=["path:tenant"])
def shop(request: Request, tenant: str) -> Response:
    return Response(tenant)


def test_a_rule_may_be_added_to_the_map_later() -> None:
    """Its view is read at the first request. The counts of the others stay."""
    urls = Map([URLRule("/t/<tenant>", endpoint=shop)])
    asked = client(ALL, urls=urls)
    assert statuses(asked, "/t/a") == [200]
    urls.add(URLRule("/health", endpoint=health))
    urls.add(URLRule("/vote/<note>", endpoint=limit("1/minute", name="vote")(show)))
    assert statuses(asked, "/health", "/vote/1", "/vote/1", "/t/a") == [200, 200, 429, 429]


def test_a_map_of_another_kind_is_an_error() -> None:
    """The error names the argument."""
    with pytest.raises(ConfigError, match=r"url_map: expected a Map of werkzeug.routing; got \[1\]"):
        client(urls=[1])
