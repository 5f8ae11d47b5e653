"""The LMDB store's files: what is in them, how they are opened, what survives, and what is swept."""

import itertools
import logging
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from ratelimit_mw import Quota
from ratelimit_mw.decision import Change, Decision, Hit
from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.limit import Limit
from ratelimit_mw.stores import Store, lmdb_mark, open_store
from ratelimit_mw.stores.lmdb import LmdbStore
from ratelimit_mw.stores.lmdb_keys import END, META, PREFIX
from ratelimit_mw.testing import ManualClock

NOW = 1_767_268_820
SIZE = 64 << 20


def limit_of(quota: str = "2/minute", algorithm: str = "fixed-window", rule: str = "api") -> Limit:
    return Limit(rule, 0, Quota.parse(quota), algorithm)


def hit(store: Store, limit: Limit, client: str = "a", cost: int = 1, now: int | None = None) -> Decision:
    return store.apply([Hit(limit, limit.prefix + client, cost)], now)[0]


def names(path: Path) -> list[bytes]:
    """All keys in an environment that nobody has open."""
    with lmdb.open(str(path), map_size=SIZE) as env, env.begin() as txn, txn.cursor() as cursor:
        return list(cursor.iternext(values=False))


def states(path: Path) -> list[bytes]:
    return [name for name in names(path) if not name.startswith(META)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(str(path), SIZE, timeout_us=5_000_000)
    yield store
    store.close()


# -- addresses and opening ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("lmdb://host/var/lib/app", "absolute path"),
        ("lmdb:var/lib/app", "absolute path"),
        ("lmdb://", "absolute path"),
        ("lmdb:///a%00b", "absolute path"),
        ("lmdb:///tmp/x?size=much", "size is a number of bytes"),
        ("lmdb:///tmp/x?size=1.5GiB", "size is a number of bytes"),
        ("lmdb:///tmp/x?size=1MiB", "from 4 MiB on"),
        ("lmdb:///tmp/x?durable=yes", "durable is true or false"),
        ("lmdb:///tmp/x?sise=1GiB", "no option 'sise'"),
    ],
)
def test_an_address_that_cannot_mean_anything_is_an_error(address: str, why: str) -> None:
    """It is refused when it is read, with what was expected."""
    with pytest.raises(ConfigError, match=why):
        open_store(address)


def test_an_address_opens_the_directory_that_it_names(tmp_path: Path) -> None:
    """Sizes have binary units, and a path may hold what an address has to escape."""
    store = open_store(f"lmdb://{tmp_path}/a%20b?size=8MiB&durable=true", timeout_us=1_000_000)
    hit(store, limit_of())
    store.close()
    assert sorted(each.name for each in (tmp_path / "a b").iterdir()) == ["data.mdb", "lock.mdb", "ratelimit_mw.lock"]


def test_nothing_is_opened_before_it_is_needed(path: Path) -> None:
    """A store that is made where settings are read leaves no trace; its files are then for their owner only."""
    store = LmdbStore(str(path), SIZE)
    assert not path.exists()
    hit(store, limit_of())
    store.close()
    assert {each.stat().st_mode & 0o777 for each in (path, *path.iterdir())} == {0o700, 0o600}


