"""``manage.py ratelimit``: which rules there are, and which look at a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ....errors import RateLimitError
from ....features import UNMATCHED
from ....marks import View
from ....overview import Overview, Route
from ....rules import METHODS
from ... import conf
from ...enforcer import Enforcer, match_of
from ...routes import Routes
from ...template import template_of

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
            routes = _routes(enforcer.routes())
            overview = Overview(enforcer.limiter, routes)
        except (RateLimitError, OSError) as error:
            raise CommandError(str(error)) from None
        if what == "rules":
            self._print(overview.rules())
        else:
            self._explain(enforcer, overview, options["method"], options["path"], options["host"])

    def _explain(self, enforcer: Enforcer, overview: Overview, method: str, path: str, host: str) -> None:
        match = match_of(None, path)
        endpoint = UNMATCHED if match is None else template_of(match.route)
        view = View() if match is None else enforcer.routes().view(match.func, method)
        self._print(overview.explained(method, path, host, endpoint, view))
        if not overview.looks(method, path, host, view):
            raise CommandError("nothing limits this request")

    def _print(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.stdout.write(line)


def _routes(routes: Routes) -> list[Route]:
    found = ((template, callback, routes.of(callback)) for template, callback in routes.patterns)
    return [Route(template, _methods_of(callback), marked) for template, callback, marked in found if marked]


def _methods_of(callback: Any) -> tuple[str, ...]:
    """Those that a class-based view answers; a function may answer any."""
    cls = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
    answered = getattr(callback, "actions", None) or [name for name in METHODS if hasattr(cls, name.lower())]
    found = {name.upper() for name in answered} - {"HEAD", "OPTIONS"}
    return tuple(sorted(found)) or tuple(name for name in METHODS if name not in ("HEAD", "OPTIONS"))
