"""One value for each event loop. Values of closed loops are dropped."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class PerLoop(Generic[_Value]):
    """Creates a value when an event loop first needs one. Loops in several threads may share a table."""

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
