"""Stores list their keys page by page: all but Memcached, which cannot."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis_handles import address
from servers import Server
from store_urls import PATIENT, URLS

from ratelimit_mw import ConfigError, Quota
from ratelimit_mw.algorithms import build_limit
from ratelimit_mw.decision import Hit
from ratelimit_mw.stores import MemoryStore, Store, open_store
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.testing.store_suite import WAYS, StoreHandle

LIMIT = build_limit("log[in]*", 0, Quota.parse("5/hour"), "fixed-window")
OTHER = build_limit("log[in]", 0, Quota.parse("5/day"), "sliding-window-log")
ODD = ["ip=192.0.2.7", "text=%7B{x}%25 \u00e4\ud800\n*", "", "\u00e9", "endpoint=2:/a&ip=192.0.2.7"]


@pytest.fixture(params=["memory", "lmdb", "redis", "cluster", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """A function that opens the store."""
    query = {"redis": "?prefix=r*l:", "cluster": "?prefix=r*l:", "postgres": "?table=listed"}.get(request.param, "")
    url = URLS[request.param](request.getfixturevalue, tmp_path) + query
    return lambda: open_store(url, PATIENT)


@pytest.fixture(params=WAYS)
def handle(opened: Callable[[], Store], request: pytest.FixtureRequest) -> Iterator[StoreHandle]:
    found = WAYS[request.param](opened())
    yield found
    keys, _ = listed(found, "")
    found.forget(keys)
    found.close()


def listed(handle: StoreHandle, prefix: str) -> tuple[list[str], int]:
    """Return all keys with a prefix, and the number of pages."""
    keys, cursor, pages = [], "", 0
    while True:
        page = handle.list_keys(prefix, cursor)
        keys += page.keys
        pages += 1
        if page.next is None:
            return keys, pages
        assert len(page.keys) < 3_000
        cursor = page.next


def test_the_keys_of_a_prefix_are_listed(handle: StoreHandle, opened: Callable[[], Store]) -> None:
    """Any text may be in a key, and no character of the prefix has a special meaning. A command has no other call."""
    handle.apply([Hit(LIMIT, LIMIT.prefix + key, 1) for key in ODD])
    handle.apply([Hit(OTHER, OTHER.prefix + key, 1) for key in ODD])
    keys, pages = listed(handle, LIMIT.prefix)
    assert sorted(keys) == sorted(LIMIT.prefix + key for key in ODD)
    assert pages in {1, 3}, "one for each server"
    assert sorted(listed(handle, "1|log[in]|")[0]) == sorted(OTHER.prefix + key for key in ODD)
    assert listed(handle, "1|logi")[0] == listed(handle, "1|" * 400)[0] == []
    with closing(opened()) as fresh:
        assert fresh.list_keys("1|", "9999:9").keys == []  # after the last key
        assert isinstance(fresh, MemoryStore) or len(listed(WAYS["sync"](fresh), LIMIT.prefix)[0]) == len(ODD)


def test_many_keys_have_several_pages(handle: StoreHandle) -> None:
    """A call looks at a bounded number of keys. Together the pages have each key once, even where some are deleted."""
    keys = [f"{LIMIT.prefix}ip={number}" for number in range(2_500)]
    for start in range(0, 2_500, 500):
        handle.apply([Hit(LIMIT, key, 1) for key in keys[start : start + 500]])
    found, pages = listed(handle, "1|")
    has_scan = isinstance(handle.store, RedisStore)  # which may return a key twice
    assert sorted({*found} if has_scan else found) == sorted(keys)
    assert pages >= 3
    handle.forget(keys[:2_499])
    assert listed(handle, "1|")[0] == keys[2_499:]


def test_a_cursor_that_no_page_has_named_is_an_error(redis_server: Server) -> None:
    """It comes from the URL of a page, for example."""
    for store in (MemoryStore(), open_store(address(redis_server), PATIENT)):
        for cursor in ("x", "1", "1:x", "²:0", "1:2:3", "-1:0", "1:" + "9" * 30):
            with pytest.raises(ConfigError, match=r"^cursor: "):
                store.list_keys("1|", cursor)
        store.close()
