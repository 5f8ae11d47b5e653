"""SIGHUP: the signal waits until the service can handle it, and uvicorn passes it on to each worker."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def hold() -> None:
    """Let SIGHUP wait, in this process and in those that it starts. By default, the signal would end them."""
    if hasattr(signal, "SIGHUP"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def handle(react: Callable[[], object]) -> None:
    """Call a function in a thread for each SIGHUP from now on, and for one that has waited."""
    loop = asyncio.get_running_loop()
    with suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):  # Windows, or no main thread
        loop.add_signal_handler(signal.SIGHUP, loop.run_in_executor, None, react)
        _release()


def pass_on_to_workers() -> None:
    """Let each worker read the settings. uvicorn would replace the workers, and give up on a machine that is busy."""
    from uvicorn.supervisors.multiprocess import Multiprocess, Process

    Multiprocess.handle_hup = _pass_on  # type: ignore[assignment, method-assign]
    Process.start = _start_holding  # type: ignore[assignment, method-assign]


def _pass_on(supervisor: Any) -> None:
    for worker in supervisor.processes:
        if worker.process.is_alive():  # uvicorn replaces a worker that has ended
            os.kill(worker.pid, signal.SIGHUP)


def _start_holding(worker: Any) -> None:
    """Start a worker in which SIGHUP waits. The supervisor handles the signal already."""
    hold()
    worker.process.start()
    if hasattr(signal, "SIGHUP"):
        _release()


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
