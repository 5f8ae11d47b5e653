"""The group of all commands, and what their errors come to: a message on stderr and an exit code, no traceback."""

from __future__ import annotations

import sys
from typing import Any

import click

from .. import __version__
from ..errors import MissingExtraError, RateLimitError
from .output import Failure, Misuse

__all__ = ["ratelimit_mw"]


class _Group(click.Group):
    """Turns errors that are meant for people into messages for people."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a pipe that was closed is found here, where click ends quietly, and not at exit
            return result
        except BrokenPipeError:
            raise
        except MissingExtraError as error:
            raise Misuse(str(error)) from None
        except RateLimitError as error:
            raise Failure(str(error)) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise Failure(f"{where}{error.strerror or error}") from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ratelimit-mw")
def ratelimit_mw() -> None:
    """Look at rate limits before they meet traffic.

    Results go to stdout, messages to stderr. Exit codes: 0 fine, 1 found something wrong, 2 misused.
    """
