"""The command ``ratelimit-mw`` itself, which turns errors into messages and exit codes."""

from __future__ import annotations

import sys
from typing import Any

import click

from .. import __version__
from ..errors import MissingExtraError, RateLimitError
from .output import Failure, Misuse, print_json


class _Group(click.Group):
    """Prints errors as messages, and with ``--json`` as ``{"error": ...}`` on stdout, too."""

    def invoke(self, ctx: click.Context) -> Any:
        as_json = "--json" in ctx.args
        try:
            return self._invoke(ctx)
        except click.ClickException as error:
            if as_json:
                print_json({"error": error.format_message()})
            raise

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a closed pipe raises here, where click ends quietly, and not at exit
            return result
        except BrokenPipeError:
            raise
        except MissingExtraError as error:
            raise Misuse(str(error)) from None
        except RateLimitError as error:
            raise Failure(str(error)) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise Failure(f"{where}{error.strerror or error}") from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ratelimit-mw")
def ratelimit_mw() -> None:
    """Check, explain and try out rate limits before you deploy them.

    Results go to stdout, messages to stderr. Exit codes: 0 fine, 1 found something wrong, 2 misused.
    """
