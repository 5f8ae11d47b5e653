"""Run a generator whose items are requests: one loop for blocking callers, one for event loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")


def run(items: Generator[Item, Any, Result], answer: Callable[[Item], Any]) -> Result:
    """Send each item the answer to it, or throw the error of it. The result is the return value of the generator."""
    try:
        item = next(items)
        while True:
            try:
                reply = answer(item)
            except Exception as error:
                item = items.throw(error)
            else:
                item = items.send(reply)
    except StopIteration as end:
        return cast(Result, end.value)
    finally:
        items.close()


async def arun(items: Generator[Item, Any, Result], answer: Callable[[Item], Awaitable[Any]]) -> Result:
    """Async form of `run`."""
    try:
        item = next(items)
        while True:
            try:
                reply = await answer(item)
            except Exception as error:
                item = items.throw(error)
            else:
                item = items.send(reply)
    except StopIteration as end:
        return cast(Result, end.value)
    finally:
        items.close()
