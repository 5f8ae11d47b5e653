"""The command ``ratelimit-mw`` itself, and ``ratelimit-mw schema``."""

import click

from .. import __version__
from ..settings import schema as settings_schema
from .demo.command import demo
from .errors import HELP_OPTIONS, CommandGroup
from .forecast.command import forecast
from .init import init
from .output import command, print_json
from .replay.command import replay
from .replay.diff import diff
from .serve.command import serve
from .traffic.command import traffic
from .within import COMMANDS


@click.group(cls=CommandGroup, context_settings=HELP_OPTIONS)
@click.version_option(__version__, prog_name="ratelimit-mw")
def ratelimit_mw() -> None:
    """Check, try out and operate rate limits.

    Results go to stdout, messages to stderr. Exit codes: 0 for success, 1 for a problem, 2 for misuse.
    """


@command("ratelimit-mw schema > ratelimit.schema.json")
def schema() -> None:
    """Print the JSON Schema of the settings file. Editors use it to complete and check your file."""
    print_json(settings_schema())


for _command in (*COMMANDS, demo, diff, forecast, init, replay, schema, serve, traffic):
    ratelimit_mw.add_command(_command)
