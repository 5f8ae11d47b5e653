"""Run code that is written once, for threads and for event loops, in a thread without a loop."""

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that makes blocking calls only."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("a blocking call waits for an event loop")
