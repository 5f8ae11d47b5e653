"""The LMDB store when it is full."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from lmdb_kit import NOW, SIZE, hit, limit_of, open_at

from ratelimit_mw.algorithms.limit import Limit
from ratelimit_mw.decision import Charge, Correction, Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.lmdb.keys import META
from ratelimit_mw.stores.lmdb.store import LmdbStore
from ratelimit_mw.testing import ManualClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    store = open_at(path)
    yield store
    store.close()


@pytest.mark.parametrize("algorithm", ["fixed-window", "sliding-window-log", "sliding-window-counter"])
def test_a_full_store_never_errs_and_never_gives_more(path: Path, algorithm: str) -> None:
    """A flood of keys fills it: known keys keep their own state, new ones share, nobody gets more than the limit."""
    chance = random.Random(1)
    clock = ManualClock(NOW)
    store = open_at(path, size=4 << 20, clock=clock)
    limit = limit_of("3/hour", algorithm)
    passed: dict[int, int] = {}
    for number in range(5):
        hit(store, limit, f"regular {number}")
    for number in range(45_000):
        client = chance.randrange(number + 1) if number % 3 else number
        passed[client] = passed.get(client, 0) + hit(store, limit, f"flood {client}").allowed
    assert max(passed.values()) == 3
    assert not any(hit(store, limit, "a stranger with a share", cost=4).allowed for _ in range(3))
    assert [hit(store, limit, f"regular {number}", cost=2).allowed for number in range(5)] == [True] * 5
    assert [hit(store, limit, f"regular {number}").allowed for number in range(5)] == [False] * 5
    assert (path / "data.mdb").stat().st_size <= 4 << 20
    clock.advance(2 * 3600)
    for number in range(20_000):
        hit(store, limit_of("1000000/minute"), f"later {number % 7}")
    assert all(hit(store, limit, f"new {number}", cost=3).allowed for number in range(500)), "room again for all"
    store.close()


def test_one_line_says_that_room_is_short(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An operator learns of it, once."""
    store = open_at(path, size=4 << 20, clock=ManualClock(NOW))
    for number in range(40_000):
        hit(store, limit_of(), f"client {number}")
    store.close()
    assert ["new keys share" in each.getMessage() for each in caplog.records] == [True]


def test_a_shared_state_can_be_forgotten_and_given_back(path: Path) -> None:
    """An operator who frees a client that came during a flood frees it; what is given back is there again."""
    store = open_at(path, size=4 << 20, clock=ManualClock(NOW))
    limit = limit_of()
    for number in range(40_000):
        hit(store, limit, f"client {number}")
    key = f"{limit.prefix}stranger"
    for gives_back in (False, True):
        store.forget([key])
        decision = hit(store, limit, "stranger", cost=2)
        assert decision.allowed
        assert not hit(store, limit, "stranger").allowed
        if gives_back:
            store.correct([Correction(limit, key, 2, Charge(decision.at_us, 2))])
        else:
            store.forget([key])
        assert hit(store, limit, "stranger", cost=0).remaining == 2
    store.close()


def test_where_nothing_may_grow_a_hit_is_rejected(path: Path) -> None:
    """Long logs fill it to the last reserve: no error, no hit passes uncounted, short records still change."""
    clock = ManualClock(NOW)
    store = open_at(path, size=4 << 20, clock=clock)
    log, count = limit_of("10000/hour", "sliding-window-log"), limit_of("1000000/hour")
    rejected = passed = 0
    hit(store, count, "known")
    for number in range(250_000):
        clock.advance(0.000_001)
        decision = hit(store, log, f"client {number % 30}")
        passed += decision.allowed
        if not decision.allowed:
            rejected += 1
            assert (decision.retry_us, decision.remaining > 0) == (1_000_000, True)
            if rejected == 2_000:
                break
    assert rejected == 2_000
    left = sum(hit(store, log, f"client {number}", cost=0).remaining for number in range(30))
    assert 30 * 10_000 - left == passed, "all that passed was counted, and nothing else"
    both = store.apply([Hit(log, log.prefix + "client 1", 1), Hit(count, count.prefix + "known", 1)])
    assert [decision.allowed for decision in both] == [False, False]
    assert hit(store, count, "known").remaining == 1_000_000 - 2, "the short one was not consumed beside the long one"
    with pytest.raises(StoreError, match="is full"):
        store.correct([Correction(log, log.prefix + "client 1", 1, None)] * 200)
    clock.advance(2 * 3600)
    for number in range(2_000):
        hit(store, count, f"later {number % 7}")
    assert hit(store, log, "client 1").allowed
    store.close()


