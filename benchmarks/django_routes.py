"""Finding a request's route in Django: Django's own resolver, and the middleware's memory in front of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import ModuleType
from typing import Any

import django
from django.conf import settings
from django.urls import get_resolver, path

from benchmarks.timing import per_call, table

SIZES = (2, 60, 600)
CALLS = 300


def view(request: Any) -> None: ...


def candidates(size: int) -> dict[str, Callable[[int], None]]:
    """Requests spread over all routes: to paths that were asked for before, and to paths that never were."""
    from ratelimit_mw.django.routes import URLRoutes

    urls: Any = ModuleType("urls")
    urls.urlpatterns = [path(f"v1/things{i}/<int:pk>", view) for i in range(size)]
    resolver, unseen = get_resolver(urls), count(CALLS)
    routes = URLRoutes(resolver)

    def find(path: str) -> Any:
        place = None, path, "GET"
        return routes.cached.get(place) or routes.find(*place)  # as the middleware does

    def asking(find: Callable[[str], Any], first: Callable[[], int]) -> Callable[[int], None]:
        def run(calls: int) -> None:
            for i in range(start := first(), start + calls):
                find(f"/v1/things{i * 7 % size}/{i}")

        return run

    return {
        f"resolver, {size}": asking(resolver.resolve, lambda: 0),
        f"seen, {size}": asking(find, lambda: 0),
        f"never seen, {size}": asking(find, lambda: next(unseen) * CALLS),
    }


def report() -> str:
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__)
        django.setup()
    times = per_call({name: run for size in SIZES for name, run in candidates(size).items()}, CALLS)
    kinds = ("resolver", "seen", "never seen")
    rows = [(str(size), *(f"{times[f'{kind}, {size}'] / 1000:.2f}" for kind in kinds)) for size in SIZES]
    head = ("routes", "Django's resolver, µs", "a path seen before, µs", "a path never seen, µs")
    return table("Finding the route of a request in Django", rows, head)
