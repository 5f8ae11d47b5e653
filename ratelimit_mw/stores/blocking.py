"""Code that is written once, for threads and for event loops: a coroutine that calls methods by their names.

Give it ``blocking_call``, and ``run_blocking`` runs it. Give it ``async_call``, and await it on an event loop.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")
Call = Callable[..., Awaitable[Any]]
"""Calls a method of an object: ``await call(store, "forget", keys)``."""


def run_blocking(coroutine: Awaitable[T]) -> T:
    """Return the result of a coroutine that makes blocking calls only."""
    try:
        cast(Any, coroutine).send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("a blocking call waits for an event loop")


async def blocking_call(target: object, name: str, *arguments: Any) -> Any:
    """Call a method."""
    return getattr(target, name)(*arguments)


async def async_call(target: object, name: str, *arguments: Any) -> Any:
    """Call the async form of a method."""
    return await getattr(target, f"a{name}")(*arguments)
