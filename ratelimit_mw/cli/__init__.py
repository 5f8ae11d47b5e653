"""The command ``ratelimit-mw``, and the same commands inside a framework's.

click and rich are an extra. They are imported when a command runs, so that it can print how to install them.
"""

import io
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from ..errors import MissingExtraError

if TYPE_CHECKING:
    from .source import Source


def main() -> None:
    """Run the command and end the process: 0 fine, 1 found something wrong, 2 misused or an extra is missing."""
    try:
        require_extra("ratelimit-mw")
    except MissingExtraError as error:
        sys.stderr.write("\n".join((str(error), *error.__notes__, "")))
        sys.exit(2)
    from .group import ratelimit_mw

    # A terminal that cannot show a character gets its escape sequence.
    cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")
    ratelimit_mw()


def run_within(program: str, open_app: "Callable[[], Source]", words: Sequence[str]) -> int:
    """Run the commands of a framework's program, which knows the application. Return the exit code."""
    try:
        require_extra(program)
    except MissingExtraError as error:
        sys.stderr.write("\n".join((str(error), *error.__notes__, "")))
        sys.stderr.flush()  # old releases of click lose the text
        return 2
    from click import ClickException

    from .group import group_within

    try:
        return group_within(program, open_app).main(list(words), program, standalone_mode=False) or 0
    except ClickException as error:
        error.show(sys.stderr)
        return error.exit_code


def require_extra(program: str) -> None:
    """Raise ``MissingExtraError`` unless click and rich are installed."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError:
        raise MissingExtraError(f"the command {program}", "cli") from None
