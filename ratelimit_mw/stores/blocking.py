"""Code that is written once, for threads and for event loops: a coroutine that calls methods by their names.

Give it ``blocking_call``, and ``run_blocking`` runs it. Give it ``async_call``, and await it on an event loop.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

T = TypeVar("T")
P = ParamSpec("P")
Call = Callable[..., Awaitable[Any]]
"""Calls a method of an object: ``await call(store, "forget", keys)``."""


def run_blocking(coroutine: Awaitable[T]) -> T:
    """Return the result of a coroutine that makes blocking calls only."""
    try:
        coroutine.send(None)  # type: ignore[attr-defined] # every coroutine has it
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("a blocking call waits for an event loop")


async def blocking_call(target: object, name: str, *arguments: Any) -> Any:
    """Call a method."""
    return getattr(target, name)(*arguments)


def async_call(target: object, name: str, *arguments: Any) -> Awaitable[Any]:
    """Call the async form of a method."""
    return cast(Awaitable[Any], getattr(target, f"a{name}")(*arguments))


def twins(
    work: Callable[Concatenate[Any, Call, P], Coroutine[Any, Any, T]], part: str = ""
) -> tuple[Callable[Concatenate[Any, P], T], Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]]:
    """Return the blocking and the async form of a method, or of a function of an object, that waits by a ``Call``.

    With ``part``, the forms are methods of another object, which has this one as that attribute.

    >>> class Door:
    ...     async def _ring(self, call, times=1):
    ...         return "ding" * times
    ...     ring, aring = twins(_ring)
    >>> Door().ring(2), Door.aring.__name__
    ('dingding', 'aring')
    """

    def blocking(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return run_blocking(work(getattr(self, part) if part else self, blocking_call, *arguments, **options))

    async def waiting(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return await work(getattr(self, part) if part else self, async_call, *arguments, **options)

    _document(work, 2, blocking, waiting)
    return blocking, waiting


def forms(
    like: Callable[Concatenate[Any, P], T],
) -> tuple[Callable[Concatenate[Any, P], T], Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]]:
    """Return the blocking and the async form of an operation: ``_run`` and ``_arun`` of an object carry it out."""
    name = like.__name__

    def blocking(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._run(name, *arguments, **options)  # type: ignore[no-any-return]

    async def waiting(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return await self._arun(name, *arguments, **options)  # type: ignore[no-any-return]

    _document(like, 1, blocking, waiting)
    return blocking, waiting


def _document(work: Any, skipped: int, blocking: Any, waiting: Any) -> None:
    """Name and document both forms. Their signature has the first parameter, and not the others that are skipped."""
    name, place = work.__name__.lstrip("_"), work.__qualname__.rpartition(".")[0]
    own, *others = inspect.signature(work).parameters.values()
    signature = inspect.signature(work).replace(parameters=[own, *others[skipped - 1 :]])
    documents = {blocking: (name, work.__doc__), waiting: (f"a{name}", f"Async form of ``{name}``.")}
    for function, (own_name, document) in documents.items():
        function.__name__, function.__qualname__ = own_name, f"{place}.{own_name}".lstrip(".")
        function.__doc__, function.__module__ = document, work.__module__
        function.__signature__ = signature


def is_on_event_loop() -> bool:
    """Return whether this thread runs an event loop, which a blocking call would stop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
