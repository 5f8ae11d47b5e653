"""The command ``ratelimit-mw``.

click and rich are an extra. They are imported when a command runs, so that it can print how to install them.
"""

import io
import sys
from typing import cast

from ..errors import MissingExtraError


def main() -> None:
    """Run the command and end the process: 0 fine, 1 found something wrong, 2 misused or an extra is missing."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError:
        error = MissingExtraError("the command ratelimit-mw", "cli")
        sys.stderr.write("\n".join((str(error), *error.__notes__, "")))
        sys.exit(2)
    from .group import ratelimit_mw

    # A terminal that cannot show a character gets its escape sequence.
    cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")
    ratelimit_mw()
