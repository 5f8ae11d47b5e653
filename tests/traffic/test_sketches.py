"""The sketches of a traffic log: their errors are within the stated bounds, and parts merge into the whole."""

from __future__ import annotations

import math
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.traffic import batch, count_min
from ratelimit_mw.traffic.batch import OTHER, EventCounts, fold_events
from ratelimit_mw.traffic.digest import create_salt, digest_of
from ratelimit_mw.traffic.estimate import Estimate, add_up, error_of
from ratelimit_mw.traffic.hyperloglog import STANDARD_ERROR, HyperLogLog

SALT = "5ca1ab1e" * 4
NAMES = st.integers(0, 30).map("client {}".format)
PARTS = st.lists(st.dictionaries(NAMES, st.integers(1, 50), max_size=20), max_size=12)
MOST = 3


def merged(parts: list[dict[str, int]], most: int = MOST) -> EventCounts:
    """Return parts that were added one after the other, as a store does."""
    found = EventCounts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "MOST", most)
        for part in parts:
            found.merge(EventCounts(sum(part.values()), dict(part)), SALT)
            found.drop_clients(SALT)
    return found


def test_an_estimate_is_a_number_with_its_error() -> None:
    """It compares as a number, adds up with plain numbers, and survives a pickle."""
    assert Estimate(5) == 5
    assert add_up([Estimate(5, 2), 7, Estimate(1, 1)]) == 13
    assert error_of(add_up([Estimate(5, 2), 7, Estimate(1, 1)])) == 3
    assert (error_of(7), error_of(pickle.loads(pickle.dumps(Estimate(5, 2))))) == (0, 2)


@given(PARTS)
def test_the_count_of_a_client_is_within_its_bound(parts: list[dict[str, int]]) -> None:
    """For any batches, a count is too low by the error at most, and the error is less than all counts / 3."""
    exact, found = sum(map(Counter, parts), Counter[str]()), merged(parts)
    assert found.total == exact.total()
    assert len(found.clients) <= 2 * MOST
    assert found.error * (MOST + 1) <= found.total
    for client, number in exact.items():
        assert found.clients.get(client, 0) <= number <= found.clients.get(client, 0) + found.error
    assert found.clients.keys() <= exact.keys()
    assert (found.sketch is None) == (found.error == 0)


@given(PARTS, st.integers(0, 12))
def test_two_summaries_merge_within_the_bound_of_one(parts: list[dict[str, int]], first: int) -> None:
    """It does not matter which worker has counted which part."""
    exact, found = sum(map(Counter, parts), Counter[str]()), merged(parts[:first])
    found.merge(merged(parts[first:]), SALT)
    assert found.error * (MOST + 1) <= found.total == exact.total()
    for client, number in exact.items():
        assert found.clients.get(client, 0) <= number <= found.clients.get(client, 0) + found.error
    if found.sketch is not None:
        every = HyperLogLog()
        every.add(exact, SALT)
        assert bytes(found.sketch) == bytes(every)


@pytest.mark.parametrize("count", [0, 1, 50, 2_000, 5_000, 12_000, 100_000])
def test_the_number_of_names_is_within_its_error(count: int) -> None:
    sketch = HyperLogLog()
    sketch.add((f"192.0.2.{i}" for i in range(count)), SALT)
    found = sketch.estimate()
    assert abs(found - count) <= found.error <= math.ceil(3 * STANDARD_ERROR * found)


def test_the_error_of_many_estimates_is_the_standard_error() -> None:
    """Salts make different estimates of the same names. They have no bias."""
    errors = []
    for i in range(40):
        sketch = HyperLogLog()
        sketch.add((f"c{j}" for j in range(3_000)), f"{i:032x}")
        errors.append(sketch.estimate() / 3_000 - 1)
    assert abs(sum(errors)) / 40 < 3 * STANDARD_ERROR / math.sqrt(40)
    assert math.sqrt(sum(each**2 for each in errors) / 40) < 1.3 * STANDARD_ERROR


@given(st.sets(NAMES), st.sets(NAMES))
def test_sketches_merge_into_that_of_all_names(some: set[str], others: set[str]) -> None:
    sketches = [HyperLogLog() for _ in range(3)]
    for sketch, names in zip(sketches, (some, others, some | others), strict=True):
        sketch.add(names, SALT)
    sketches[0].merge(HyperLogLog(bytes(sketches[1])))
    assert bytes(sketches[0]) == bytes(sketches[2])


def test_names_collide_by_a_salt_that_a_client_does_not_know() -> None:
    assert create_salt() != create_salt()
    assert digest_of(SALT, "a") != digest_of(SALT[::-1], "a")
    assert count_min.cells_of("a", SALT) != count_min.cells_of("a", SALT[::-1])


def test_a_count_of_the_count_min_sketch_is_within_its_bound() -> None:
    """No count is too low. With 20,000 names of skewed counts, fewer than delta are too high by more than epsilon."""
    exact = {f"event {i}": 20_000 // i for i in range(1, 20_001)}
    cells: dict[int, int] = Counter()
    for name, number in exact.items():
        batch.add_counts(cells, dict.fromkeys(count_min.cells_of(name, SALT), number))
    total, beyond = sum(exact.values()), 0
    for name, number in exact.items():
        found = count_min.estimate(min(cells[cell] for cell in count_min.cells_of(name, SALT)), total)
        assert number <= found
        assert found.error <= math.ceil(count_min.EPSILON * total)
        beyond += found - number > found.error
    assert beyond <= count_min.DELTA * len(exact)
    assert len(cells) <= 5 * 1_024


def test_events_without_room_have_a_count_in_the_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of a batch stay as they are, because it may be written again."""
    monkeypatch.setattr(batch, "MOST", 2)
    events = {f"e{i}": EventCounts(i, {"x": i}) for i in range(1, 6)} | {OTHER: EventCounts(7, {"y": 7})}
    for _ in range(2):
        folded = fold_events(events, {"known"}, SALT)
        assert {name: counts.total for name, counts in folded.items()} == {"e5": 5, OTHER: 1 + 2 + 3 + 4 + 7}
        assert folded[OTHER].clients == {"x": 10, "y": 7}
        cells = Counter(folded[OTHER].cells)
        found = [min(cells[cell] for cell in count_min.cells_of(f"e{i}", SALT)) for i in range(1, 6)]
        assert found == [1, 2, 3, 4, 0]
