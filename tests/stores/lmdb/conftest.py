"""The store that the tests of LMDB share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lmdb_kit import open_at

from ratelimit_mw.stores.lmdb.store import LmdbStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    store = open_at(path)
    yield store
    store.close()
