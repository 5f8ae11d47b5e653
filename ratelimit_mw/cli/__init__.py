"""The command ``ratelimit-mw``.

click and rich are an extra. They are imported when the command runs, so that it can print how to install them.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, cast

from ..errors import MissingExtraError

if TYPE_CHECKING:
    import click

__all__ = ["commands", "main"]


def main() -> None:
    """Run the command and end the process: 0 fine, 1 found something wrong, 2 misused or an extra is missing."""
    try:
        group = commands()
    except MissingExtraError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    # A terminal that cannot show a character gets its escape sequence.
    cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")
    group()


def commands() -> click.Group:
    """Return the click group with all commands. Raises `MissingExtraError` without click and rich."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError:
        raise MissingExtraError("the command ratelimit-mw", "cli") from None
    from .group import ratelimit_mw

    return ratelimit_mw