def test_a_reader_that_does_not_end_is_a_store_error_until_it_does(path: Path) -> None:
    """A backup that is stopped keeps all old pages: nothing can be written then, and nothing is lost by it."""
    store = open_at(path, size=4 << 20)
    limit = limit_of("100000/hour")
    passed = int(hit(store, limit).allowed)
    code = f"import lmdb; txn = lmdb.open({str(path)!r}, map_size=4 << 20).begin(); print('on', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"on\n"
        while (allowed := attempt(store, limit)) is not None:
            passed += allowed
        assert attempt(store, limit) is None
        with pytest.raises(StoreError, match="a reader that does not end"):
            store.ping()
        with pytest.raises(StoreError, match="a reader that does not end"):
            asyncio.run(store.aping())
        reader.communicate(b"\n")
    assert hit(store, limit).remaining == 100_000 - passed - 1
    store.ping()
    store.close()


def test_short_logs_that_grow_together_are_bounded_too(path: Path) -> None:
    """None of them needs a page, all of them together more than there is: rejected where it would have to grow."""
    clock = ManualClock(NOW)
    store = open_at(path, size=4 << 20, clock=clock)
    log = limit_of("10000/hour", "sliding-window-log")
    passed = 0
    for number in range(120_000):
        clock.advance(0.000_001)
        passed += hit(store, log, f"client {number % 3_000}").allowed
    left = sum(hit(store, log, f"client {number}", cost=0).remaining for number in range(3_000))
    assert 0 < 3_000 * 10_000 - left == passed < 120_000
    store.close()


def attempt(store: Store, limit: Limit) -> bool | None:
    """Whether a hit passed; None where there is no room for any."""
    try:
        return hit(store, limit).allowed
    except StoreError as error:
        if "a reader that does not end" not in str(error):
            raise
        return None


def test_a_reader_that_died_keeps_nothing(path: Path) -> None:
    """Old pages that a killed reader held back are free again before the store runs out of them."""
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


def test_a_process_with_a_larger_size_may_use_it(path: Path) -> None:
    """While workers restart with new settings the old ones go on beside them."""
    store, limit = open_at(path, size=4 << 20), limit_of("2/day", "gcra")  # whatever the moment, nothing comes back
    hit(store, limit)
    code = (
        "from ratelimit_mw import Quota\nfrom ratelimit_mw.decision import Hit\n"
        "from ratelimit_mw.algorithms.limit import Limit\n"
        "from ratelimit_mw.stores.lmdb.store import LmdbStore\n"
        "limit = Limit('other', 0, Quota.parse('9/minute'), 'fixed-window')\n"
        f"store = LmdbStore({str(path)!r}, {SIZE}, timeout_us=5_000_000)\n"
        "for number in range(60_000): store.apply([Hit(limit, f'{limit.prefix}{number}', 1)])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (path / "data.mdb").stat().st_size > 4 << 20
    assert [hit(store, limit).allowed for _ in range(2)] == [True, False]
    store.close()


def test_the_secret_and_the_number_of_shares_stay(path: Path) -> None:
    """Whoever made the environment decided them: a key shares the same state whatever a later size is."""
    chosen = []
    for size in (4 << 20, SIZE):
        store = open_at(path, size=size)
        hit(store, limit_of())
        store.close()
        with lmdb.open(str(path), map_size=SIZE) as env, env.begin() as txn:
            chosen.append(txn.get(META + b"identity"))
    assert chosen[0] == chosen[1]
    assert int.from_bytes(chosen[0][16:], "big") == 256
