"""A limit in an annotation that is kept as text."""

from __future__ import annotations  # so all annotations below are text

from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi_apps import limited, statuses

from ratelimit_mw import ConfigError, Verdict
from ratelimit_mw.fastapi import RateLimit

per_minute = RateLimit("2/minute")


def view(verdict: Annotated[Verdict, Depends(per_minute)]) -> None:
    """A view whose limit has a name."""


def mistaken(verdict: Annotated[Verdict, Depends(RateLimit("2/minute"))]) -> None:
    """A view whose limit would be another one for each route."""


def test_a_limit_in_a_text_is_an_error() -> None:
    """FastAPI evaluates the text for each route, so each would have a count. The error says what to write."""
    with pytest.raises(ConfigError, match=rf"^RateLimit at {__file__}: FastAPI evaluates .* Depends\(per_minute\)"):
        FastAPI().add_api_route("/", mistaken)


def test_a_limit_with_a_name_is_one_limit() -> None:
    """For all routes and includes that evaluate the text."""
    router, app = APIRouter(), FastAPI()
    router.add_api_route("/", view)
    for prefix in ("/a", "/b"):
        app.include_router(router, prefix=prefix)
    app.add_api_route("/c", view)
    assert statuses(limited(app), "/a/", "/b/", "/c", "/a/") == [200, 200, 429, 429]


def test_a_callable_object_without_a_hash_is_limited() -> None:
    class View:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, verdict: Any = Depends(RateLimit("1/minute"))) -> None: ...  # noqa: B008

    app = FastAPI()
    app.add_api_route("/", View())
    assert statuses(limited(app), "/", "/") == [200, 429]
