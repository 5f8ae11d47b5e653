"""A rule of the settings whose path, view or method no route has stops the start."""

from contextlib import nullcontext
from typing import Any

import flask
import pytest
from calls import ask
from django.conf.urls.i18n import i18n_patterns
from django.http import HttpResponse
from django.urls import include, path, re_path
from django.urls.converters import register_converter
from django.utils.functional import lazy
from django.utils.translation import get_language
from django.views import View
from django_calls import MIDDLEWARE, hello, project
from hypothesis import given
from hypothesis import strategies as st
from starlette.endpoints import HTTPEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Host, Match, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette_apps import application
from tables import each, expect_error

from ratelimit_mw import ConfigError, Rule
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.http.routes import Route as Described
from ratelimit_mw.http.routes import check_routes, marks_by_method
from ratelimit_mw.rules.access_lists import AccessLists
from ratelimit_mw.rules.decorators import limit
from ratelimit_mw.rules.marks import Destination
from ratelimit_mw.rules.match import METHODS
from ratelimit_mw.rules.paths import PathTable, overlap
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware

LOCALE = ["django.middleware.locale.LocaleMiddleware", *MIDDLEWARE]


def problem(match: dict[str, Any], *routes: Described, **options: Any) -> str:
    """Return the error about a rule, "" for none."""
    rules = RuleSet([Rule(name="r", limits="1/s", match=match, **options)])
    try:
        check_routes(routes, rules)
    except ConfigError as error:
        return str(error)
    return ""


def route(template: str, *methods: str, name: str = "") -> Described:
    return Described(Destination(template, name), methods=methods or METHODS)


LOGIN, ITEM = route("/login", "GET", "HEAD", name="auth.login"), route("/items/{id}", name="item")


@each(
    ("match", "expected"),
    [
        ({"path": "/login"}, ""),
        ({"path": ["/login/", "/items/7", "/items/**", "/**", "/{any}", "/items/{id}"]}, ""),
        ({"path": "/items/7", "methods": ["PURGE"]}, ""),
        ({"view": "auth.login"}, ""),
        ({"view": ""}, ""),
        ({"methods": ["GET"]}, ""),
        ({"methods": ["OPTIONS"]}, ""),
        ({"path": "/login", "methods": ["OPTIONS"]}, ""),
        ({"region": "DE"}, ""),
        ({"path": "/login", "view": ["auth.login", "item"]}, ""),
        ({"endpoint": ["/login", "/items/{id}", "unmatched"]}, ""),
        (
            {"endpoint": "/itemz/{id}"},
            "match.endpoint: no route has the endpoint '/itemz/{id}'. Did you mean '/items/{id}'?",
        ),
        (
            {"path": "/items/**", "view": "auth.login"},
            "match.path: no route has the view 'auth.login' and the path '/items/**'.",
        ),
        ({"view": "login"}, "match.view: no route has the view 'login'. Did you mean 'auth.login'?"),
        ({"path": "/accounts/login"}, "match.path: no route has the path '/accounts/login'. Did you mean '/login'?"),
        ({"path": ["/login", "/logn"]}, "match.path: no route has the path '/logn'. Did you mean '/login'?"),
        ({"path": "/zzz/**"}, "match.path: no route has the path '/zzz/**'."),
        ({"view": "auth.logn"}, "match.view: no route has the view 'auth.logn'. Did you mean 'auth.login'?"),
        (
            {"path": "/login", "methods": ["POST", "PUT"]},
            "match.methods: the route of '/login' has GET or HEAD, and not POST or PUT.",
        ),
        (
            {"view": "auth.login", "methods": "PUT"},
            "match.methods: the route of 'auth.login' has GET or HEAD, and not PUT.",
        ),
    ],
)
def test_the_error_names_field_value_and_the_nearest_one(match: dict[str, Any], expected: str) -> None:
    """The message ends with the way out: ``unrouted = true``, which silences it."""
    hint = " If this is on purpose, set unrouted = true in the rule"
    assert problem(match, LOGIN, ITEM) == (f"rule 'r': {expected}{hint}" if expected else "")
    assert not problem(match, LOGIN, ITEM, unrouted=True)
    assert not problem(match)  # no routes are known


