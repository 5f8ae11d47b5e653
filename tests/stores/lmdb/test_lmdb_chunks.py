"""Logs in chunks: the same decisions as in arrays, with few reads and writes however long a log is."""

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import SPECS

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import Algorithm, build
from ratelimit_mw.algorithms.window_log import Series
from ratelimit_mw.receipt import Charge
from ratelimit_mw.stores.lmdb.chunks import CHUNK, dump, load

NOW = 1_767_268_820_500_000
LOGS = {
    "log": "sliding-window-log",
    "log that counts rejections": SPECS["sliding-window-log-count-rejected"],
    "tiered window": {"name": "tiered-window", "precision": "1s"},
}


class RecordsInDict:
    """Stands in for the records of a transaction, and for the transaction. Counts each operation on chunks."""

    def __init__(self) -> None:
        self.txn = self
        self.is_over = lambda: False
        self.kept: dict[bytes, bytes] = {}
        self.read = self.written = self.deleted = 0

    def get(self, name: bytes, default: bytes) -> bytes:
        self.read += 1
        return self.kept.get(name, default)

    def put(self, name: bytes, data: bytes) -> None:
        self.written += 1
        self.kept[name] = data

    def delete(self, name: bytes) -> None:
        self.deleted += 1
        self.kept.pop(name, None)


