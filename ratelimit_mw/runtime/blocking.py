"""Code that is written once, for threads and for event loops: a coroutine that calls methods by their names.

Give it ``blocking_call``, and ``run_blocking`` runs it. Give it ``async_call``, and await it on an event loop.

A call to a name server or to a credential provider cannot be interrupted, so no caller may run it itself.
``run_once`` runs it in a thread of its own, once for all callers that wait for the same result.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import Future
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

T = TypeVar("T")
_Value = TypeVar("_Value")
_Result = TypeVar("_Result", covariant=True)
P = ParamSpec("P")
Call = Callable[..., Awaitable[Any]]
"""Calls a method of an object: ``await call(store, "forget", keys)``."""


class Method(Protocol[P, _Result]):
    """A function of a class, which becomes a method of its objects. Not every type checker takes a callable for one."""

    __name__: str

    @overload
    def __get__(self, owner: None, kind: type, /) -> Callable[Concatenate[Any, P], _Result]: ...
    @overload
    def __get__(self, owner: object, kind: type, /) -> Callable[P, _Result]: ...
    def __get__(self, owner: Any, kind: type, /) -> Any: ...
    def __call__(self, owner: Any, /, *arguments: P.args, **options: P.kwargs) -> _Result: ...


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
) -> tuple[Method[P, T], Method[P, Coroutine[Any, Any, T]]]:
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

    _document(blocking, work, 2)
    _document(waiting, work, 2, "a")
    return blocking, waiting


def forms(
    like: Callable[Concatenate[Any, P], T],
) -> tuple[Method[P, T], Method[P, Coroutine[Any, Any, T]]]:
    """Return the blocking and the async form of an operation: ``_run`` and ``_arun`` of an object carry it out."""
    name = like.__name__

    def blocking(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._run(name, *arguments, **options)  # type: ignore[no-any-return]

    async def waiting(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return await self._arun(name, *arguments, **options)  # type: ignore[no-any-return]

    _document(blocking, like)
    _document(waiting, like, prefix="a")
    return blocking, waiting


def async_form(like: Callable[Concatenate[Any, P], T]) -> Method[P, Coroutine[Any, Any, T]]:
    """Return the async form of a method that does no I/O. It calls the method, that of a subclass too."""
    name = like.__name__

    async def waiting(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        return getattr(self, name)(*arguments, **options)  # type: ignore[no-any-return]

    _document(waiting, like, prefix="a")
    return waiting


def _document(form: Any, like: Any, skipped: int = 1, prefix: str = "") -> None:
    """Name and document a form. Its signature has the first parameter, and not the others that are skipped."""
    name = like.__name__.lstrip("_")
    own, *others = inspect.signature(like).parameters.values()
    form.__signature__ = inspect.signature(like).replace(parameters=[own, *others[skipped - 1 :]])
    form.__doc__ = f"Async form of ``{name}``." if prefix else like.__doc__
    form.__name__, form.__module__ = prefix + name, like.__module__
    form.__qualname__ = f"{like.__qualname__.rpartition('.')[0]}.{form.__name__}".lstrip(".")


def is_on_event_loop() -> bool:
    """Return whether this thread runs an event loop, which a blocking call would stop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def run_beside(call: Call, work: Callable[..., T], *arguments: Any) -> T:
    """Do work that may block: in this thread, or in another one beside an event loop.

    It has a thread of its own, because the application may keep those of ``asyncio.to_thread`` busy for long.
    """
    if call is blocking_call:
        return work(*arguments)
    return await asyncio.wrap_future(run_once(object(), partial(work, *arguments)))


class PerLoop(Generic[_Value]):
    """Creates a value when an event loop first needs one, and drops those of closed loops. Threads may share it."""

    def __init__(self, create: Callable[[], _Value]) -> None:
        self._create = create
        self.values: dict[asyncio.AbstractEventLoop, _Value] = {}

    def get(self) -> _Value:
        loop = asyncio.get_running_loop()
        value = self.values.get(loop)
        if value is None:
            for closed in [each for each in list(self.values) if each.is_closed()]:
                self.values.pop(closed, None)
            value = self.values[loop] = self._create()
        return value


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