@each(
    ("options", "expected"),
    [
        ({"per": {"view": {"auth.login": "1/s", "unmatched": "1/s"}, "endpoint": {"/login": "1/s"}}}, ""),
        ({"per": {"view": {"auth.logn": "1/s"}}}, "per.view['auth.logn']: no route has the view 'auth.logn'."),
        ({"per": {"endpoint": {"/items/7": "1/s"}}}, "per.endpoint['/items/7']: no route has the endpoint '/items/7'."),
        (
            {"per_key": {"itm": "1/s"}, "key": ["view"]},
            "per_key['itm']: no route has the view 'itm'. Did you mean 'item'",
        ),
        ({"per": {"view": {"auth.logn": "1/s"}}, "unrouted": True}, ""),
        ({"per": {"user": {"auth.logn": "1/s"}}}, ""),
    ],
)
def test_a_table_by_view_has_names_of_views(options: dict[str, Any], expected: str) -> None:
    """A typo would leave the view with the other limits. A function of yours may return any name."""
    assert problem({}, LOGIN, ITEM, **options).startswith(f"rule 'r': {expected}" if expected else "")
    assert bool(problem({}, LOGIN, ITEM, **options)) is bool(expected)
    check_routes([LOGIN, ITEM], RuleSet([Rule(limits="1/s", **options)]), provided=["view", "endpoint"])


def test_a_list_by_view_has_names_of_views() -> None:
    """A typo would let a client pass whom you deny."""
    for kind, part, value, hint in (
        ("deny", "view", "itm", "Did you mean 'item'"),
        ("allow", "endpoint", "/zzz", "Write the endpoint"),
    ):
        message = rf"^lists\.{kind}\.{part}: no route has the {part} '{value}'. {hint}"
        wrong = RuleSet([], lists=AccessLists({kind: {part: [value]}}))
        expect_error(message, check_routes, [LOGIN, ITEM], wrong)
        check_routes([LOGIN, ITEM], wrong, provided=[part])
    check_routes([LOGIN, ITEM], RuleSet([], lists=AccessLists({"deny": {"view": ["item"], "endpoint": ["/login"]}})))
    for part, message in (("view", "have no names"), ("endpoint", "are not known")):
        settings: Any = {"lists": {"deny": {part: ["/item"]}}}
        expect_error(f"^lists: .* {message}", WSGIMiddleware, hello, settings)


def test_several_routes_that_are_close_are_named() -> None:
    """A login of the site and one of the admin: the message does not choose between them."""
    routes = [route("/admin/login/", name="admin:login"), route("/accounts/login/", name="login"), route("/logins")]
    assert "Did you mean '/logins' or '/admin/login/' or '/accounts/login/'?" in problem({"path": "/login"}, *routes)
    assert "Did you mean 'login' or 'admin:login'?" in problem({"view": "auth.login"}, *routes)
    assert problem({"methods": "PUT"}, LOGIN).startswith("rule 'r': match.methods: no route has the method PUT.")


def test_options_that_name_routes_are_checked_when_built() -> None:
    """A view has a name, and a decorated view needs none."""
    expect_error("unrouted: expected true or false; got 'yes'", Rule, limits="1/s", unrouted="yes")
    for view in (None, 7, []):
        expect_error(r"match\.view", Rule, limits="1/s", match={"view": view})
    with pytest.raises(ConfigError, match=r"match\.view: a decorated view"):
        limit("1/s", match={"view": "home"})(hello)


@each(
    ("options", "expected"),
    [
        ({"key": ["path:id"], "match": {"path": "/items/7"}}, ""),
        ({"key": ["path:id"]}, ""),
        ({"key": ["path:id|ip"], "match": {"path": "/login"}}, ""),
        ({"key": ["path:id"], "match": {"path": "/login"}, "when_missing": "reject"}, ""),
        ({"key": ["path:id"], "match": {"path": "/login"}, "unrouted": True}, ""),
        ({"key": ["path:id"], "match": {"path": "/login"}}, "no route that the rule matches has the parameter 'id'"),
        (
            {"key": ["path:id"], "match": {"view": "auth.login"}},
            "no route that the rule matches has the parameter 'id'",
        ),
        ({"key": ["path:id"], "match": {"methods": "PUT"}}, "no route that the rule matches has the parameter 'id'"),
        ({"key": ["path:id", "path:owner"]}, "no route has the parameter 'id', 'owner'"),
        ({"match": {"path:shop": "7"}}, "no route has the parameter 'shop'"),
    ],
)
def test_a_parameter_is_looked_for_on_the_routes_of_the_rule(options: dict[str, Any], expected: str) -> None:
    """A rule by a parameter that its routes do not have would never apply. One route needs all parameters."""
    routes = [
        Described(Destination("/login", "auth.login"), methods=["GET", "PUT"]),
        Described(Destination("/items/{id}"), methods=["GET"], parameters=["id"]),
        Described(Destination("/{owner}"), methods=["GET"], parameters=["owner"]),
    ]
    message = problem(options.pop("match", {}), *routes, **options)
    assert message == (f"rule 'r': key: the rule never applies: {expected}" if expected else "")


