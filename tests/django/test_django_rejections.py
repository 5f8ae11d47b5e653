"""Rejections that code of a Django project raises outside its views."""

from __future__ import annotations

from typing import Any

import pytest
from django_calls import MIDDLEWARE, one_rule, project, raise_own


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_rejection_in_other_middleware_is_a_429(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django makes a 500 of an error in middleware. The response to the client is that of a rejection."""

    def raising(get_response: Any) -> Any:
        def middleware(request: Any) -> Any:
            raise_own()

        return middleware

    monkeypatch.setattr("django_calls.raising", raising, raising=False)
    with project(one_rule(), is_async=is_async, middleware=[*MIDDLEWARE, "django_calls.raising"]) as served:
        response = served.ask()
    assert (response.status_code, response.headers["RateLimit"][:9]) == (429, '"own";r=0')
