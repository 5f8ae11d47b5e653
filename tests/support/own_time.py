"""Time budgets for tests on a busy machine."""

from collections.abc import Iterator
from contextlib import contextmanager

from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.stores.redis.store import RedisStore


@contextmanager
def hurried(store: object, seconds: float) -> Iterator[None]:
    """Give the calls of a store another time budget within the block, where its server may not reply."""
    assert isinstance(store, RedisStore | MemcachedStore)
    name = "_timeout" if isinstance(store, RedisStore) else "_seconds"
    patient = getattr(store, name)
    setattr(store, name, seconds)
    try:
        yield
    finally:
        setattr(store, name, patient)