def test_without_its_library_the_address_says_how_to_install_it() -> None:
    """The line that fixes it, instead of a traceback from inside."""
    code = (
        "import sys; sys.modules['lmdb'] = None\n"
        "from ratelimit_mw.errors import MissingExtraError\n"
        "from ratelimit_mw.stores import open_store\n"
        "try: open_store('lmdb:///tmp/x')\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "ratelimit-mw[lmdb]"' in done.stdout


def test_stores_of_one_path_share_what_a_process_has_open(path: Path, tmp_path: Path) -> None:
    """LMDB cannot be opened twice in a process; two limiters there count together, also by another name of the path."""
    (tmp_path / "link").symlink_to(path)
    first, second = LmdbStore(str(path), SIZE), LmdbStore(str(tmp_path / "link"), SIZE)
    assert [hit(store, limit_of()).remaining for store in (first, second)] == [1, 0]
    with pytest.raises(ConfigError, match="another size"):
        LmdbStore(str(path), SIZE * 2)
    first.close()
    assert not hit(second, limit_of()).allowed, "one of two closed"
    second.close()
    third = LmdbStore(str(path), SIZE * 2)
    assert not hit(third, limit_of()).allowed, "another size once nobody has it open"
    third.close()


def test_a_closed_store_opens_again(store: LmdbStore) -> None:
    """Closing is letting go of files, not the end: a framework may close between two uses."""
    hit(store, limit_of())
    store.close()
    assert hit(store, limit_of()).remaining == 0


def test_state_survives_a_restart(path: Path) -> None:
    """A worker that comes back knows what its predecessors counted, of all kinds of state."""
    limits = [limit_of("3/hour", each) for each in ("token-bucket", "sliding-window-log", "sliding-window-counter")]
    for expected in (2, 1, 0):
        store = LmdbStore(str(path), SIZE)
        assert [hit(store, limit).remaining for limit in limits] == [expected] * 3
        store.close()


@pytest.mark.parametrize("there", ["file", "file/sub"])
def test_a_path_that_cannot_be_is_a_store_error(tmp_path: Path, there: str) -> None:
    """What the disk says comes out as the one error that policies know, each time and for each kind of call."""
    (tmp_path / "file").write_text("")
    store = LmdbStore(str(tmp_path / there), SIZE)
    for call in (lambda: hit(store, limit_of()), store.ping, store.ping):
        with pytest.raises(StoreError, match=r"failed: \w+Error"):
            call()


def test_damaged_files_are_a_store_error_until_they_are_gone(path: Path) -> None:
    """A file that is no database, and a record that no algorithm wrote, never raise anything else."""
    path.mkdir()
    (path / "data.mdb").write_bytes(b"not a database" * 1000)
    store = LmdbStore(str(path), SIZE, timeout_us=5_000_000)
    for _ in range(2):
        with pytest.raises(StoreError, match="failed: InvalidError"):
            hit(store, limit_of())
    (path / "data.mdb").unlink()
    assert hit(store, limit_of()).allowed
    store.close()
    with lmdb.open(str(path), map_size=SIZE) as env, env.begin(write=True) as txn:
        for each in ("fixed-window", "sliding-window-log"):
            name = PREFIX + b"state:" + limit_of(algorithm=each).prefix.encode() + b"broken"
            txn.put(name, b"\0" * 8 + (b"l" if "log" in each else b"c") + b"what?")
    for each in ("fixed-window", "sliding-window-log"):
        with pytest.raises(StoreError, match="failed: ValueError"):
            hit(store, limit_of(algorithm=each), "broken")
    assert not hit(store, limit_of("1/minute")).allowed, "the rest is as it was"
    store.close()


# -- what is in it --------------------------------------------------------------------------------------------


def test_keys_can_be_read_by_their_prefix(store: LmdbStore, path: Path) -> None:
    """State stands under the text of its key; one that is too long for LMDB under its limit and a digest."""
    limit = limit_of()
    for client in ("192.0.2.7", "x" * 1000, "x" * 1001):
        assert hit(store, limit, client, 2).allowed
    store.close()
    found = [name.removeprefix(PREFIX) for name in states(path)]
    assert found[2] == b"state:1|api|fixed-window|1m|192.0.2.7"
    assert [name[: -2 * 16] for name in found[:2]] == [b"state#1|api|fixed-window|1m|"] * 2
    assert found[0] != found[1]


def test_what_changes_nothing_writes_nothing(store: LmdbStore, path: Path) -> None:
    """Refusals and looks leave the file as it is, so attack traffic costs no writes."""
    limit = limit_of("2/minute", "sliding-window-log")
    hit(store, limit, cost=2)
    before = (path / "data.mdb").stat().st_mtime_ns, (path / "data.mdb").read_bytes()
    for _ in range(50):
        assert not hit(store, limit).allowed
        hit(store, limit, "b", cost=0)
        store.apply([Hit(limit, limit.prefix + "c", 1)], spend=False)
    assert ((path / "data.mdb").stat().st_mtime_ns, (path / "data.mdb").read_bytes()) == before


def test_other_data_is_left_alone_and_synced(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An application's own records are what they were, and are not put at risk for the sake of speed."""
    mine = {b"a": b"1", b"\xff": b"2", PREFIX[:-1]: b"\0" * 9, END: b"\0" * 9, b"\xff\xff": b"3"}
    path.mkdir()
    with lmdb.open(str(path), map_size=SIZE) as env, env.begin(write=True) as txn:
        for name, value in mine.items():
            txn.put(name, value)
    clock = ManualClock(NOW)
    store = LmdbStore(str(path), SIZE, timeout_us=5_000_000, clock=clock)
    for number in range(40):
        hit(store, limit_of(), f"client {number}")
        clock.advance(61)
    store.forget(["a", "", limit_of().prefix])
    assert "synced to the disk" in caplog.text
    assert "open" not in (path / "ratelimit_mw.lock").read_text(), "nothing is at risk if the machine stops"
    store.close()
    with lmdb.open(str(path), map_size=SIZE) as env, env.begin() as txn:
        assert {name: txn.get(name) for name in mine} == mine


def test_the_sweep_deletes_what_may_go_and_nothing_else(path: Path) -> None:
    """A flood's records, pages of long logs among them, go as others write; who is still blocked stays blocked."""
    clock = ManualClock(NOW)
    store = LmdbStore(str(path), SIZE, timeout_us=5_000_000, clock=clock)
    log, long = limit_of("500/minute", "sliding-window-log"), limit_of("2/day", "token-bucket")
    for number in range(2_000):
        hit(store, limit_of(), f"client {number}")
        hit(store, log, f"client {number % 5}")
    hit(store, long, "blocked", 2)
    clock.advance(121)
    for number in range(1_500):
        hit(store, limit_of("2000/minute"), f"regular {number % 10}")
    assert not hit(store, long, "blocked").allowed
    store.close()
    assert len(states(path)) == 11
    assert not [name for name in names(path) if b"page:" in name]


def test_one_write_sweeps_little_and_the_next_process_goes_on(path: Path) -> None:
    """However many records may go, a write looks at 64; workers that live for one write get through all the same."""
    clock = ManualClock(NOW)
    store = LmdbStore(str(path), SIZE, timeout_us=5_000_000, clock=clock)
    for number in range(1_000):
        hit(store, limit_of(), f"client {number}")
    store.close()
    clock.advance(121)
    left = []
    for _ in range(17):
        hit(store, limit_of("100/minute"), "regular")
        store.close()
        left.append(len(states(path)))
    assert all(0 <= before - after <= 64 for before, after in itertools.pairwise(left))
    assert left[0] >= 900
    assert left[-1] == 1


def test_pages_go_with_a_key_that_is_forgotten(store: LmdbStore, path: Path) -> None:
    """Nothing of a long log is left behind."""
    log = limit_of("1000/day", "sliding-window-log")
    for number in range(300):
        hit(store, log, now=NOW * 1_000_000 + number)
    store.forget([log.prefix + "a"])
    store.close()
    assert states(path) == []


# -- the machine stops ----------------------------------------------------------------------------------------


def mark_of(path: Path) -> list[str]:
    return (path / "ratelimit_mw.lock").read_text().split()


def test_the_mark_says_open_before_the_first_write_and_closed_after_the_last(store: LmdbStore, path: Path) -> None:
    """What the next start of the machine has to know is on the disk while anything is at risk."""
    boot = Path(lmdb_mark.BOOT_ID).read_text().strip()
    hit(store, limit_of())
    assert mark_of(path) == ["ratelimit_mw", boot, "open"]
    store.close()
    assert mark_of(path) == ["ratelimit_mw", boot, "closed"]


@pytest.mark.parametrize("mark", ["ratelimit_mw another-boot open\n", "ratelimit_mw another-boot clo", "ratel"])
def test_after_an_unclean_stop_it_begins_anew(path: Path, mark: str, caplog: pytest.LogCaptureFixture) -> None:
    """A file that may be damaged is not read: it is put aside, the counts begin anew, and one line says so."""
    store = LmdbStore(str(path), SIZE, timeout_us=5_000_000)
    hit(store, limit_of(), cost=2)
    store.close()
    (path / "ratelimit_mw.lock").write_text(mark)
    for _ in range(2):
        assert hit(store, limit_of()).allowed
        store.close()
    assert (path / "data.mdb.unclean").exists()
    (line,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "the machine stopped while" in line.getMessage()


def test_after_a_clean_stop_it_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Closed in order, the counts are there after the machine has started again, with a clock read anew."""
    store = LmdbStore(str(path), SIZE, timeout_us=5_000_000)
    assert hit(store, limit_of("2/day", "token-bucket"), cost=2).allowed
    store.close()
    (tmp_path / "boot_id").write_text("another-boot\n")
    monkeypatch.setattr(lmdb_mark, "BOOT_ID", str(tmp_path / "boot_id"))
    ahead = time.time_ns() + 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    refused = hit(store, limit_of("2/day", "token-bucket"))
    assert not refused.allowed
    assert abs(refused.at_us - ahead // 1000) < 5_000_000
    assert mark_of(path) == ["ratelimit_mw", "another-boot", "open"]
    store.close()


def test_a_durable_store_needs_no_mark(path: Path) -> None:
    """Each change is on the disk before it is answered, so there is nothing to begin anew."""
    store = LmdbStore(str(path), SIZE, durable=True, timeout_us=5_000_000)
    hit(store, limit_of(), cost=2)
    assert mark_of(path) == []
    store.close()
    assert not hit(store, limit_of()).allowed
    store.close()


def test_files_that_somebody_has_open_are_not_put_aside(path: Path) -> None:
    """Two halves of a machine must not count in two files: it is an error until whoever has it open is gone."""
    store = LmdbStore(str(path), SIZE, timeout_us=5_000_000)
    hit(store, limit_of(), cost=2)
    store.close()
    (path / "ratelimit_mw.lock").write_text("ratelimit_mw another-boot open\n")
    code = f"import lmdb; env = lmdb.open({str(path)!r}); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(StoreError, match="somebody has it open"):
            hit(store, limit_of())
        other.communicate(b"\n")
    assert hit(store, limit_of()).allowed
    store.close()


# -- time -----------------------------------------------------------------------------------------------------


def test_a_stepped_wall_clock_changes_nothing(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reading since the machine started counts, for processes that come later too."""
    first = hit(store, limit_of()).at_us
    store.close()
    true_time = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_time() + 7_200_000_000_000)
    assert 0 <= hit(store, limit_of()).at_us - first < 60_000_000
    assert not hit(store, limit_of()).allowed
    monkeypatch.undo()


def test_all_processes_count_by_one_clock(path: Path) -> None:
    """What one process sees is bracketed by what another one sees before and after, to the microsecond."""
    code = (
        "import time\n"
        "step = int(input())\nreal = time.time_ns\ntime.time_ns = lambda: real() + step\n"
        "from ratelimit_mw import Quota\nfrom ratelimit_mw.decision import Hit\nfrom ratelimit_mw.limit import Limit\n"
        "from ratelimit_mw.stores.lmdb import LmdbStore\n"
        "limit = Limit('api', 0, Quota.parse('9/minute'), 'sliding-window-log')\n"
        f"store = LmdbStore({str(path)!r}, {SIZE}, timeout_us=5_000_000)\n"
        "while input():\n    print(store.apply([Hit(limit, limit.prefix, 0)])[0].at_us, flush=True)"
    )
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as two:
        one.stdin.write("0\n")
        two.stdin.write("5000000000\n")
        times = []
        for _ in range(20):
            for process in (one, two):
                process.stdin.write("go\n")
                process.stdin.flush()
                times.append(int(process.stdout.readline()))
        for process in (one, two):
            process.communicate("\n")
    assert times == sorted(times)
    assert times[-1] - times[0] < 5_000_000


# -- room -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fixed-window", "sliding-window-log", "sliding-window-counter"])
def test_a_full_store_never_errs_and_never_gives_more(path: Path, algorithm: str) -> None:
    """A flood of keys fills it: known keys keep their own state, new ones share, nobody gets more than the limit."""
    chance = random.Random(1)
    clock = ManualClock(NOW)
    store = LmdbStore(str(path), 4 << 20, timeout_us=5_000_000, clock=clock)
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
    store = LmdbStore(str(path), 4 << 20, timeout_us=5_000_000, clock=ManualClock(NOW))
    for number in range(40_000):
        hit(store, limit_of(), f"client {number}")
    store.close()
    assert ["new keys share" in each.getMessage() for each in caplog.records] == [True]


def test_where_nothing_may_grow_a_hit_is_refused(path: Path) -> None:
    """Long logs fill it to the last reserve: no error, no hit passes uncounted, short records still change."""
    clock = ManualClock(NOW)
    store = LmdbStore(str(path), 4 << 20, timeout_us=5_000_000, clock=clock)
    log, count = limit_of("10000/hour", "sliding-window-log"), limit_of("1000000/hour")
    refused = passed = 0
    hit(store, count, "known")
    for number in range(250_000):
        clock.advance(0.000_001)
        decision = hit(store, log, f"client {number % 30}")
        passed += decision.allowed
        if not decision.allowed:
            refused += 1
            assert (decision.retry_us, decision.remaining > 0) == (1_000_000, True)
            if refused == 2_000:
                break
    assert refused == 2_000
    left = sum(hit(store, log, f"client {number}", cost=0).remaining for number in range(30))
    assert 30 * 10_000 - left == passed, "all that passed was counted, and nothing else"
    assert hit(store, count, "known").allowed
    with pytest.raises(StoreError, match="is full"):
        store.correct([Change(log, log.prefix + "client 1", 1, None)] * 200)
    clock.advance(2 * 3600)
    for number in range(2_000):
        hit(store, count, f"later {number % 7}")
    assert hit(store, log, "client 1").allowed
    store.close()


def test_a_reader_that_does_not_end_is_a_store_error_until_it_does(path: Path) -> None:
    """A backup that is stopped keeps all old pages: nothing can be written then, and nothing is lost by it."""
    store = LmdbStore(str(path), 4 << 20, timeout_us=5_000_000)
    limit = limit_of("100000/hour")
    passed = int(hit(store, limit).allowed)
    code = f"import lmdb; txn = lmdb.open({str(path)!r}, map_size=4 << 20).begin(); print('on', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"on\n"
        while (allowed := attempt(store, limit)) is not None:
            passed += allowed
        assert attempt(store, limit) is None
        reader.communicate(b"\n")
    assert hit(store, limit).remaining == 100_000 - passed - 1
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
    store = LmdbStore(str(path), 4 << 20, timeout_us=5_000_000)
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
    store = LmdbStore(str(path), 4 << 20, timeout_us=5_000_000)
    hit(store, limit_of())
    code = (
        "from ratelimit_mw import Quota\nfrom ratelimit_mw.decision import Hit\nfrom ratelimit_mw.limit import Limit\n"
        "from ratelimit_mw.stores.lmdb import LmdbStore\n"
        "limit = Limit('other', 0, Quota.parse('9/minute'), 'fixed-window')\n"
        f"store = LmdbStore({str(path)!r}, {SIZE}, timeout_us=5_000_000)\n"
        "for number in range(60_000): store.apply([Hit(limit, f'{limit.prefix}{number}', 1)])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (path / "data.mdb").stat().st_size > 4 << 20
    assert [hit(store, limit_of()).allowed for _ in range(2)] == [True, False]
    store.close()


def test_the_secret_and_the_number_of_shares_stay(path: Path) -> None:
    """Whoever made the environment decided them: a key shares the same state whatever a later size is."""
    chosen = []
    for size in (4 << 20, SIZE):
        store = LmdbStore(str(path), size, timeout_us=5_000_000)
        hit(store, limit_of())
        store.close()
        with lmdb.open(str(path), map_size=SIZE) as env, env.begin() as txn:
            chosen.append(txn.get(META + b"identity"))
    assert chosen[0] == chosen[1]
    assert int.from_bytes(chosen[0][16:], "big") == 256
