"""A group of commands that prints their answers, and turns answers and errors into exit codes."""

import sys
from typing import Any, Final

import click

from ..errors import MissingExtraError, RateLimitError
from .output import Answer, Failure, print_answer, print_json, wants_json

HELP_OPTIONS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class CommandGroup(click.Group):
    """Prints the ``Answer`` of a command, as JSON with ``--json``.

    It prints an error as a message, and with ``--json`` as ``{"error": ...}`` on stdout, too.
    """

    def invoke(self, ctx: click.Context) -> Any:
        as_json = "--json" in ctx.args
        try:
            answer = super().invoke(ctx)
            if isinstance(answer, Answer):
                print_answer(answer, wants_json())
            sys.stdout.flush()  # a closed pipe raises here, where click ends quietly, and not at exit
            if isinstance(answer, Answer) and answer.found_wrong:
                ctx.exit(1)
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