class StateInChunks:
    """One state whose every decision is made from its record alone."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.chunks = RecordsInDict()
        self.record: bytes | None = None

    def state(self) -> Series | None:
        return None if self.record is None else load(self.record, self.chunks)  # type: ignore[arg-type]

    def keep(self, state: Series | None) -> None:
        self.record = None if state is None else dump(state, self.chunks, bytes(8))  # type: ignore[arg-type]

    def hit(self, now: int, cost: int) -> tuple[object, ...]:
        before = self.state()
        state, decision = self.algorithm.decide(before, now, cost)
        if state is not before:
            self.keep(state)
        return fields(decision)


def fields(decision: object) -> tuple[object, ...]:
    return tuple(getattr(decision, name) for name in ("allowed", "remaining", "retry_us", "reset_us", "at_us"))


def entries(state: Series | None) -> list[tuple[int, int]]:
    return [] if state is None else state.entries()


@pytest.mark.slow
@pytest.mark.parametrize("spec", LOGS.values(), ids=LOGS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), amount=st.sampled_from((3, 70, 200, 700)))
def test_chunks_decide_as_arrays_do(spec: object, seed: int, amount: int) -> None:
    """Hits, looks, charges, refunds of old and new hits, pauses, a clock that goes back: no decision differs."""
    chance = random.Random(seed)
    algorithm = build(spec, Quota.exact(amount, 400_000_000))
    kept, state = StateInChunks(algorithm), None
    now, charges = NOW, []
    step = chance.choice((1, 1_000_000, 3_000_000))
    for _ in range(amount * 2):
        act = chance.random()
        now += chance.choice((0, step, step, 2 * step, -step))
        if act < 0.005:
            now += chance.choice((100_000_000, 390_000_000, 800_000_000))
        if act < 0.85:
            cost = chance.choice((0, 1, 1, 1, 1, 2))
            state, decision = algorithm.decide(state, now, cost)
            assert kept.hit(now, cost) == fields(decision)
            if decision.allowed and cost:
                charges.append(Charge(decision.at_us, cost))
        elif act < 0.9 or not charges:
            state = algorithm.charge(state, now, 2)
            kept.keep(algorithm.charge(kept.state(), now, 2))
        else:
            charge = charges.pop(chance.choice((-1, 0, len(charges) // 2)))
            state = algorithm.refund(state, now, charge, 1)
            kept.keep(algorithm.refund(kept.state(), now, charge, 1))
        assert entries(kept.state()) == entries(state)


def test_hit_on_a_long_log_reads_and_writes_little() -> None:
    """With 10,000 entries in steady traffic a hit writes a kilobyte, and each 64th a chunk. None reads more than 2."""
    kept = StateInChunks(build("sliding-window-log", Quota.parse("10000/minute")))
    for number in range(10_100):
        kept.hit(NOW + number * 6_000, 1)
    assert len(entries(kept.state())) == 10_000
    reads, writes, sizes = [], [], []
    chunks = kept.chunks
    before = len(chunks.kept)
    for number in range(10_100, 12_100):
        chunks.read = chunks.written = 0
        assert kept.hit(NOW + number * 6_000, 1)[0]
        assert kept.record is not None
        reads.append(chunks.read)
        writes.append(chunks.written)
        sizes.append(len(kept.record))
    assert sum(reads) / len(reads) < 1.5
    assert (max(reads) <= 16, max(writes), max(sizes) <= 1_100) == (True, 1, True)
    assert abs(len(chunks.kept) - before) <= 1, "chunks that have left the window are deleted"


def test_rejection_by_a_long_log_reads_few_chunks() -> None:
    """The retry time of a cost of thousands is found by a binary search."""
    kept = StateInChunks(build("sliding-window-log", Quota.parse("10000/minute")))
    for number in range(10_000):
        kept.hit(NOW + number, 1)
    kept.chunks.read = 0
    assert kept.hit(NOW + 10_000, 5_000)[2] == 60_000_000 + 4_999 - 10_000
    assert kept.chunks.read <= 12


def test_refund_of_the_newest_hit_leaves_chunks_alone() -> None:
    """Only the record is written, and few chunks are read."""
    algorithm = build("sliding-window-log", Quota.parse("10000/minute"))
    kept = StateInChunks(algorithm)
    for number in range(5_000):
        kept.hit(NOW + number, 1)
    kept.chunks.read = kept.chunks.written = 0
    kept.keep(algorithm.refund(kept.state(), NOW + 5_000, Charge(NOW + 4_998, 1), 1))
    assert (kept.chunks.read <= 14, kept.chunks.written) == (True, 0)
    assert len(entries(kept.state())) == 4_999


def test_many_chunks_that_leave_the_window_at_once_are_deleted_a_few_at_a_time() -> None:
    """One hit does not pay for all of them. The sweep deletes the rest."""
    kept = StateInChunks(build("sliding-window-log", Quota.parse("10000/minute")))
    for number in range(5_000):
        kept.hit(NOW + number, 1)
    kept.hit(NOW + 59_000_000, 1)
    kept.chunks.deleted = 0
    kept.hit(NOW + 60_004_999, 1)
    assert kept.chunks.deleted == 4
    assert [cost for _, cost in entries(kept.state())] == [1, 1]


def test_totals_start_over_before_they_overflow() -> None:
    """The running total of a log that is never empty grows without end."""
    algorithm = build({"name": "tiered-window", "precision": "1s"}, Quota.exact(10**12, 100_000_000))
    kept, before, large = StateInChunks(algorithm), NOW // 1_000_000, 1 << 62
    columns = array("q", range(before, before + 90)), array("q", range(large + 1, large + 91))
    state = Series(*columns, 0, 90, large, before + 90, large + 100)
    kept.keep(state)
    again = kept.state()
    assert again is not None
    assert (again.base, again.entries()) == (0, state.entries())


@pytest.mark.parametrize("data", [b"", b"x" * 47, b"x" * 49, b"\0" * 56, b"\0" * 48 + bytes(16)])
def test_bytes_of_another_form_are_an_error(data: bytes) -> None:
    """The store reports the error as its own."""
    with pytest.raises(ValueError, match="expected the record of a log"):
        load(data, RecordsInDict())  # type: ignore[arg-type]


def test_chunk_of_another_size_is_an_error() -> None:
    """A chunk that was cut short is not read beyond its end."""
    kept = StateInChunks(build("sliding-window-log", Quota.parse("10000/minute")))
    for number in range(2 * CHUNK):
        kept.hit(NOW + number, 1)
    kept.chunks.kept = {name: data[:-8] for name, data in kept.chunks.kept.items()}
    with pytest.raises(ValueError, match="expected a chunk"):
        kept.hit(NOW + 60_000_000, 1)
