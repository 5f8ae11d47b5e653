"""The commands that a framework's own program offers for its application, such as ``flask ratelimit``."""

from collections.abc import Callable
from typing import Final

import click

from .application import SourceCommand
from .check import check
from .errors import HELP_OPTIONS, CommandGroup
from .explain import explain
from .operate import commands
from .source import Source

COMMANDS: Final = (check, explain, *commands())
"""The commands on the rules of one application."""
_HELP: Final = """Check, explain and operate the rate limits of this application.

Results go to stdout, messages to stderr. Exit codes: 0 for success, 1 for a problem, 2 for misuse.
"""


def group_within(program: str, open_app: Callable[[], Source]) -> CommandGroup:
    """Return the commands for a program that knows the application. ``rules`` is another name of ``check``."""
    group = CommandGroup(help=_HELP, context_settings=HELP_OPTIONS)
    for name, command in [("rules", check), *((each.name, each) for each in COMMANDS)]:
        own = _own(command, program, open_app)
        own.hidden = name != command.name
        group.add_command(own, name)
    return group


def _own(command: click.Command, program: str, open_app: Callable[[], Source]) -> click.Command:
    if isinstance(command, click.Group):
        commands = [_own(each, program, open_app) for each in command.commands.values()]
        return click.Group(command.name, commands, help=command.help)
    return command.within(program, open_app) if isinstance(command, SourceCommand) else command
