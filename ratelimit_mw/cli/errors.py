"""A group of commands that turns errors into messages and exit codes."""

import sys
from typing import Any, Final

import click

from ..errors import MissingExtraError, RateLimitError
from .output import Failure, print_json

HELP_OPTIONS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class CommandGroup(click.Group):
    """Prints errors as messages, and with ``--json`` as ``{"error": ...}`` on stdout, too."""

    def invoke(self, ctx: click.Context) -> Any:
        as_json = "--json" in ctx.args
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a closed pipe raises here, where click ends quietly, and not at exit
            return result
        except BrokenPipeError:
            raise
        except (click.ClickException, RateLimitError, OSError) as error:
            failure = _failure(error)
            if as_json:
                print_json({"error": failure.format_message()})
            raise failure from None


def _failure(error: click.ClickException | RateLimitError | OSError) -> click.ClickException:
    if isinstance(error, click.ClickException):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Failure(f"{where}{error.strerror or error}")
    return click.UsageError(str(error)) if isinstance(error, MissingExtraError) else Failure(str(error))
