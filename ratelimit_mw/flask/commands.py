"""The command ``flask ratelimit``: the commands of ``cli/`` for the current application."""

from typing import Any

import click
from flask import current_app
from flask.cli import with_appcontext

from ..cli import run_within
from ..errors import MissingExtraError


@click.command("ratelimit", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@with_appcontext
def commands(words: tuple[str, ...]) -> None:
    """Check, explain and operate the rate limits of this application."""
    try:
        code = run_within("flask ratelimit", _open_current, words)
    except MissingExtraError as error:
        raise click.UsageError(str(error)) from None
    raise click.exceptions.Exit(code)


def _open_current() -> Any:
    from .source import FlaskSource

    return FlaskSource(current_app._get_current_object(), current_app.name)  # type: ignore[attr-defined]
