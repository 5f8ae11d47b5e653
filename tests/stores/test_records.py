"""Records: what the compliance suite does not see. Names, stores without records, snapshots and the keys of rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from store_urls import PATIENT

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.decision import Correction, Decision, Hit
from ratelimit_mw.stores import MemoryStore, Store, open_store
from ratelimit_mw.stores.base import MAX_RECORD, record_key


class Recordless(Store):
    """A store of an application, written before there were records."""

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return []

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return []

    def forget(self, keys: Iterable[str]) -> None: ...


def test_a_store_without_records_raises_an_error() -> None:
    message = "the store Recordless keeps no records. Add read_record and write_record to its class"
    with pytest.raises(ConfigError, match=message):
        Recordless().read_record("overrides")
    with pytest.raises(ConfigError, match=message):
        Recordless().write_record("overrides", b"", None)


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "ä", "\x7f", "x" * 101])
def test_the_name_of_a_record_is_short_and_printable(name: str) -> None:
    with pytest.raises(ConfigError, match="name of a record"):
        record_key(name)


def test_a_record_has_at_most_so_many_bytes() -> None:
    assert record_key("x" * 100, bytes(MAX_RECORD)) == "record|" + "x" * 100
    with pytest.raises(ConfigError, match="would have 1,000,001 bytes"):
        record_key("counts", bytes(MAX_RECORD + 1))


@pytest.mark.slow
@pytest.mark.parametrize("each_url", ["lmdb", "redis", "memcached", "postgres"], indirect=True)
def test_every_store_checks_the_name_and_the_size_of_a_record(each_url: str) -> None:
    with closing(open_store(each_url, PATIENT)) as store:
        for name, data in (("a b", b""), ("counts", bytes(MAX_RECORD + 1))):
            with pytest.raises(ConfigError, match="record"):
                store.write_record(name, data, None)


def test_records_are_in_a_snapshot(tmp_path: Path) -> None:
    before = MemoryStore(snapshot=tmp_path / "limits")
    before.write_record("overrides", b"\xff", None)
    before.close()
    assert MemoryStore(snapshot=tmp_path / "limits").read_record("overrides") == b"\xff"


def test_inspect_shows_no_records() -> None:
    limiter = Limiter([Rule(name="record", limits="5/minute")])
    limiter.store.write_record("overrides", b"1", None)
    limiter.hit({"ip": "192.0.2.7"})
    assert limiter.store.list_keys("record|").keys == ["record|overrides"]
    assert [decision.client for decision in limiter.clients.inspect().decisions] == ["ip=192.0.2.7"]
