"""A limit in a text annotation is one limit, for any number of routes that evaluate the text."""

from __future__ import annotations  # so all annotations below are text

from typing import Annotated, Any

import pytest
from calls import ask
from fastapi import APIRouter, Depends, FastAPI
from fastapi_apps import limited, remaining, statuses
from tables import each

from ratelimit_mw import ConfigError, Limiter, Verdict
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.testing import ManualClock


def shared(verdict: Annotated[Verdict, Depends(RateLimit("2/minute", name="shared"))]) -> None:
    """A dependency with a limit."""


def nameless(verdict: Annotated[Verdict, Depends(RateLimit("2/minute"))]) -> None:
    """A dependency with a limit that is named after its module."""


def by_user(
    verdict: Annotated[
        Verdict,
        Depends(RateLimit("2/minute", key="user", cost=lambda request: 1, features={"user": lambda: "ann"})),
    ],
) -> None:
    """A dependency with a limit by a dependency, whose annotation creates functions."""


def of_view(verdict: Annotated[Verdict, Depends(RateLimit("2/minute", name="view"))]) -> None:
    """A view with a limit."""


def of_nameless_view(verdict: Annotated[Verdict, Depends(RateLimit("2/minute"))]) -> None:
    """A view with a limit that is named after its module."""


class Views:
    """A view that is a method."""

    def view(self, verdict: Annotated[Verdict, Depends(RateLimit("2/minute", name="method"))]) -> None:
        """Use a limit that all routes share."""


def free() -> None:
    """A view without a limit."""


DEPENDENCIES = each("dependency", [shared, nameless, by_user])
VIEWS = each("view", [of_view, of_nameless_view, by_user, Views().view])


@DEPENDENCIES
def test_a_dependency_of_two_routes_counts_both(dependency: Any) -> None:
    """Routes with one dependency share the limit in its parameters."""
    app = FastAPI()
    for path in ("/a", "/b"):
        app.add_api_route(path, free, dependencies=[Depends(dependency)])
    assert statuses(limited(app), "/a", "/b", "/a", "/b") == [200, 200, 429, 429]


@VIEWS
def test_a_view_on_two_routes_has_one_count(view: Any) -> None:
    """All routes of a view share the limit of its parameter."""
    app = FastAPI()
    for path in ("/a", "/b"):
        app.add_api_route(path, view)
    assert statuses(limited(app), "/a", "/b", "/a", "/b") == [200, 200, 429, 429]


@VIEWS
def test_a_router_included_twice_has_one_count(view: Any) -> None:
    """Two includes of a router share its limits."""
    router, app = APIRouter(), FastAPI()
    router.add_api_route("/", view)
    for prefix in ("/a", "/b"):
        app.include_router(router, prefix=prefix)
    assert statuses(limited(app), "/a/", "/b/", "/a/", "/b/") == [200, 200, 429, 429]


def test_a_route_inserted_first_later_shares_the_count() -> None:
    """A route that is inserted before the others at run time shares their count."""
    app = FastAPI()
    app.add_api_route("/a", of_view)
    limited(app)
    assert statuses(app, "/a") == [200]
    app.add_api_route("/b", of_view)
    app.router.routes.insert(0, app.router.routes.pop())
    assert statuses(app, "/b", "/a", "/b") == [200, 429, 429]


def test_two_dependencies_with_one_limit_consume_it_once() -> None:
    """A request that reaches one limit through two dependencies consumes it once."""

    def one(_: Annotated[None, Depends(by_user)]) -> None: ...

    def other(_: Annotated[None, Depends(by_user, use_cache=False)]) -> None: ...

    app = FastAPI()
    app.add_api_route("/", free, dependencies=[Depends(one), Depends(other)])
    assert ask(limited(app)).headers["ratelimit-policy"].count("q=2") == 1
    assert statuses(app, "/", "/") == [200, 429]


def test_two_functions_are_two_limits() -> None:
    """Equal texts in the parameters of two functions, or in two parameters of one, have separate counts."""

    def first(verdict: Annotated[Verdict, Depends(RateLimit("1/minute"))]) -> None: ...

    def second(verdict: Annotated[Verdict, Depends(RateLimit("1/minute"))]) -> None: ...

    def both(
        verdict: Annotated[Verdict, Depends(RateLimit("9/minute"))],
        another: Annotated[Verdict, Depends(RateLimit("9/minute"))],
    ) -> None: ...

    app = FastAPI()
    for path, view in {"/first": first, "/second": second, "/both": both}.items():
        app.add_api_route(path, view)
    limited(app)
    assert statuses(app, "/first", "/second", "/first", "/second") == [200, 200, 429, 429]
    assert ask(app, "/both").headers["ratelimit-policy"].count("q=9") == 2


def test_two_functions_with_one_name_are_rejected() -> None:
    """Two functions must not use one limit name, in text annotations as elsewhere."""

    def other(verdict: Annotated[Verdict, Depends(RateLimit("2/minute", name="shared"))]) -> None: ...

    app = FastAPI()
    app.add_api_route("/a", shared)
    app.add_api_route("/b", other)
    with pytest.raises(ConfigError, match="the name 'shared'"):
        ask(limited(app))


def test_a_mistake_in_a_text_annotation_names_its_file() -> None:
    """The error names the file. The line of a text annotation is not known."""

    def mistaken(verdict: Annotated[Verdict, Depends(RateLimit("5/fortnight"))]) -> None: ...

    with pytest.raises(ConfigError, match=rf"^RateLimit at {__file__}: limits: cannot parse quota"):
        FastAPI().add_api_route("/", mistaken)


LIMITS = "1/minute"


def changing(verdict: Annotated[Verdict, Depends(RateLimit(LIMITS))]) -> None:
    """A view whose text annotation changes its meaning."""


def test_a_text_annotation_with_a_new_meaning_is_another_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """When names in the text change their meaning, each route has the limit at its definition."""
    app = FastAPI()
    app.add_api_route("/a", changing)
    monkeypatch.setattr(f"{__name__}.LIMITS", "2/minute")
    app.add_api_route("/b", changing)
    assert statuses(limited(app), "/a", "/b", "/a", "/b", "/b") == [200, 200, 429, 200, 429]


def test_the_verdict_of_a_shared_limit_can_be_settled() -> None:
    """On each route the parameter is the verdict of the shared limit."""

    def costly(verdict: Annotated[Verdict, Depends(RateLimit("10/minute", name="costly"))]) -> None:
        verdict.settle(3)

    app, limiter = FastAPI(), Limiter(clock=ManualClock(1_000_000.0))
    for path in ("/a", "/b"):
        app.add_api_route(path, costly)
    assert statuses(limited(app, limiter=limiter), "/a", "/b") == [200, 200]
    assert remaining(limiter, "costly", ip="192.0.2.7") == [4]


def test_a_callable_object_without_a_hash_is_limited() -> None:
    """An object that is not hashable is limited like any other."""

    class View:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, verdict: Any = Depends(RateLimit("1/minute"))) -> None: ...  # noqa: B008

    app = FastAPI()
    app.add_api_route("/", View())
    assert statuses(limited(app), "/", "/") == [200, 429]
