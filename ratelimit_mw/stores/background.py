"""Run blocking work in a thread of its own, once for all callers that wait for the same result.

A call to a name server or to a credential provider cannot be interrupted, so no caller may run it itself.
"""

import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_running: dict[Hashable, Future[Any]] = {}


def run_once(key: Hashable, work: Callable[[], T]) -> Future[T]:
    """Return the result of `work`, from the thread that already runs it for `key`, or from a new one."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # a caller that stops waiting does not cancel the work for the others
    key = (os.getpid(), key)  # a forked child has no threads of its parent
    running = _running.setdefault(key, result)
    if running is result:
        thread = threading.Thread(target=_run, args=(key, work, result), name="ratelimit_mw background", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            del _running[key]
            result.set_exception(OSError(str(error)))  # a failure of the machine, which stores turn into StoreError
    return running


def _run(key: Hashable, work: Callable[[], Any], result: Future[Any]) -> None:
    """Run the work. A caller that has its result starts new work, so the work ends before the result is there."""
    try:
        value = work()
    except BaseException as error:
        del _running[key]
        result.set_exception(error)
    else:
        del _running[key]
        result.set_result(value)
