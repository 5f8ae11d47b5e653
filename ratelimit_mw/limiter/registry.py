"""``Registry``: all objects of one kind in this process. It keeps none of them alive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

_Object = TypeVar("_Object")


class Registry(Generic[_Object]):
    """Objects that a thread may add while another thread iterates, which a ``WeakSet`` does not allow."""

    def __init__(self) -> None:
        self._objects = WeakValueDictionary[int, _Object]()

    def add(self, each: _Object) -> None:
        self._objects[id(each)] = each

    def __iter__(self) -> Iterator[_Object]:
        return iter([each for reference in self._objects.valuerefs() if (each := reference()) is not None])
