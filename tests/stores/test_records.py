"""Records: what the compliance suite does not see. Stores without records, snapshots and the keys of rules."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.decision import Correction, Decision, Hit
from ratelimit_mw.stores import MemoryStore, Store


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


def test_records_are_in_a_snapshot(tmp_path: Path) -> None:
    before = MemoryStore(snapshot=tmp_path / "limits")
    before.write_record("overrides", b"\xff", None)
    before.write_record("deleted", b"1", None)
    before.write_record("deleted", None, b"1")
    before.close()
    assert MemoryStore(snapshot=tmp_path / "limits").read_record("overrides") == b"\xff"


def test_inspect_shows_no_records() -> None:
    limiter = Limiter([Rule(name="record", limits="5/minute")])
    limiter.store.write_record("overrides", b"1", None)
    limiter.hit({"ip": "192.0.2.7"})
    assert limiter.store.list_keys("record|").keys == ["record|overrides"]
    assert [decision.client for decision in limiter.clients.inspect().decisions] == ["ip=192.0.2.7"]
