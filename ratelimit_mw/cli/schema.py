"""``ratelimit-mw schema``: the JSON Schema of the settings file."""

from __future__ import annotations

import click

from ..settings import schema as settings_schema
from .output import help_examples, print_json


@click.command(epilog=help_examples("ratelimit-mw schema > ratelimit.schema.json"))
def schema() -> None:
    """Print the JSON Schema of the settings file. Editors use it to complete and check your file."""
    print_json(settings_schema())
