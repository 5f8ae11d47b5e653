"""The command ``flask ratelimit``: the commands of ``cli/`` for the current application."""

from typing import Any

import click
from flask import Flask, current_app
from flask.cli import with_appcontext

from ..cli import run_within
from .hooks import EXTENSION


@click.command("ratelimit", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@with_appcontext
def commands(words: tuple[str, ...]) -> None:
    """Check, explain and operate the rate limits of this application."""
    app: Any = current_app._get_current_object()  # type: ignore[attr-defined]
    raise click.exceptions.Exit(run_within("flask ratelimit", lambda: open_source(app, app.name), words))


def open_source(app: Flask, title: str) -> Any:
    """Return the rules of an application; None without the extension."""
    from ..cli.source import MapSource

    hooks = app.extensions.get(EXTENSION)
    return hooks and MapSource(title, hooks.views, hooks.views.notes)
