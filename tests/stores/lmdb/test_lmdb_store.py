"""The URL of the LMDB store, and how its files are opened."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest
from folders import SUPPORT
from lmdb_kit import SIZE, hit, limit_of, open_at

from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.lmdb.store import LmdbStore


def test_url_opens_its_directory_at_first_use(tmp_path: Path) -> None:
    """Sizes have binary units, and a path may contain escaped characters. Only the owner may read the files."""
    store, folder = open_store(f"lmdb://{tmp_path}/a%20b?size=8MiB", timeout_us=20_000_000), tmp_path / "a b"
    assert not folder.exists()
    hit(store, limit_of())
    store.close()
    assert sorted(each.name for each in folder.iterdir()) == ["data.mdb", "lock.mdb", "ratelimit_mw.lock"]
    assert {each.stat().st_mode & 0o777 for each in (folder, *folder.iterdir())} == {0o700, 0o600}


def test_stores_of_one_path_share_one_environment(path: Path, tmp_path: Path) -> None:
    """LMDB opens a path once in a process. Two stores of it count together, even through a symbolic link."""
    (tmp_path / "link").symlink_to(path)
    first, second = open_at(path), open_at(tmp_path / "link")
    limit = limit_of("2/hour", "token-bucket")
    assert [hit(store, limit).remaining for store in (first, second)] == [1, 0]
    first.close()
    assert not hit(second, limit).allowed, "one of two is closed"
    third = open_at(path, size=SIZE * 2)
    assert not hit(second, limit).allowed
    assert third._environment.size == SIZE * 2, "the largest size, in the open environment"
    second.close()
    third.close()


def test_impossible_path_is_a_store_error(tmp_path: Path) -> None:
    """Errors of the disk become the one error that on_store_error handles, for each kind of call."""
    (tmp_path / "file").write_text("")
    for location in ("file", "file/sub"):
        store = open_at(tmp_path / location)
        for call in (lambda: hit(store, limit_of()), store.ping, store.ping, lambda: asyncio.run(store.aping())):  # noqa: B023
            with pytest.raises(StoreError, match=r"failed: \w+Error"):
                call()


def test_longer_logs_are_an_error(path: Path) -> None:
    """A hit writes the whole log. The error names another algorithm, or another precision."""
    precise = {"name": "tiered-window", "precision": "1s"}
    for quota, algorithm, advice in (
        ("5001/hour", "sliding-window-log", "keeps at most 5,000 entries.*tiered-window"),
        ("10001/day", precise, "tiered-window keeps at most 10,000 entries.*larger precision"),
    ):
        with pytest.raises(ConfigError, match=advice):
            open_at(path).check(limit_of(quota, algorithm))
    for quota, algorithm in (
        ("5000/hour", "sliding-window-log"),
        ("10000/day", precise),
        ("9999999/366d", "tiered-window"),
    ):
        open_at(path).check(limit_of(quota, algorithm))


def test_other_platforms_are_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere a worker that is killed may leave LMDB's own lock behind, so there is no such store."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="needs Linux"):
        LmdbStore(str(path))


@pytest.mark.slow
def test_full_disk_is_a_store_error_and_loses_nothing(path: Path) -> None:
    """A hit that cannot be written is neither counted nor allowed. When there is space again the store continues."""
    code = (
        "import resource\nfrom lmdb_kit import *\nfrom ratelimit_mw.errors import StoreError\n"
        f"store, limit = open_at(Path({str(path)!r})), limit_of('3/day', 'gcra')\n"
        "assert hit(store, limit, 'known', 2).allowed\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))\n"
        "admitted, failed = 0, 0\n"
        "for number in range(2_000):\n"
        "    try: admitted += hit(store, limit, str(number)).allowed\n"
        "    except StoreError as error: failed += 1\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "left = sum(hit(store, limit, str(number), 0).remaining for number in range(2_000))\n"
        "assert (failed > 0, admitted > 0, admitted + failed, left) == (True, True, 2_000, 6_000 - admitted)\n"
        "assert [hit(store, limit, 'known').allowed for _ in range(2)] == [True, False]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SUPPORT)


@pytest.mark.parametrize("size", [None, 0, 8192])
def test_lock_file_has_no_hole(path: Path, size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB maps this file, so a write to a hole would kill the process on a full disk."""
    ends, open_files = [], lmdb.open
    if size is not None:  # such a start left the file behind
        path.mkdir(mode=0o700)
        (path / "lock.mdb").touch()
        os.truncate(path / "lock.mdb", size)

    def noting(folder: str, **options: Any) -> lmdb.Environment:
        with (path / "lock.mdb").open("rb") as file:
            ends.append(os.lseek(file.fileno(), 0, os.SEEK_HOLE))
        return open_files(folder, **options)

    monkeypatch.setattr(lmdb, "open", noting)
    hit(open_at(path), limit_of())
    assert ends == [8192, 8192]
