"""The command ``ratelimit-mw`` itself, which turns errors into messages and exit codes, and ``ratelimit-mw schema``."""

import sys
from typing import Any

import click

from .. import __version__
from ..errors import MissingExtraError, RateLimitError
from ..settings import schema as settings_schema
from .check import check
from .demo.command import demo
from .explain import explain
from .output import Failure, command, print_json
from .replay import replay


class _Group(click.Group):
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


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ratelimit-mw")
def ratelimit_mw() -> None:
    """Check, explain and try out rate limits before you deploy them.

    Results go to stdout, messages to stderr. Exit codes: 0 fine, 1 found something wrong, 2 misused.
    """


@command("ratelimit-mw schema > ratelimit.schema.json")
def schema() -> None:
    """Print the JSON Schema of the settings file. Editors use it to complete and check your file."""
    print_json(settings_schema())


for _command in (check, demo, explain, replay, schema):
    ratelimit_mw.add_command(_command)
