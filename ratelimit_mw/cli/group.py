"""The command ``ratelimit-mw`` itself, and ``ratelimit-mw schema``."""

import click

from .. import __version__
from ..settings import schema as settings_schema
from .bans import ban, bans, unban
from .capacity.command import capacity
from .check import check
from .demo.command import demo
from .doctor.command import doctor
from .errors import HELP_OPTIONS, CommandGroup
from .explain import explain
from .init import init
from .inspect import inspect
from .migrate.command import migrate
from .output import command, print_json
from .override import override
from .replay.command import replay
from .replay.diff import diff
from .report import report
from .reset import reset
from .serve.command import serve
from .top import top


@click.group(cls=CommandGroup, context_settings=HELP_OPTIONS)
@click.version_option(__version__, prog_name="ratelimit-mw")
def ratelimit_mw() -> None:
    """Check, try out and operate rate limits.

    Results go to stdout, messages to stderr. Exit codes: 0 fine, 1 found something wrong, 2 misused.
    """


@command("ratelimit-mw schema > ratelimit.schema.json")
def schema() -> None:
    """Print the JSON Schema of the settings file. Editors use it to complete and check your file."""
    print_json(settings_schema())


for _command in (
    ban,
    bans,
    capacity,
    check,
    demo,
    diff,
    doctor,
    explain,
    init,
    inspect,
    migrate,
    override,
    replay,
    report,
    reset,
    schema,
    serve,
    top,
    unban,
):
    ratelimit_mw.add_command(_command)
