"""The LMDB store when it is full."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from lmdb_kit import NOW, SIZE, hit, limit_of, open_at

from ratelimit_mw import Limiter, Rule, Settings
from ratelimit_mw.decision import Limit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import ManualClock

pytestmark = pytest.mark.slow
READER = "a reader that does not end"
OTHERS = [pytest.param(f"sliding-window-{kind}", marks=pytest.mark.thorough) for kind in ("log", "counter")]


@pytest.mark.parametrize("algorithm", ["fixed-window", *OTHERS])
def test_a_flood_of_keys_frees_no_client(path: Path, algorithm: str, caplog: pytest.LogCaptureFixture) -> None:
    """When a flood of keys fills the store, known keys keep their state. New keys are an outage, with one warning."""
    clock = ManualClock(NOW)
    store = open_at(path, size=4 << 20, clock=clock)
    limit = limit_of("3/hour", algorithm)
    for number in range(5):
        hit(store, limit, f"regular {number}")
    outcomes = [allows(store, limit, f"flood {number}".ljust(400, "x")) for number in range(6_000)]
    first = outcomes.index(None)
    assert first > 2_000
    assert set(outcomes[:first]) == {True}
    assert set(outcomes[first:]) == {None}
    assert ["is full" in each.getMessage() for each in caplog.records] == [True]
    assert [hit(store, limit, f"regular {number}", cost=2).allowed for number in range(5)] == [True] * 5
    assert [hit(store, limit, f"regular {number}").allowed for number in range(5)] == [False] * 5
    assert (path / "data.mdb").stat().st_size <= 4 << 20
    clock.advance(2 * 3600)
    for number in range(5_000):
        allows(store, limit_of("1000000/minute"), f"later {number % 7}")
    assert all(hit(store, limit, f"new {number}", cost=3).allowed for number in range(500))
    store.close()


def test_a_flood_of_keys_is_no_outage_for_known_clients(path: Path) -> None:
    """New clients follow ``on_store_error``. All others are still decided by the store, however many new ones come."""
    store = open_at(path, size=4 << 20)
    rule, known = Rule(name="api", limits="2/day", on_store_error="allow"), {"ip": "192.0.2.7"}
    limiter = Limiter([rule], store, settings=Settings(rejection_cache=0))
    assert [limiter.hit(known).allowed for _ in range(3)] == [True, True, False]
    flood = (f"flood {number}".ljust(400, "x") for number in range(6_000))
    assert None in {allows(store, limit_of("3/hour"), client) for client in flood}
    assert [len(limiter.hit({"ip": f"198.51.100.{number}"}).decisions) for number in range(5)] == [0] * 5
    assert not limiter.hit(known).allowed
    limiter.close()


def allows(store: Store, limit: Limit, client: str = "a", full: str = "is full. Use a larger size") -> bool | None:
    """Return whether a hit was allowed; None when there was no room for it, with this text in the error."""
    try:
        return hit(store, limit, client).allowed
    except StoreError as error:
        if full not in str(error):
            raise
        return None


def test_reader_that_does_not_end_is_a_store_error(path: Path) -> None:
    """A stopped backup keeps all old pages, so no write is possible until it ends. No count is lost."""
    store = open_at(path, size=4 << 20)
    limit = limit_of("100000/hour")
    passed = int(hit(store, limit).allowed)
    code = f"import lmdb; txn = lmdb.open({str(path)!r}, map_size=4 << 20).begin(); print('on', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"on\n"
        while (allowed := allows(store, limit, full=READER)) is not None:
            passed += allowed
        assert allows(store, limit, full=READER) is None
        for ping in (store.ping, lambda: asyncio.run(store.aping())):
            with pytest.raises(StoreError, match=READER):
                ping()
        reader.communicate(b"\n")
    assert hit(store, limit).remaining == 100_000 - passed - 1
    store.ping()
    store.close()


def test_dead_reader_keeps_no_pages(path: Path) -> None:
    """The store frees the pages of a killed reader when it needs them, and rejects no hit."""
    store = open_at(path, size=4 << 20)
    hit(store, limit_of())
    code = (
        f"import lmdb, os; env = lmdb.open({str(path)!r}, map_size=4 << 20); txn = env.begin(); txn.get(b'x')\n"
        "print('reading', flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert (done.stdout, done.returncode) == (b"reading\n", -9)
    for number in range(3_000):
        assert hit(store, limit_of("10000/minute"), f"client {number % 10}").allowed
    store.close()


@pytest.mark.thorough
def test_process_with_a_larger_size_may_use_it(path: Path) -> None:
    """While workers restart with a new size, the old workers continue."""
    store, limit = open_at(path, size=4 << 20), limit_of("2/day", "gcra")
    hit(store, limit)
    code = (
        "from ratelimit_mw import Quota\nfrom ratelimit_mw.decision import Hit\n"
        "from ratelimit_mw.algorithms import build_limit\n"
        "from ratelimit_mw.stores.lmdb.store import LmdbStore\n"
        "limit = build_limit('other', 0, Quota.parse('9/minute'), 'fixed-window')\n"
        f"store = LmdbStore({str(path)!r}, {SIZE}, timeout_us=5_000_000)\n"
        "for number in range(60_000): store.apply([Hit(limit, f'{limit.prefix}{number}', 1)])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (path / "data.mdb").stat().st_size > 4 << 20
    assert [hit(store, limit).allowed for _ in range(2)] == [True, False]
    store.close()
