"""The switch that turns all limits of this process off, for tests of applications. On by default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["limits_off", "switch"]


class _Switch:
    """``off`` counts who wants limits off; shared by all threads, as a test client may run the application in one."""

    off = 0


switch = _Switch()


@contextmanager
def limits_off() -> Iterator[None]:
    """Within this block every request is allowed, no rule looks at it and no header is added.

    >>> with limits_off():
    ...     switch.off
    1
    """
    switch.off += 1
    try:
        yield
    finally:
        switch.off -= 1
