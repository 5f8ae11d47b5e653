"""The command ``manage.py ratelimit``: the commands of ``cli/`` for this project."""

import io
import sys
from argparse import Namespace
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from ....cli import run_within


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    help = "Check, explain and operate the rate limits of this project."
    requires_system_checks = ()  # ``check`` shows them, as JSON, too

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """Leave all words that Django does not know to the commands, so that ``--settings`` may have any place."""
        parser = super().create_parser(prog_name, subcommand, add_help=False, allow_abbrev=False, **kwargs)

        def parse_args(args: Any = None, namespace: Any = None) -> Namespace:
            options, words = parser.parse_known_args(args, namespace)
            options.args = words
            return options  # type: ignore[no-any-return]

        parser.parse_args = parse_args
        return parser

    def print_help(self, prog_name: str, subcommand: str) -> None:
        self.handle("--help")

    def handle(self, *words: str, **options: Any) -> None:
        messages = io.StringIO()
        with redirect_stdout(options.get("stdout") or sys.stdout), redirect_stderr(messages):
            code = run_within("manage.py ratelimit", _open_project, words)
        if code:
            raise CommandError(messages.getvalue().strip() or "see the problems above", returncode=code)
        self.stderr.write(messages.getvalue(), ending="")


def _open_project() -> Any:
    from ...source import DjangoSource

    return DjangoSource(settings.SETTINGS_MODULE or "settings")
