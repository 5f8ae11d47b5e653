"""The command ``ratelimit-mw``.

click and rich are an extra. They are imported when a command runs, so that it can print how to install them.
"""

import io
import os
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

    if sys.stdout is None:  # a shell or a service manager has closed it
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    # A terminal that cannot show a character gets its escape sequence.
    cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")
    try:
        ratelimit_mw()
    finally:
        try:
            sys.stdout.flush()
        except OSError:  # of a full disk, which has a message; at exit, Python would change the exit code
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
