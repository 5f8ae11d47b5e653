"""The counts that wait in a process: bounded, with exact totals, and within the errors of what they have lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic_records import NOW, limit_to

from ratelimit_mw.clock import SECOND
from ratelimit_mw.traffic import pending
from ratelimit_mw.traffic.batch import OTHER
from ratelimit_mw.traffic.losses import Loss, clients_to_keep, drop_clients
from ratelimit_mw.traffic.pending import PendingCounts

MOST = 40
CLIENTS = st.one_of(st.none(), st.integers(0, 5), st.integers(0, 10_000)).map(lambda i: i if i is None else f"c{i}")
RECORDS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc"), CLIENTS, st.integers(1, 9)), max_size=300)
Found = list[tuple[int, str, str | None, int]]


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Few counts wait. When there are more, each event keeps few clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending, "MOST", MOST)
        limit_to(8, patch)
        yield


def added(found: Found) -> PendingCounts:
    counts = PendingCounts(60)
    for minute, event, client, number in found:
        counts.add(event, client, number, (NOW + 60 * minute) * SECOND)
        assert sum(map(len, counts.buckets.values())) == counts._size <= MOST
    return counts


@given(RECORDS)
def test_counts_that_wait_are_within_their_errors(found: Found) -> None:
    """For any records: totals are exact, no client is missing without an error, and the memory has a bound."""
    taken, losses = added(found).take(NOW)
    totals, exact = Counter[tuple[int, str]](), Counter[tuple[int, str, str | None]]()
    for minute, event, client, number in found:
        start = (NOW + 60 * minute) // 60 * 60
        totals[start, event] += number
        exact[start, event, client] += number
    waiting = Counter({(start, *key): number for start, counts in taken.items() for key, number in counts.items()})
    for (start, event), total in totals.items():
        loss = losses.get(start, {}).get(event, Loss())
        clients = {key[2] for key in exact if key[:2] == (start, event)} - {None}
        kept = {key[2] for key in waiting if key[:2] == (start, event)} - {None}
        assert sum(number for key, number in waiting.items() if key[:2] == (start, event)) == total
        assert kept <= clients
        assert len(clients - kept) <= loss.missed
        assert loss.error <= total
        for client in clients:
            number = waiting[start, event, client]
            assert number <= exact[start, event, client] <= number + loss.error
    assert waiting.keys() <= exact.keys() | {(*key, None) for key in totals}


@given(st.lists(CLIENTS.filter(bool), max_size=600))
def test_the_error_of_one_event_is_that_of_a_misra_gries_summary(clients: list[str]) -> None:
    """The process keeps 8 clients when it is full, so the error is less than a 9th of all counts."""
    _, losses = added([(0, "a", client, 1) for client in clients]).take(NOW)
    for each in losses.values():
        assert 9 * each["a"].error <= len(clients)


def test_a_full_process_has_room_for_a_late_client() -> None:
    """It comes after ten times as many clients as there is room for."""
    (counts,), _ = _taken([(0, "a", f"c{i}", 1) for i in range(400)] + [(0, "a", "late", 1)] * 60)
    assert max((number, client) for (_, client), number in counts.items() if client) >= (50, "late")


def _taken(found: Found) -> tuple[list[pending.Counts], pending.Losses]:
    counts, losses = added(found).take(NOW)
    return list(counts.values()), losses


def test_room_is_made_for_many_clients_at_once() -> None:
    """So each new client of a flood costs little: room is made once for every sixteen of them or more."""
    made, make_room = [], PendingCounts._make_room
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PendingCounts, "_make_room", lambda self: made.append(make_room(self)))
        added([(i % 2, "abc"[i % 3], f"c{i}", 1) for i in range(1_000)])
    assert 0 < len(made) <= 1_000 / 16


def test_no_room_is_made_when_events_take_it() -> None:
    """There are too few clients to drop, so it is tried once until the counts are written."""
    counts = PendingCounts(60)
    for i in range(31):
        counts.add(f"e{i}", None, 1, NOW * SECOND)
    for i in range(30):
        counts.add("a", f"c{i}", 2, NOW * SECOND)
    assert counts._is_full
    assert counts._size == MOST + 1
    taken, losses = counts.take(NOW)
    assert losses[NOW // 60 * 60] == {"a": Loss(2 * 21, 21)}
    assert taken[NOW // 60 * 60]["a", None] == 2 * 21
    assert not counts._is_full


def test_events_beyond_the_bound_count_together() -> None:
    counts = PendingCounts(60)
    for i in range(3 * MOST):
        counts.add(f"e{i}", "c", 1, NOW * SECOND)
    (taken,) = counts.take(NOW)[0].values()
    assert len(taken) <= 2 * MOST + 1
    assert sum(taken.values()) == 3 * MOST
    assert taken[OTHER, None] > 0


def test_all_clients_of_an_event_lose_the_same() -> None:
    """Other events lose nothing, and nor do counts without a client."""
    counts: pending.Counts = {("a", f"c{i}"): i for i in range(1, 6)} | {("a", None): 7, ("b", "c1"): 1}
    assert drop_clients(counts, 2) == {"a": Loss(3, 3)}
    assert counts == {("a", "c5"): 2, ("a", "c4"): 1, ("a", None): 7 + 1 + 2 + 3 + 3 + 3, ("b", "c1"): 1}
    assert drop_clients(counts, 0) == {"a": Loss(2, 2), "b": Loss(1, 1)}
    assert counts == {("a", None): 22, ("b", None): 1}


@pytest.mark.parametrize(("sizes", "room", "most"), [([40, 3], 20, 8), ([9] * 4, 20, 4), ([9] * 4, 3, 0), ([], 0, 8)])
def test_events_share_the_room_of_their_clients(sizes: list[int], room: int, most: int) -> None:
    assert clients_to_keep(sizes, room) == most
