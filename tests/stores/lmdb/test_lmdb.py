"""The LMDB store's address, and how its files are opened."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from folders import SUPPORT
from lmdb_kit import SIZE, hit, limit_of, open_at

from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.lmdb.keys import PREFIX
from ratelimit_mw.stores.lmdb.store import LmdbStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    store = open_at(path)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("lmdb://host/var/lib/app", "absolute path"),
        ("lmdb:var/lib/app", "absolute path"),
        ("lmdb://", "absolute path"),
        ("lmdb:///a%00b", "absolute path"),
        ("lmdb:///var/lib/app#1", "absolute path"),
        ("lmdb:///tmp/x?size=much", "size is a number of bytes"),
        ("lmdb:///tmp/x?size=1.5GiB", "size is a number of bytes"),
        ("lmdb:///tmp/x?size=1MiB", "from 4 MiB on"),
        ("lmdb:///tmp/x?durable=yes", "durable is true or false"),
        ("lmdb:///tmp/x?sise=1GiB", "no option 'sise'"),
    ],
)
def test_an_address_that_cannot_mean_anything_is_an_error(address: str, why: str) -> None:
    """It is rejected when it is read, with what was expected."""
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
    for call in (lambda: hit(store, limit_of()), store.ping, store.ping, lambda: asyncio.run(store.aping())):
        with pytest.raises(StoreError, match=r"failed: \w+Error"):
            call()


def test_damaged_files_are_a_store_error_until_they_are_gone(path: Path) -> None:
    """A file that is no database, and a record that no algorithm wrote, never raise anything else."""
    path.mkdir()
    (path / "data.mdb").write_bytes(b"not a database" * 1000)
    store = open_at(path)
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


def test_it_says_where_it_cannot_keep_its_promises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on Linux a worker that dies may leave LMDB's lock behind, so there is no such store."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="needs Linux"):
        LmdbStore(str(path))


def test_a_call_that_waited_while_its_store_was_closed_is_an_error(store: LmdbStore) -> None:
    """It does not open again, behind everybody's back, what was closed in order."""
    hit(store, limit_of())
    home = store._home
    assert home is not None
    store.close()
    store._home = home
    with pytest.raises(StoreError, match="closed while a call waited"):
        hit(store, limit_of())
    store._home = None


def test_a_full_disk_is_a_store_error_and_loses_nothing(path: Path) -> None:
    """What cannot be written is not counted and not admitted; when there is room again it goes on."""
    code = (
        "import resource\nfrom lmdb_kit import *\nfrom ratelimit_mw.errors import StoreError\n"
        f"store, limit = open_at(Path({str(path)!r})), limit_of('3/day')\n"
        "assert hit(store, limit, 'known', 2).allowed\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))\n"
        "admitted, failed = 0, 0\n"
        "for number in range(4_000):\n"
        "    try: admitted += hit(store, limit, str(number)).allowed\n"
        "    except StoreError as error: failed += 1\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "left = sum(hit(store, limit, str(number), 0).remaining for number in range(4_000))\n"
        "assert (failed > 0, admitted > 0, admitted + failed, left) == (True, True, 4_000, 12_000 - admitted)\n"
        "assert [hit(store, limit, 'known').allowed for _ in range(2)] == [True, False]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SUPPORT)
