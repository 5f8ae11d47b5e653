"""The command ``manage.py ratelimit``: list the rules, and explain one request."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import translation

from ....errors import RateLimitError
from ....http.notes import notes_on_marks
from ....rules.describe import Overview
from ...limits import ProjectLimits, project_limits


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    help = "Show the rate limits of this project."

    def add_arguments(self, parser: Any) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        commands.add_parser("rules", help="List the rules and the routes that they apply to.")
        explain = commands.add_parser("explain", help="Show which rules apply to a request, and why the others do not.")
        explain.add_argument("method", type=str.upper)
        explain.add_argument("path")
        explain.add_argument("--host", default="localhost", help="The host of the request.")

    def handle(self, *_: Any, command: str, **options: Any) -> None:
        try:
            project = project_limits()
            routes, limiter = project.routes().all, project.limits.limiter  # the routes add rules to the limiter
            overview = Overview(limiter.rules, limiter.settings.overrides, routes)
        except RateLimitError as error:
            raise CommandError(str(error)) from None
        if command == "rules":
            self.stdout.write("\n".join(overview.table()))
            root = getattr(settings.ROOT_URLCONF, "__name__", settings.ROOT_URLCONF)
            for problem in notes_on_marks([root.partition(".")[0]]):
                raise CommandError(problem)
        else:
            self._explain(project, overview, options["method"], options["path"], options["host"])

    def _explain(self, project: ProjectLimits, overview: Overview, method: str, path: str, host: str) -> None:
        language = translation.get_language_from_path(path) or settings.LANGUAGE_CODE
        with translation.override(language):
            route, params = project.routes().find(path)
        lines, is_limited = overview.explain(method, path, host, route.destination(method), params)
        self.stdout.write("\n".join(lines))
        if not is_limited:
            raise CommandError("no rule applies to this request")
