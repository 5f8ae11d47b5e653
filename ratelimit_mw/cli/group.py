"""The command ``ratelimit-mw``."""

import sys
from contextlib import suppress
from typing import Any, Final

import click

from .. import __version__
from ..errors import MissingExtraError, RateLimitError
from ..operations import Answer
from ..settings import schema as settings_schema
from .check import check
from .demo.command import demo
from .explain import explain
from .forecast import forecast
from .init import init
from .operate import commands
from .output import Failure, command, print_answer, print_json
from .replay.command import replay
from .replay.diff import diff
from .serve.command import serve
from .traffic import traffic

_SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class CommandGroup(click.Group):
    """Prints the ``Answer`` of a command, as JSON with ``--json``.

    It prints an error as a message, and with ``--json`` as ``{"error": ...}`` on stdout, too.
    """

    def invoke(self, ctx: click.Context) -> Any:
        as_json = "--json" in ctx.args
        try:
            answer = super().invoke(ctx)
            if isinstance(answer, Answer):
                print_answer(answer, as_json)
            sys.stdout.flush()  # a closed pipe raises here, where click ends quietly, and not at exit
            if isinstance(answer, Answer) and answer.found_wrong:
                ctx.exit(1)
        except BrokenPipeError:
            raise
        except (click.ClickException, RateLimitError, OSError) as error:
            failure = _failure(error)
            if as_json:
                with suppress(OSError):  # nothing can be written there
                    print_json({"error": str(error) if isinstance(error, RateLimitError) else failure.format_message()})
            raise failure from None


def _failure(error: click.ClickException | RateLimitError | OSError) -> click.ClickException:
    if isinstance(error, click.ClickException):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Failure(f"{where}{error.strerror or error}")
    notes = getattr(error, "__notes__", ())
    if isinstance(error, MissingExtraError):
        return click.UsageError("\n".join((str(error), *notes)))
    return Failure(str(error), *notes)


@click.group(cls=CommandGroup, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="ratelimit-mw")
def ratelimit_mw() -> None:
    """Check, try out and operate rate limits.

    Results go to stdout, messages to stderr. Exit codes: 0 for success, 1 for a problem, 2 for misuse.
    """


@command("ratelimit-mw schema > ratelimit.schema.json")
def schema() -> None:
    """Print the JSON Schema of the settings file. Editors use it to complete and check your file."""
    print_json(settings_schema())


for _command in (check, explain, *commands(), demo, diff, forecast, init, replay, schema, serve, traffic):
    ratelimit_mw.add_command(_command)
