"""Clocks of time budgets. They stop while this process cannot read its sockets, because the server is not the reason.

A busy event loop reads a reply late, and so does a thread that waits for the GIL. Such a turn of any length advances
these clocks by a twentieth of the budget at most. So a call without a reply ends after twenty turns at the latest.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import cache
from math import inf
from ssl import SSLContext, SSLSocket
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from ..clock import machine

STARTING: Final = 1.0
"""Seconds in which a worker may connect before its first request, even with a shorter time budget."""
_TURNS: Final = 20  # Busy turns in a time budget.
_STEPS: Final = 100  # Steps of a thread that lacks the GIL, without a wait.
_WAITS: Final = 5  # Waits of a thread, each followed by another look.
_BEATS: Final = 10  # Beats of an event loop.
_SHORTEST: Final = 0.001  # Seconds. A timeout of 0 makes a socket non-blocking.
_BLOCKED: Final = 0.2
"""Seconds. A longer turn of a loop is logged."""
_log = logging.getLogger("ratelimit_mw")
_Result = TypeVar("_Result")


class _ThreadTime(threading.local):
    """The last look of a thread at a clock, and how long that clock was stopped for the thread."""

    def __init__(self) -> None:
        self.last = machine.monotonic()
        self.stopped = 0.0


class ThreadClock:
    """A clock for blocking calls, in seconds. Each thread has its own time.

    Args:
        budget: The time budget of a call in seconds.
    """

    def __init__(self, budget: float) -> None:
        self._step = budget / _STEPS
        self._turn = budget / _TURNS
        self._wait = budget / _WAITS
        self._own = _ThreadTime()

    def time(self, waited: float = 0.0) -> float:
        """Return the time. ``waited`` is the longest time that the last step may have waited for a server."""
        own, now = self._own, machine.monotonic()
        late = now - own.last - (waited if waited > self._step else self._step)
        own.last = now
        if late > 0:
            own.stopped += late
        return now - own.stopped

    def seconds_until(self, deadline: float) -> float:
        """Return the seconds until a time of this clock, at least 1 ms."""
        return max(_SHORTEST, deadline - self.time())

    def wait(self, attempt: Callable[[float], _Result], deadline: float) -> _Result:
        """Return the result of ``attempt``, called with a number of seconds as long as it raises ``TimeoutError``.

        Raises:
            TimeoutError: The clock has reached the deadline, and the last attempt has failed.
        """
        while True:
            seconds = min(self._wait, self.seconds_until(deadline))
            try:
                result = attempt(seconds)
            except TimeoutError:
                if self.time(waited=seconds) >= deadline:
                    raise
            else:
                self.time(waited=self._turn)
                return result

    def result(self, future: Future[_Result], deadline: float) -> _Result:
        """Return the result of another thread, or ``TimeoutError`` at the deadline."""

        def look(seconds: float) -> None:
            if not wait((future,), seconds).done:
                raise TimeoutError

        self.wait(look, deadline)
        return future.result()

    def connect(self, plain: socket.socket, end: Any, seconds: float) -> None:
        """Connect a socket to an address."""
        plain.settimeout(seconds)
        try:
            plain.connect(end)
        except TimeoutError:
            self.time(waited=seconds)
            raise

    def encrypt(self, plain: socket.socket, tls: SSLContext, host: str, deadline: float) -> SSLSocket:
        """Return the socket with TLS."""
        encrypted = tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)

        def shake_hands(seconds: float) -> None:
            encrypted.settimeout(seconds)
            encrypted.do_handshake()

        try:
            self.wait(shake_hands, deadline)
        except BaseException:
            encrypted.close()
            raise
        return encrypted


class LoopClock:
    """A clock for the calls of the running event loop, in seconds.

    The clock beats while a call waits. A beat that is late shows that the loop was busy.

    Args:
        budget: The time budget of a call in seconds.
    """

    def __init__(self, budget: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._turn = budget / _TURNS
        self._interval = budget / _BEATS
        self._timeouts: set[LoopTimeout] = set()
        self._handle: asyncio.TimerHandle | None = None
        self._beat_at = self._latest = self._end = inf
        """Times of the loop: of the next beat, from which that beat is late, and at which this clock stops until it."""
        self._stopped = 0.0

    def time(self) -> float:
        """Return the time, and start to beat: from now on a busy loop does not count."""
        if self._handle is None:
            self._beat_in(self._interval)
        now = self._loop.time()
        return (now if now < self._end else self._end) - self._stopped

    def timeout_at(self, deadline: float) -> LoopTimeout:
        """Return a context manager that raises ``TimeoutError`` when this clock reaches the deadline."""
        return LoopTimeout(self).until(deadline)

    def turn_back(self, earlier: float) -> None:
        """Make the time since ``earlier`` not count."""
        self._stopped += self.time() - earlier

    def add(self, timeout: LoopTimeout) -> None:
        self._timeouts.add(timeout)
        if self._handle is None or timeout.deadline + self._stopped < self._beat_at:
            self._beat_in(timeout.deadline - self.time())

    def discard(self, timeout: LoopTimeout) -> None:
        self._timeouts.discard(timeout)

    def _beat_in(self, seconds: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._beat_after(self._catch_up(), seconds)

    def _beat_after(self, now: float, seconds: float) -> None:
        self._end = now + self._turn
        self._beat_at = now + min(max(seconds, 0.0), self._interval)
        self._latest = self._beat_at + self._interval
        self._handle = self._loop.call_at(self._beat_at, self._beat)

    def _catch_up(self) -> float:
        """Do not count a busy turn of the loop, in which a beat was late. Return the loop's time."""
        now = self._loop.time()
        if now > self._latest:
            self._stopped += now - self._end
            if now - self._latest > _BLOCKED:
                _warn_of_blocked_loop()
        self._beat_at = self._latest = self._end = inf
        return now

    def _beat(self) -> None:
        self._handle = None
        loop_time = self._catch_up()
        now = loop_time - self._stopped
        for timeout in self._timeouts:
            if timeout.deadline <= now:
                self._loop.call_soon(timeout.end)  # after the tasks whose reply this turn of the loop has read
        if self._timeouts:  # From the same time on: this process may have been stopped since.
            self._beat_after(loop_time, min(timeout.deadline for timeout in self._timeouts) - now)


@cache
def _warn_of_blocked_loop() -> None:
    _log.warning(
        "the event loop was blocked for more than %g s, so requests waited for their decision. Check for CPU-bound work"
        " or blocking calls, such as bcrypt, in async functions: run them in threads.",
        _BLOCKED,
    )


class LoopTimeout:
    """``with timeout.until(deadline):`` raises ``TimeoutError`` at a time of a ``LoopClock``. One block at a time.

    It costs a fraction of ``asyncio.timeout_at``: nearly all calls end in time, so no timer is set for each.
    """

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._task: asyncio.Task[Any] | None = None
        self._earlier_cancels = 0
        self._is_over = False
        self.deadline = inf

    def until(self, deadline: float) -> LoopTimeout:
        self.deadline = deadline
        return self

    def __enter__(self) -> None:
        self._task = task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._earlier_cancels, self._is_over = task.cancelling(), False
        self._clock.add(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._clock.discard(self)
        task, self._task = self._task, None
        is_ours = self._is_over and task is not None and task.uncancel() <= self._earlier_cancels
        if is_ours and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def end(self) -> None:
        """Cancel the task within the block, unless that block has ended, or has got more time."""
        if self._task is not None and self.deadline <= self._clock.time():
            self._clock.discard(self)
            self._is_over = True
            self._task.cancel()
