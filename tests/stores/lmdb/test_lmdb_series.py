"""Logs in pages: the same answers as in arrays, with little read and written however long a log is."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import examples
from traces import SPECS

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import Algorithm, build
from ratelimit_mw.algorithms.window_log import Series
from ratelimit_mw.decision import Charge
from ratelimit_mw.stores.lmdb.pages import PAGE, dump, load, pages_of

NOW = 1_767_268_820_500_000
LOGS = {
    "log": "sliding-window-log",
    "log that counts rejections": SPECS["sliding-window-log-count-rejected"],
    "tiered window": {"name": "tiered-window", "precision": "1s"},
}


class Pages:
    """Pages in a dictionary, and how often each thing was done to them."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int], bytes] = {}
        self.read = self.written = self.dropped = 0

    def read_page(self, series: int, number: int) -> bytes | None:
        self.read += 1
        return self.kept.get((series, number))

    def write_page(self, series: int, number: int, data: bytes) -> None:
        self.written += 1
        self.kept[series, number] = data

    def drop_page(self, series: int, number: int) -> None:
        self.dropped += 1
        self.kept.pop((series, number), None)


class Kept:
    """One state in pages: every answer is made from its record alone."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.pages = Pages()
        self.record: bytes | None = None

    def state(self) -> Series | None:
        return None if self.record is None else load(self.record, self.pages.read_page)

    def keep(self, state: Series | None) -> None:
        self.record = None if state is None else dump(state, self.pages)

    def hit(self, now: int, cost: int) -> tuple[object, ...]:
        before = self.state()
        state, decision = self.algorithm.decide(before, now, cost)
        if state is not before:
            self.keep(state)
        return told(decision)


def told(decision: object) -> tuple[object, ...]:
    return tuple(getattr(decision, name) for name in ("allowed", "remaining", "retry_us", "reset_us", "at_us"))


def entries(state: Series | None) -> list[tuple[int, int]]:
    return [] if state is None else state.entries()


@pytest.mark.parametrize("spec", LOGS.values(), ids=LOGS)
@examples(40)
@given(seed=st.integers(0, 2**32), amount=st.sampled_from((3, 70, 200, 700)))
def test_pages_answer_as_arrays_do(spec: object, seed: int, amount: int) -> None:
    """Hits, looks, charges, giving back what is old or new, pauses, a clock that goes back: no answer differs."""
    chance = random.Random(seed)
    algorithm = build(spec, Quota.exact(amount, 400_000_000))
    kept, state = Kept(algorithm), None
    now, consumes = NOW, []
    step = chance.choice((1, 1_000_000, 3_000_000))
    for _ in range(amount * 2):
        act = chance.random()
        now += chance.choice((0, step, step, 2 * step, -step))
        if act < 0.005:
            now += chance.choice((100_000_000, 390_000_000, 800_000_000))
        if act < 0.85:
            cost = chance.choice((0, 1, 1, 1, 1, 2))
            state, decision = algorithm.decide(state, now, cost)
            assert kept.hit(now, cost) == told(decision)
            if decision.allowed and cost:
                consumes.append(Charge(decision.at_us, cost))
        elif act < 0.9 or not consumes:
            state = algorithm.charge(state, now, 2)
            kept.keep(algorithm.charge(kept.state(), now, 2))
        else:
            consumed = consumes.pop(chance.choice((-1, 0, len(consumes) // 2)))
            state = algorithm.give_back(state, now, consumed, 1)
            kept.keep(algorithm.give_back(kept.state(), now, consumed, 1))
        assert entries(kept.state()) == entries(state)


def test_a_hit_on_a_long_log_reads_and_writes_little() -> None:
    """With 10,000 entries in steady traffic a hit writes a kilobyte, and each 64th a page; none reads more than 2."""
    kept = Kept(build("sliding-window-log", Quota.parse("10000/minute")))
    for number in range(10_100):
        kept.hit(NOW + number * 6_000, 1)
    assert len(entries(kept.state())) == 10_000
    most_read = most_written = longest = 0
    pages = kept.pages
    before = (pages.written, len(pages.kept))
    for number in range(10_100, 12_100):
        pages.read = pages.written = 0
        assert kept.hit(NOW + number * 6_000, 1)[0]
        assert kept.record is not None
        most_read, most_written = max(most_read, pages.read), max(most_written, pages.written)
        longest = max(longest, len(kept.record))
    assert (most_read <= 2, most_written, longest <= 1_100) == (True, 1, True)
    assert abs(len(pages.kept) - before[1]) <= 1, "pages that are out of sight go as new ones come"


def test_a_rejection_by_a_long_log_searches_few_pages() -> None:
    """When to come again with a cost of thousands is found by halving, not by reading the log."""
    kept = Kept(build("sliding-window-log", Quota.parse("10000/minute")))
    for number in range(10_000):
        kept.hit(NOW + number, 1)
    kept.pages.read = 0
    assert kept.hit(NOW + 10_000, 5_000)[2] == 60_000_000 + 4_999 - 10_000
    assert kept.pages.read <= 12


def test_giving_back_the_newest_of_a_long_log_leaves_the_rest_alone() -> None:
    """Nothing but the record is written for it, and the pages before it are not even read."""
    algorithm = build("sliding-window-log", Quota.parse("10000/minute"))
    kept = Kept(algorithm)
    for number in range(5_000):
        kept.hit(NOW + number, 1)
    kept.pages.read = kept.pages.written = 0
    kept.keep(algorithm.give_back(kept.state(), NOW + 5_000, Charge(NOW + 4_998, 1), 1))
    assert (kept.pages.read <= 14, kept.pages.written) == (True, 0)
    assert len(entries(kept.state())) == 4_999


def test_pages_that_were_swept_count_as_out_of_sight() -> None:
    """What a page held has left the window when the page may go, whichever pages went first."""
    algorithm = build("sliding-window-log", Quota.parse("1000/minute"))
    kept = Kept(algorithm)
    for number in range(1_000):
        kept.hit(NOW + number * 1_000, 1)
    record = kept.record
    assert record is not None
    pages = pages_of(record)
    assert len(pages) == 1_000 // PAGE
    later = NOW + 60_000_000 + (4 * PAGE - 1) * 1_000
    expected = told(algorithm.decide(kept.state(), later, 1)[1])
    for gone in (pages[3], pages[0], pages[1], pages[2]):
        del kept.pages.kept[gone]
        assert told(algorithm.decide(kept.state(), later, 1)[1]) == expected


def test_many_pages_out_of_sight_at_once_are_dropped_a_few_at_a_time() -> None:
    """A log that was left alone for most of its period does not make one hit pay for all of it."""
    kept = Kept(build("sliding-window-log", Quota.parse("10000/minute")))
    for number in range(5_000):
        kept.hit(NOW + number, 1)
    kept.hit(NOW + 59_000_000, 1)
    kept.pages.dropped = 0
    kept.hit(NOW + 60_004_999, 1)
    assert kept.pages.dropped == 4
    assert [cost for _, cost in entries(kept.state())] == [1, 1]


def test_totals_begin_anew_before_they_are_too_large() -> None:
    """A log that is never empty counts for ever, whatever sums up."""
    algorithm = build({"name": "tiered-window", "precision": "1s"}, Quota.exact(10**12, 100_000_000))
    kept, before, large = Kept(algorithm), NOW // 1_000_000, 1 << 62
    columns = array("q", range(before, before + 90)), array("q", range(large + 1, large + 91))
    state = Series(*columns, 0, 90, large, before + 90, large + 100)
    kept.keep(state)
    again = kept.state()
    assert again is not None
    assert (again.base, again.entries()) == (0, state.entries())


@pytest.mark.parametrize("data", [b"", b"x" * 55, b"x" * 57, b"\0" * 56 + b"12345678"])
def test_what_is_no_record_is_an_error(data: bytes) -> None:
    """Bytes that were never written here are a ValueError, which the store reports as its own."""
    with pytest.raises(ValueError, match="expected the record of a series"):
        load(data, Pages().read_page)
