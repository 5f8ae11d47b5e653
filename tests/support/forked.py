"""Forks: the work of a child, and a fork without a second process."""

import os
import signal
from collections.abc import Callable

from ratelimit_mw.runtime import forksafe


def exit_code(work: Callable[[], object], fork: Callable[[], int] = os.fork) -> int:
    """Return the exit code of a child that does this work: 0 if its result is true. Kill the child after 60 s."""
    pid = fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def become_child() -> None:
    """Run the callbacks of a child in this process, as its first call does after a fork without Python's hooks."""
    forksafe.process = -1
    forksafe.check_process()
