"""``ratelimit-mw schema``: the JSON Schema of the settings file."""

from __future__ import annotations

import click

from ..settings import schema as settings_schema
from .output import examples, print_json

__all__ = ["schema"]


@click.command(epilog=examples("ratelimit-mw schema > ratelimit.schema.json"))
def schema() -> None:
    """Print the JSON Schema of the settings file, with which editors complete and check it."""
    print_json(settings_schema())
