"""Work in a thread for several callers: each caller gets the result or the error, even when no thread can start."""

from __future__ import annotations

import sys

import pytest

from ratelimit_mw import StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.background import run_once


def test_work_whose_thread_cannot_start_fails_and_may_be_tried_again(no_threads: pytest.MonkeyPatch) -> None:
    """A failed start keeps no later caller waiting."""
    for _ in range(2):
        with pytest.raises(OSError, match="can't start new thread"):
            run_once("name", int).result(0)
    no_threads.undo()
    assert run_once("name", int).result(5) == 0


def test_each_error_of_the_work_reaches_its_callers() -> None:
    """SystemExit too, which ends only the thread."""
    with pytest.raises(SystemExit):
        run_once("exit", sys.exit).result(5)


@pytest.mark.parametrize("url", ["redis://cache.invalid", "memcached://cache.invalid"])
def test_a_lookup_without_a_thread_is_a_store_error(no_threads: pytest.MonkeyPatch, url: str) -> None:
    """A limiter applies ``on_store_error`` to it."""
    store = open_store(url, 5_000_000)
    for _ in range(2):
        with pytest.raises(StoreError, match="can't start new thread"):
            store.ping()
    store.close()
