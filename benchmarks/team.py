"""Worker processes that wait for orders. They are stopped by process id."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

PATIENCE = 60.0  # seconds until a worker must report, in addition to the time that its order takes


class Team:
    """Processes that each run ``work(*arguments, pipe)``. A worker reports when it is ready, and after each order."""

    def __init__(self, work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in arguments]
        self._pipes = [own for own, _ in pipes]
        self._processes = [
            context.Process(target=work, args=(*each, other), daemon=True)
            for each, (_, other) in zip(arguments, pipes, strict=True)
        ]
        for process in self._processes:
            process.start()

    def reports(self, seconds: float = 0.0) -> list[Any]:
        """Return the next report of each worker."""
        return [self._report(pipe, seconds + PATIENCE) for pipe in self._pipes]

    def order(self, order: Any, seconds: float) -> list[Any]:
        """Send an order that takes some seconds. Return the report of each worker."""
        for pipe in self._pipes:
            pipe.send(order)
        return self.reports(seconds)

    def _report(self, pipe: Connection, patience: float) -> Any:
        if not pipe.poll(patience):
            raise TimeoutError(f"a worker does not report within {patience:.0f} s")
        return pipe.recv()

    def stop(self) -> None:
        """End the processes. An order of None ends a worker."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join(PATIENCE)
            process.kill()  # only a worker that hangs is still there


@contextmanager
def team_of(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> Iterator[Team]:
    """Run processes, which are ready, and end them."""
    team = Team(work, arguments)
    try:
        team.reports()
        yield team
    finally:
        team.stop()
