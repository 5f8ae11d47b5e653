"""Operations of Django Ninja have their own limits, although Django sees one function for all methods of a path."""

from __future__ import annotations

import itertools
from typing import Any

from django.urls import path
from django_calls import one_rule, project
from tables import each

from ratelimit_mw.django import exempt, limit

# Ninja reads Django's settings on import. The import of django_calls configures them.
from ninja import NinjaAPI, Router, Schema  # isort: skip
from ninja.pagination import paginate  # isort: skip


_count = itertools.count()  # Ninja needs a name for each API.


class Item(Schema):
    name: str


def api() -> Any:
    ninja = NinjaAPI(urls_namespace=f"api{next(_count)}", docs_url=None, openapi_url=None)
    router = Router()

    @ninja.get("/below")
    @limit("1/minute")
    def below(request: Any) -> Any:
        return {}

    @limit("1/minute")
    @ninja.get("/above")
    def above(request: Any) -> Any:
        return {}

    @ninja.get("/async")
    @limit("1/minute")
    async def awaited(request: Any) -> Any:
        return {}

    @router.get("/{item_id}")
    @limit("2/minute", key=["path:item_id"])
    def read(request: Any, item_id: int) -> Any:
        return {"id": item_id}

    @router.post("/{item_id}")
    @limit("1/minute")
    def write(request: Any, item_id: int, item: Item) -> Any:
        return {"id": item_id, "name": item.name}

    @router.get("/", response=list[Item])
    @paginate
    @exempt
    def listed(request: Any) -> Any:
        return [{"name": "a"}]

    ninja.add_router("/items", router)
    return ninja.urls


@each("is_async", [False, True])
def test_operations_are_limited(is_async: bool) -> None:
    """@limit works above or below the operation's decorator, sync or async, for each method of a path separately."""
    with project(None, path("api/", api()), is_async=is_async) as served:
        for where in ("/api/below", "/api/above", "/api/async"):
            assert served.statuses(where, 2) == [200, 429], where
        sent = {"method": "POST", "data": '{"name": "a"}', "content_type": "application/json"}
        assert served.ask("/api/items/7", **sent).json() == {"id": 7, "name": "a"}
        assert served.ask("/api/items/8", **sent).status_code == 429
        paths = ("/api/items/7", "/api/items/7", "/api/items/7", "/api/items/8")
        assert [served.ask(where).status_code for where in paths] == [200, 200, 429, 200]


def test_rules_of_the_settings_match_ninja_paths() -> None:
    """Ninja endpoints are templates like all others, and an exempt operation is exempt."""
    with project(one_rule("1/minute", key=["endpoint"]), path("api/", api())) as served:
        paths = ("/api/items/7", "/api/items/8", "/api/items/", "/api/items/")
        assert [served.ask(where).status_code for where in paths] == [200, 429, 200, 200]
