"""The LMDB store when the machine stops or its clock is set."""

import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lmdb
import pytest
from folders import SUPPORT
from lmdb_kit import FORK, hit, limit_of, mark_of, open_at, start

from ratelimit_mw.clock import machine
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.lmdb import environment
from ratelimit_mw.stores.lmdb.store import LmdbStore

pytestmark = pytest.mark.slow


def boot_id() -> str:
    return Path(environment.BOOT_ID).read_text().strip()


def test_mark_is_set_before_the_first_write_and_cleared_after_the_last(store: LmdbStore, path: Path) -> None:
    """The next start of the machine finds the mark when changes may be lost."""
    hit(store, limit_of("2/300 days"))
    assert mark_of(path) == boot_id()
    store.close()
    assert mark_of(path) == ""


@pytest.mark.parametrize("text", ["another-boot", "a"])
def test_counts_start_at_zero_after_an_unclean_stop(
    path: Path, text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that may be damaged is not read. It is set aside with one warning, even when the mark was cut short.

    Nothing replaces it, even when the disk is full.
    """
    store = open_at(path)
    hit(store, limit_of("2/300 days"), cost=2)
    store.close()
    (path / "ratelimit_mw.lock").write_text(text)
    old = (path / "data.mdb").read_bytes()

    def fill_disk(path: str, **_: Any) -> None:
        (Path(path) / "data.mdb").touch()
        raise lmdb.DiskError

    with monkeypatch.context() as full:
        full.setattr(lmdb, "open", fill_disk)
        for _ in range(2):
            with pytest.raises(StoreError, match="DiskError"):
                hit(store, limit_of())
    for _ in range(2):
        assert hit(store, limit_of("2/300 days")).allowed
        assert mark_of(path) == boot_id()
        store.close()
    assert (path / "data.mdb.unclean").read_bytes() == old
    (warning,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "was open when the machine stopped" in warning.getMessage()


def test_counts_are_kept_after_a_clean_stop(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Closed by its last process, the store keeps its counts after a boot, and reads the wall clock again."""
    store = open_at(path)
    assert hit(store, limit_of("2/300 days", "token-bucket"), cost=2).allowed
    store.close()
    (tmp_path / "boot_id").write_text("another-boot\n")
    monkeypatch.setattr(environment, "BOOT_ID", str(tmp_path / "boot_id"))
    ahead = time.time_ns() + 3_600_000_000_000
    monkeypatch.setattr(machine, "time_ns", lambda: ahead)
    rejected = hit(store, limit_of("2/300 days", "token-bucket"))
    assert not rejected.allowed
    assert abs(rejected.at_us - ahead // 1000) < 5_000_000
    assert mark_of(path) == "another-boot"
    store.close()


def test_files_in_use_are_not_set_aside(path: Path) -> None:
    """Two groups of workers must not count in two files. The store fails until the other process has ended."""
    store = open_at(path)
    hit(store, limit_of("2/300 days"), cost=2)
    store.close()
    (path / "ratelimit_mw.lock").write_text("another-boot")
    code = f"import lmdb; env = lmdb.open({str(path)!r}); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(StoreError, match="a process has it open"):
            hit(store, limit_of("2/300 days"))
        other.communicate(b"\n")
    assert hit(store, limit_of("2/300 days")).allowed
    store.close()


# -- time -----------------------------------------------------------------------------------------------------


def test_change_of_the_wall_clock_has_no_effect(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reading after the boot counts, even for later processes."""
    first = hit(store, limit_of("2/300 days")).at_us
    store.close()
    true_time = time.time_ns
    monkeypatch.setattr(machine, "time_ns", lambda: true_time() + 7_200_000_000_000)
    assert 0 <= hit(store, limit_of("2/300 days")).at_us - first < 60_000_000
    assert not hit(store, limit_of("2/300 days")).allowed
    monkeypatch.undo()


def hit_and_wait(path: Path, pipe: Any) -> None:
    store = open_at(path)
    pipe.send(hit(store, limit_of("20/300 days")).remaining)
    pipe.recv()
    store.close()


def test_last_process_to_close_clears_the_mark(tmp_path: Path) -> None:
    """The mark stays while another worker has the environment open."""
    pipes = [FORK.Pipe() for _ in range(2)]
    workers = [start(FORK, hit_and_wait, tmp_path, theirs) for _, theirs in pipes]
    assert sorted(mine.recv() for mine, _ in pipes) == [18, 19]
    marks = []
    for (mine, _), worker in zip(pipes, workers, strict=True):
        mine.send(None)
        worker.join()
        marks.append(mark_of(tmp_path))
    assert marks == [boot_id(), ""]


@pytest.mark.parametrize("others", [False, True])
def test_process_closes_the_store_when_it_ends(path: Path, others: bool) -> None:
    """No framework has to call close. The mark stays while another process has the environment open."""
    code = (
        "from lmdb_kit import *\n"
        f"store = open_at(Path({str(path)!r}))\nassert hit(store, limit_of('2/300 days')).allowed\n"
        f"assert mark_of(Path({str(path)!r}))"
    )
    store = open_at(path)
    if others:
        hit(store, limit_of("2/300 days"))
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SUPPORT)
    assert bool(mark_of(path)) == others
    store.close()
    assert mark_of(path) == ""
