"""The LMDB store when the machine stops or its clock is set: what is kept, and when it begins anew."""

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import SUPPORT
from lmdb_kit import SIZE, SPAWN, hit, limit_of, mark_of, open_at, start

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.lmdb import shutdown_mark as mark
from ratelimit_mw.stores.lmdb.store import LmdbStore

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    store = open_at(path)
    yield store
    store.close()


def test_the_mark_says_open_before_the_first_write_and_closed_after_the_last(store: LmdbStore, path: Path) -> None:
    """What the next start of the machine has to know is on the disk while anything is at risk."""
    boot = Path(mark.BOOT_ID).read_text().strip()
    hit(store, limit_of())
    assert mark_of(path) == ["ratelimit_mw", boot, "open"]
    store.close()
    assert mark_of(path) == ["ratelimit_mw", boot, "closed"]


@pytest.mark.parametrize("text", ["ratelimit_mw another-boot open\n", "ratelimit_mw another-boot clo", "ratel"])
def test_after_an_unclean_stop_it_begins_anew(path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A file that may be damaged is not read: it is put aside, the counts begin anew, and one line says so."""
    store = open_at(path)
    hit(store, limit_of(), cost=2)
    store.close()
    (path / "ratelimit_mw.lock").write_text(text)
    for _ in range(2):
        assert hit(store, limit_of()).allowed
        store.close()
    assert (path / "data.mdb.unclean").exists()
    (line,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "the machine stopped while" in line.getMessage()


def test_after_a_clean_stop_it_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Closed in order, the counts are there after the machine has started again, with a clock read anew."""
    store = open_at(path)
    assert hit(store, limit_of("2/day", "token-bucket"), cost=2).allowed
    store.close()
    (tmp_path / "boot_id").write_text("another-boot\n")
    monkeypatch.setattr(mark, "BOOT_ID", str(tmp_path / "boot_id"))
    ahead = time.time_ns() + 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    rejected = hit(store, limit_of("2/day", "token-bucket"))
    assert not rejected.allowed
    assert abs(rejected.at_us - ahead // 1000) < 5_000_000
    assert mark_of(path) == ["ratelimit_mw", "another-boot", "open"]
    store.close()


def test_a_durable_store_needs_no_mark(path: Path) -> None:
    """Each change is on the disk before it is answered, so there is nothing to begin anew."""
    store = open_at(path, durable=True)
    hit(store, limit_of(), cost=2)
    assert mark_of(path) == []
    store.close()
    assert not hit(store, limit_of()).allowed
    store.close()


def test_files_that_somebody_has_open_are_not_put_aside(path: Path) -> None:
    """Two halves of a machine must not count in two files: it is an error until whoever has it open is gone."""
    store = open_at(path)
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
        "from ratelimit_mw import Quota\nfrom ratelimit_mw.decision import Hit\n"
        "from ratelimit_mw.algorithms.limit import Limit\n"
        "from ratelimit_mw.stores.lmdb.store import LmdbStore\n"
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


def hit_and_wait(path: Path, pipe: Any) -> None:
    store = open_at(path)
    pipe.send(hit(store, limit_of("20/day")).remaining)
    pipe.recv()
    store.close()


def test_the_last_process_to_close_marks_it_as_closed(tmp_path: Path) -> None:
    """As long as one worker has it open, another one's end says nothing."""
    pipes = [SPAWN.Pipe() for _ in range(2)]
    workers = [start(SPAWN, hit_and_wait, tmp_path, theirs) for _, theirs in pipes]
    assert sorted(mine.recv() for mine, _ in pipes) == [18, 19]
    marks = []
    for (mine, _), worker in zip(pipes, workers, strict=True):
        mine.send(None)
        worker.join()
        marks.append((tmp_path / "ratelimit_mw.lock").read_text().split()[-1])
    assert marks == ["open", "closed"]


@pytest.mark.parametrize("others", [False, True])
def test_a_process_that_just_ends_closes_in_order(path: Path, others: bool) -> None:
    """No framework has to call close; while another process has it open the mark stays."""
    code = (
        "from lmdb_kit import *\n"
        f"store = open_at(Path({str(path)!r}))\nassert hit(store, limit_of()).allowed\n"
        f"assert mark_of(Path({str(path)!r}))[-1] == 'open'"
    )
    store = open_at(path)
    if others:
        hit(store, limit_of())
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SUPPORT)
    assert mark_of(path)[-1] == ("open" if others else "closed")
    store.close()
    assert mark_of(path)[-1] == "closed"
