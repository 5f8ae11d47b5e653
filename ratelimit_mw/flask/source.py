"""The rules of a Flask application, as the commands of ``cli/`` show them."""

from flask import Flask

from ..cli.source import Source, map_source
from .hooks import EXTENSION


def open_source(app: Flask, title: str) -> Source | None:
    """Return the rules of an application; None without the extension."""
    hooks = app.extensions.get(EXTENSION)
    return hooks and map_source(title, hooks.views, hooks.views.notes())
