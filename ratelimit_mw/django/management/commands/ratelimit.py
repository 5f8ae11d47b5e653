"""``manage.py ratelimit``: which rules there are, and which look at a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import translation

from ....errors import RateLimitError
from ....http.views import class_of
from ....rules.overview import Overview, Route
from ....rules.rule import METHODS
from ... import conf
from ...limits import ProjectLimits

__all__ = ["Command"]


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """The project's limits, before they meet traffic."""

    help = "Look at rate limits before they meet traffic."

    def add_arguments(self, parser: Any) -> None:
        commands = parser.add_subparsers(dest="what", required=True)
        commands.add_parser("rules", help="List the rules, with the routes that they stand on.")
        explain = commands.add_parser("explain", help="Show which rules look at a request, and why the others do not.")
        explain.add_argument("method", type=str.upper)
        explain.add_argument("path")
        explain.add_argument("--host", default="localhost", help="The host asked for.")

    def handle(self, *_: Any, what: str, **options: Any) -> None:
        try:
            enforcer = conf.enforcer()
            found = enforcer.routes().all
            routes = [Route(route.template, _methods_of(route.callback), route.marked) for route in found]
            overview = Overview(enforcer.limiter.rules, enforcer.limiter.settings.overrides, routes)
        except RateLimitError as error:
            raise CommandError(str(error)) from None
        if what == "rules":
            self._print(overview.rules())
        else:
            self._explain(enforcer, overview, options["method"], options["path"], options["host"])

    def _explain(self, enforcer: ProjectLimits, overview: Overview, method: str, path: str, host: str) -> None:
        language = translation.get_language_from_path(path) or settings.LANGUAGE_CODE
        with translation.override(language):
            route, _ = enforcer.routes().find(path)
        view = route.marked.of(method)
        self._print(overview.explained(method, path, host, route.template, view))
        if not overview.looks(method, path, host, view):
            raise CommandError("nothing limits this request")

    def _print(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.stdout.write(line)


def _methods_of(callback: Any) -> tuple[str, ...]:
    """Those that a class-based view answers; a function may answer any."""
    cls = class_of(callback)
    answered = getattr(callback, "actions", None) or [name for name in METHODS if hasattr(cls, name.lower())]
    found = {name.upper() for name in answered} - {"HEAD", "OPTIONS"}
    return tuple(sorted(found)) or tuple(name for name in METHODS if name not in ("HEAD", "OPTIONS"))
