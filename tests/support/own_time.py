"""Time budgets for tests on a busy machine."""

from collections.abc import Iterator
from contextlib import contextmanager

from ratelimit_mw.stores.calls import CallStore


@contextmanager
def hurried(store: object, seconds: float) -> Iterator[None]:
    """Give the calls of a store another time budget within the block, where its server may not reply."""
    assert isinstance(store, CallStore)
    patient, store._seconds = store._seconds, seconds
    try:
        yield
    finally:
        store._seconds = patient
