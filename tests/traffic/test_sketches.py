"""The sketches of dropped clients: their errors are within the stated bounds, and parts merge into the whole."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.traffic.sketches import STANDARD_ERROR, Dropped

NAMES = st.integers(0, 30).map("client {}".format)


def dropped(counts: dict[str, int]) -> Dropped:
    found = Dropped()
    found.add(counts)
    return found


@pytest.mark.slow
def test_the_number_of_names_has_the_stated_error() -> None:
    """There is no bias. The largest of these estimates may be three standard errors away."""
    for count in (1, 50, 2_000, 5_000, 12_000, 100_000):
        found = dropped({f"192.0.2.{i}": 1 for i in range(count)}).distinct_with([])
        assert abs(found - count) <= math.ceil(3 * STANDARD_ERROR * count), count
    errors = [dropped({f"{i} {j}": 1 for j in range(3_000)}).distinct_with(()) / 3_000 - 1 for i in range(20)]
    assert abs(sum(errors)) / 20 < 3 * STANDARD_ERROR / math.sqrt(20)


@given(st.sets(NAMES, min_size=1), st.sets(NAMES, min_size=1))
def test_sketches_merge_into_that_of_all_names(some: set[str], others: set[str]) -> None:
    first = dropped(dict.fromkeys(some, 1))
    first.merge(Dropped(bytes(dropped(dict.fromkeys(others, 2)))))
    assert first.most == 3
    whole = dropped(dict.fromkeys(some, 1) | dict.fromkeys(others - some, 2))
    assert first.distinct_with([]) == whole.distinct_with([]) == whole.distinct_with(others)


@pytest.mark.slow
def test_a_count_of_the_count_min_sketch_is_within_its_bound() -> None:
    """No count is too low. With 5,000 names of skewed counts, less than 1% are too high by more than 0.27% of all."""
    exact = {f"client {i}": 5_000 // i for i in range(1, 5_001)}
    sketch = dropped(exact)
    found = {name: sketch.count_of(name) for name in exact}
    assert all(number <= found[name] for name, number in exact.items())
    beyond = sum(found[name] - number > math.e / 1_024 * sum(exact.values()) for name, number in exact.items())
    assert beyond <= 0.0067 * len(exact)
    assert sketch.count_of("client 0") < 5_000
    assert len(bytes(sketch)) < 50_000


def test_a_sketch_of_another_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a sketch of"):
        Dropped(b"x")
