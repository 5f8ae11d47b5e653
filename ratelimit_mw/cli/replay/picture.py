"""The options of commands that draw a picture."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def check_picture(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Check the path of the picture before the work."""
    if path is None or (path.suffix.lower() in (".png", ".svg") and os.access(path.absolute().parent, os.W_OK)):
        return path
    expected = "a file name that ends in .png or .svg, in a writable folder"
    raise click.BadParameter(f"expected {expected}; got {str(path)!r}")


def plot_option(text: str) -> Callable[[Any], Any]:
    """Return the option ``--plot`` with its help."""
    kind = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option("--plot", metavar="PICTURE", callback=check_picture, type=kind, help=text)


theme_option = click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True,
                            help="The colours of the picture.")  # fmt: skip