# -- patterns ----------------------------------------------------------------------------------------------


@each(
    ("one", "other", "expected"),
    [
        ("/a*", "/*b", True),
        ("/a*", "/b*", False),
        ("/*.png", "/*.jpg", False),
        ("/a*c", "/abc", True),
        ("/**/end", "/start/**", True),
        ("/a/**", "/b/**", False),
        ("/", "/**", True),
        ("/files/x{rest:path}", "/files/a/b", True),
    ],
)
def test_patterns_overlap(one: str, other: str, expected: bool) -> None:
    """Two patterns overlap when a path may match both."""
    assert overlap(one, other) is overlap(other, one) is expected


SEGMENTS = st.sampled_from(["a", "b", "ab", "*", "a*", "*b", "{x}", "**"])
PATTERNS = st.lists(SEGMENTS, max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(
    PATTERNS, PATTERNS, st.lists(st.sampled_from(["a", "b", "ab", "c"]), max_size=5).map(lambda p: "/" + "/".join(p))
)
def test_a_path_that_matches_both_patterns_is_found(one: str, other: str, asked: str) -> None:
    """``overlap`` is never false for two patterns that the path table matches with one path."""
    if len(PathTable([(0, one), (1, other)]).match(asked)) == 2:
        assert overlap(one, other)


# -- frameworks --------------------------------------------------------------------------------------------


async def shown(request: Any) -> PlainTextResponse:
    return PlainTextResponse("shown")


class Foreign(BaseRoute):
    """A route that decides on its own which requests it matches."""

    def matches(self, scope: Any) -> Any:
        return Match.NONE, {}


def starlette(routes: list[BaseRoute], **match: Any) -> None:
    ask(application(routes, Rule(name="r", limits="1/s", match=match)), "/nowhere")


DEEP: list[BaseRoute] = [
    Mount("/{shop}/in", routes=[Route("/items/{id:int}", shown, methods=["PUT"]), Route("/{rest:path}/end", shown)]),
    Mount("/static", app=StaticFiles(directory=".")),
    Host("files.example.com", app=StaticFiles(directory=".")),
    WebSocketRoute("/ws", shown),
]


@each("where", ["/a/in/items/7", "/a/in/b/c/end", "/static/a/b.css", "/{shop}/in/items/{id}", "/ws"])
def test_paths_of_starlette_are_found(where: str) -> None:
    """Mounts, convertors, applications without routes and WebSockets: their paths are known or left open."""
    starlette(DEEP[:2] + DEEP[3:], path=where)
    with pytest.raises(ConfigError, match="no route has the path '/a/in/item'"):
        starlette(DEEP[:2], path="/a/in/item")


@each("view", [HTTPEndpoint, lambda request: request])
def test_a_view_may_have_actions_of_its_own(view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those of REST framework are a table of methods."""
    monkeypatch.setattr(view, "actions", ["get"], raising=False)
    assert marks_by_method(view)[""].marks == ()


def test_paths_that_cannot_be_known_are_no_error() -> None:
    """A host, a foreign route, a default of the router and a foreign application may serve any path."""
    starlette([], path="/anything")
    starlette(DEEP, path="/anything")
    starlette([Foreign()], path="/anything", methods="PUT")
    starlette([Mount("/in", routes=[Mount("/", app=Router(default=shown)), Route("/", shown)])], path="/anything")
    starlette([Route("/class", HTTPEndpoint)], path="/class", methods="PUT")


@each(
    ("match", "expected"),
    [
        ({"path": ["/items/7", "/files/a/b", "/static/a.css"]}, ""),
        ({"path": "/files/a/b", "methods": "GET"}, ""),
        ({"path": "/items/7/a"}, "no route has the path '/items/7/a'"),
        ({"path": "/items/7", "methods": "DELETE"}, "has GET or HEAD or OPTIONS, and not DELETE"),
    ],
)
def test_flask_does_not_serve_with_an_unrouted_rule(match: dict[str, Any], expected: str) -> None:
    """Paths with converters are found."""
    app = flask.Flask("app")
    limiter = RateLimiter(app, {"rules": [{"limits": "1/s", "match": match}]})
    app.add_url_rule("/items/<int:id>", "item", hello)
    app.add_url_rule("/files/<path:name>", "file", hello)
    with pytest.raises(ConfigError, match=expected) if expected else nullcontext():
        limiter.check(app)


class Wide:
    """A converter whose values have slashes."""

    regex = r"\w+/\w+"
    to_python = to_url = staticmethod(str)


class Items(View):
    def get(self, request: Any) -> Any:
        """Respond."""


register_converter(Wide, "wide_of_tests")
PATTERNS_OF_DJANGO = [
    path("items/<int:id>/", hello, name="item"),
    path("files/<path:name>", hello),
    path("wide/<wide_of_tests:name>/", hello),
    path("shop/", include(([re_path(r"^articles/(?P<year>[0-9]{4})/$", hello, name="year")], "shop"))),
    re_path(r"^old/(.*)$", include([path("page", hello)])),
    path("class", Items.as_view()),
]


def django(rule: dict[str, Any], expected: str, *patterns: Any, **options: Any) -> None:
    """Check the error of the first request to a project with one rule, "" for none."""
    with (
        project(
            {"rules": [{"limits": "9/s", **rule}]}, path("", lambda _: HttpResponse()), *patterns, **options
        ) as served,
        pytest.raises(ConfigError, match=expected) if expected else nullcontext(),
    ):
        assert served.ask().status_code == 200


@each(
    ("match", "expected"),
    [
        ({"path": ["/items/7", "/files/a/b", "/wide/a/b", "/shop/articles/2024", "/old/a/page"]}, ""),
        ({"path": "/shop/articles/{year}"}, ""),
        ({"view": "shop:year"}, ""),
        ({"path": "/class", "methods": "HEAD"}, ""),
        ({"path": "/items/7/a"}, "no route has the path"),
        ({"path": "/shop/article"}, "no route has the path"),
        ({"path": "/class", "methods": "POST"}, "and not POST"),
        ({"view": "shop:yaer"}, "Did you mean 'shop:year'"),
    ],
)
def test_django_does_not_start_with_an_unrouted_rule(match: dict[str, Any], expected: str) -> None:
    """Converters, expressions and includes: paths that cannot be known are left open."""
    django({"match": match}, expected, *PATTERNS_OF_DJANGO)


def test_django_knows_the_views_of_tables() -> None:
    """A view has the name of the first of its routes, or of its class. A typo stops the start."""
    names = {"item": "1/s", f"{Items.__module__}.Items": "1/s"}
    django({"per": {"view": names}}, "", *PATTERNS_OF_DJANGO)
    django({"per": {"view": {**names, "itm": "1/s"}}}, r"Did you mean .item.", *PATTERNS_OF_DJANGO)


def test_a_rule_may_name_the_paths_of_one_language() -> None:
    """The language of a URL is known with the request only, and the default language may have no prefix."""
    patterns = i18n_patterns(path("page", hello), prefix_default_language=False)
    django({"match": {"path": ["/de/page", "/page"]}}, "", *patterns)


def test_a_rule_may_name_the_path_of_a_translated_route() -> None:
    """It is that in the default language. Another one is an error, which says how to allow it."""
    login = lazy(lambda: {"de": "anmelden"}.get(get_language() or "", "login"), str)()
    languages = {"LANGUAGES": [("en", "English"), ("de", "Deutsch")], "LANGUAGE_CODE": "en", "middleware": LOCALE}
    for where, expected in (("/en/login", ""), ("/{language}/login", ""), ("/de/anmelden", "set unrouted = true")):
        django({"match": {"path": where}}, expected, *i18n_patterns(path(login, hello)), **languages)


@each(
    ("expression", "where", "is_found"),
    [
        (r"login/$", "/login", True),
        (r"login/$", "/accounts/login", False),  # Django compares the whole path
        (r"login/", "/accounts/login", True),
        (r"(?i)login/$", "/accounts/LOGIN", True),
        (r"^a/x|^b/y", "/b/y", True),
        (r"^login/?$", "/login", True),
        (r"^login/?$", "/logins", False),
        (r"^a/?b$", "/ab", True),
        (r"^a/b+/c$", "/a/bb/c", True),
        (r"^a/b{0,1}/c$", "/x", False),
    ],
)
def test_an_expression_may_match_what_django_finds(expression: str, where: str, is_found: bool) -> None:
    """Django searches an expression anywhere in the path, unless it begins with ^ or a whole one ends with $."""
    django({"match": {"path": where}}, "" if is_found else "no route has the path", re_path(expression, hello))
