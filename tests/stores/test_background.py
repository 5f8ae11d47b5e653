"""Work in the background: one thread for several callers, and corrections that are tried again until they are made."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from servers import wait_for

from ratelimit_mw import Quota, StoreError
from ratelimit_mw.algorithms import build_limit
from ratelimit_mw.decision import Charge, Correction
from ratelimit_mw.runtime.blocking import run_once
from ratelimit_mw.stores import calls, open_store
from ratelimit_mw.stores.calls import UnmadeCorrections

RATE, SLOTS = (build_limit("api", 0, Quota.parse(quota), "gcra") for quota in ("5/minute", "5 concurrent"))
REFUND, SLOT = (Correction(limit, f"{limit.prefix}a", 1, Charge(1, 1)) for limit in (RATE, SLOTS))


class Contested:
    """A store in which other clients are faster. ``outcome`` returns the corrections that they have prevented."""

    def __init__(self, outcome: Callable[[Sequence[Correction]], Sequence[Correction]]) -> None:
        self.outcome, self.now = outcome, 0.0
        self.tries: list[tuple[float, Sequence[Correction]]] = []
        self.unmade = UnmadeCorrections(self.correct)

    def correct(self, changes: Sequence[Correction], now: int | None) -> Sequence[Correction]:
        assert now == 7
        self.tries.append((self.now, changes))
        return self.outcome(changes)


def test_a_correction_is_given_up_after_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then each beat tries it again. The log says so."""
    store = Contested(lambda changes: changes)
    monkeypatch.setattr(calls, "monotonic", lambda: store.now)
    store.unmade.keep([REFUND, SLOT], 7)
    store.now = 59.9
    wait_for(lambda: [now for now, _ in store.tries].count(59.9) > 1, "two tries")
    store.now = 60.1
    wait_for(lambda: caplog.messages, "the end")
    assert not len(store.unmade)
    assert caplog.text.count("2 corrections were not made, because the store was busy or unreachable") == 1
    store.unmade.close()


def test_what_is_made_is_not_made_again() -> None:
    """Each try has the corrections that are left, in their order."""
    left = iter([[SLOT], []])
    store = Contested(lambda changes: next(left))
    store.unmade.keep([REFUND, SLOT], 7)
    wait_for(lambda: not len(store.unmade), "the end")
    assert [changes for _, changes in store.tries] == [[REFUND, SLOT], [SLOT]]


@pytest.mark.slow
def test_the_number_of_corrections_is_bounded(
    no_threads: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 10,000 calls are kept, and the log has the others. Closing gives up what does not fit into a second."""
    store = Contested(lambda changes: [])
    monkeypatch.setattr(calls, "monotonic", lambda: store.now)
    for _ in range(10_002):
        store.unmade.keep([REFUND], 7)
    store.unmade.keep([], 7)
    assert len(store.unmade) == 10_000

    def take(changes: Sequence[Correction]) -> Sequence[Correction]:
        store.now += 0.3
        return []

    store.outcome = take
    store.unmade.close()
    assert len(store.tries) == 4
    assert [int(message.partition(" ")[0]) for message in caplog.messages if "were not made" in message] == [2, 9996]


def test_two_threads_that_try_at_once_make_each_correction_once(caplog: pytest.LogCaptureFixture) -> None:
    """A beat and ``close`` may meet. Each call is taken by one of them, and neither fails."""

    def make(changes: Sequence[Correction]) -> Sequence[Correction]:
        if len(store.tries) == 1:
            store.unmade.close()
        return []

    store = Contested(make)
    for _ in range(3):
        store.unmade.keep([REFUND], 7)
    thread: Any = store.unmade._heartbeat._thread
    wait_for(lambda: not thread.is_alive(), "the end of the thread")
    assert (len(store.tries), caplog.messages) == (3, [])


# -- work for several callers ----------------------------------------------------------------------------------------


def test_work_whose_thread_cannot_start_fails_and_may_be_tried_again(no_threads: pytest.MonkeyPatch) -> None:
    """A failed start keeps no later caller waiting."""
    for _ in range(2):
        with pytest.raises(OSError, match="can't start new thread"):
            run_once("name", int).result(0)
    no_threads.undo()
    assert run_once("name", int).result(5) == 0


def test_each_error_of_the_work_reaches_its_callers() -> None:
    """SystemExit too, which ends only the thread."""
    with pytest.raises(SystemExit):
        run_once("exit", sys.exit).result(5)


@pytest.mark.parametrize("url", ["redis://cache.invalid", "memcached://cache.invalid"])
def test_a_lookup_without_a_thread_is_a_store_error(no_threads: pytest.MonkeyPatch, url: str) -> None:
    """A limiter applies ``on_store_error`` to it."""
    store = open_store(url, 5_000_000)
    for _ in range(2):
        with pytest.raises(StoreError, match="can't start new thread"):
            store.ping()
    store.close()
