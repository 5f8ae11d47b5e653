"""The part of `StoreCompliance` about records: small documents beside the states."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from ..errors import ConfigError
from ..stores import Store
from ..stores.base import MAX_RECORD, RECORDS
from .comparison import check_equal
from .store_handles import NOW, StoreHandle
from .store_suite import WAYS, StoreSuite, limit_of

_ANY = bytes(range(256)) + b"\r\nEND\r\n"


class RecordTests(StoreSuite):
    """Tests of records. A store that keeps none raises `ConfigError`."""

    def test_a_record_is_written_only_as_it_was_read(self, way: str) -> None:
        """A write that expects other data changes nothing."""
        name = _name()
        with self._open(way) as store:
            if _has_none(store, name):
                return
            check_equal(store.read_record(name), None, "a new record")
            check_equal(store.write_record(name, b"1", b"0"), False, "a new record that should exist")
            check_equal(store.write_record(name, _ANY, None), True, "the first write")
            check_equal(store.read_record(name), _ANY, "the data after it")
            check_equal(store.write_record(name, b"2", None), False, "a write that expects no record")
            check_equal(store.write_record(name, b"2", b"1"), False, "a write that expects other data")
            check_equal(store.read_record(name), _ANY, "the data after both")
            check_equal(store.write_record(name, b"", _ANY), True, "an empty record")
            check_equal(store.read_record(name), b"", "the empty record")
            check_equal(store.write_record(name, None, None), False, "deleting it where none is expected")
            check_equal(store.write_record(name, None, b""), True, "deleting it")
            check_equal(store.read_record(name), None, "the deleted record")
            check_equal(store.write_record(name, None, None), True, "deleting no record")

    def test_the_longest_record_is_kept(self, way: str) -> None:
        """A record of 1,000,000 bytes is kept and replaced. A longer one is a `ConfigError`."""
        name = _name("x" * 60)
        with self._open(way) as store:
            if _has_none(store, name):
                return
            first, second = b"\x00\xff" * (MAX_RECORD // 2), b"\r\n" * (MAX_RECORD // 2)
            check_equal(store.write_record(name, first, None), True, "the first write")
            check_equal(store.write_record(name, second, first), True, "the second write")
            check_equal(store.read_record(name) == second, True, "the data")
            check_equal(_is_rejected(store, name, second + b"x"), True, "one byte more")
            check_equal(_is_rejected(store, "a b", b""), True, "a name with a space")
            store.write_record(name, None, second)

    def test_records_and_states_do_not_mix(self, way: str) -> None:
        """A rule whose name is that of a record has a key of its own. Where a store lists keys, it lists records."""
        name = _name()
        limits = [limit_of("5/minute", rule=rule) for rule in (name, RECORDS + name, RECORDS)]
        with self._open(way) as store:
            if _has_none(store, name):
                return
            store.write_record(name, b"1", None)
            check_equal([store.hit(limit, NOW, client="").remaining for limit in limits], [4] * 3, "remaining")
            store.forget([limit.prefix for limit in limits])
            check_equal(store.read_record(name), b"1", "the record")
            if (names := _listed(store, RECORDS + name)) is not None:
                check_equal(names, [RECORDS + name], "the listed records")
                check_equal(_listed(store, f"1|{name}"), [], "the listed keys")

    def test_a_race_for_a_record_has_one_winner(self, way: str) -> None:
        """Of two workers that read a record and write it at the same time, each write that succeeds counts."""
        name = _name()
        with self._open_two(way, way) as handles, ThreadPoolExecutor(2) as pool:
            if _has_none(handles[0], name):
                return
            won = sum(pool.map(lambda handle: sum(_add_one(handle, name) for _ in range(50)), handles))
            check_equal(int(handles[0].read_record(name) or b"0"), won, "the writes that succeeded")
            check_equal(won >= 50, True, f"{won} of 100 writes succeeded")

    def test_two_handles_share_their_records(self, way: str) -> None:
        """Each worker sees the records of the other, through blocking and async methods."""
        for other in WAYS:
            name = _name()
            with self._open_two(way, other) as (first, second):
                if _has_none(first, name):
                    return
                check_equal(first.write_record(name, b"1", None), True, "the write of one")
                check_equal(second.read_record(name), b"1", "the read of the other")
                check_equal(second.write_record(name, b"2", b"1"), True, "the write of the other")
                check_equal(first.write_record(name, b"3", b"1"), False, "the late write of the first")


def _name(start: str = "test") -> str:
    return f"{start}:{uuid4().hex}"


def _has_none(handle: StoreHandle, name: str) -> bool:
    """Return whether the store keeps no records. Then it raises the `ConfigError` of `Store`."""
    if type(handle.store).read_record is not Store.read_record:
        return False
    check_equal(_is_rejected(handle, name, b"1"), True, "a ConfigError of a store without records")
    return True


def _is_rejected(handle: StoreHandle, name: str, data: bytes) -> bool:
    try:
        handle.write_record(name, data, None)
    except ConfigError:
        return True
    return False


def _add_one(handle: StoreHandle, name: str) -> bool:
    before = handle.read_record(name)
    return handle.write_record(name, b"%d" % (int(before or b"0") + 1), before)


def _listed(handle: StoreHandle, prefix: str) -> list[str] | None:
    """Return all keys with a prefix; None for a store that lists none."""
    keys: list[str] = []
    place: str | None = ""
    try:
        while place is not None:
            page = handle.list_keys(prefix, place)
            keys += page.keys
            place = page.next
    except ConfigError:
        return None
    return keys
