"""Time budgets for tests on a busy machine, and the clocks that measure them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ratelimit_mw.runtime.blocking import is_on_event_loop
from ratelimit_mw.stores.calls import CallStore


@contextmanager
def hurried(store: object, seconds: float) -> Iterator[None]:
    """Give the calls of a store another time budget within the block, where its server may not reply."""
    assert isinstance(store, CallStore)
    with patch.object(store, "_seconds", seconds):
        yield


def way_of(store: Any) -> Any:
    """Return what the calls of a store wait with: the ``clock`` of this thread or running loop, and ``connections``."""
    return store._loop_drivers.get() if is_on_event_loop() else store._thread_driver
