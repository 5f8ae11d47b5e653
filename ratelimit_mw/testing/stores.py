"""``StoreCompliance``: proves a store against the contract of ``Store``, through its blocking and awaitable methods."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .answers import same
from .handles import AsyncHandle, Handle
from .model import play
from .store_deciding import DecidingTests
from .store_lasting import LastingTests
from .suite import CLIENT, COUNTS_REJECTED, DAY, NOW, WAYS, Spec, hits_of, label, limit_of, look, one

__all__ = ["StoreCompliance", "StoreSmoke"]


class StoreCompliance(DecidingTests, LastingTests):
    """Subclass it in a test module of pytest, under a name that starts with ``Test``:

        class TestMyStore(StoreCompliance):
            def make_store(self):
                return MyStore()

    Everything is tried through ``apply``, ``correct``, ``forget``, and again through ``aapply``, ``acorrect``,
    ``aforget`` on an event loop. Each test closes the stores that it made, and uses keys that no other test uses, so
    a store may stand on a server that is kept running. Fixtures of yours that have to be ready before ``make_store``
    are ``autouse``. Times are given wherever the contract allows it; only what is about the store's own clock lets
    time pass, by ``wait``.

    ``algorithms`` are those that the store is tried with: all that are built in. ``keeps_no_time`` names those of
    them whose keys keep no last time there, so that a clock may not go back; the documentation of a store says so.
    """

    def test_every_answer_is_that_of_the_pure_function(self, way: str, spec: Spec) -> None:
        """Random traces of hits, peeks, corrections and forgetting, also with a clock that goes back: all equal."""
        quotas = ("5/minute", "200/hour", "3/second", "7/10s")
        with self.opened(way) as store:
            for seed, quota in enumerate(quotas):
                limits = [limit_of(quota, spec), limit_of("9/minute", spec, shadow=seed % 2 == 1)]
                play(store, limits, NOW, 60, seed, self.goes_back([spec]))

    def test_the_largest_numbers_are_exact(self, way: str, spec: Spec) -> None:
        """Amounts up to 10**12 and periods up to 366 days; 10,000 for a log."""
        log = label(spec).startswith("sliding-window-log")
        with self.opened(way) as store:
            for seed, quota in enumerate(("9999/366d", "10000/day") if log else ("1000000000000/366d", "200000/day")):
                play(store, [limit_of(quota, spec)], NOW, 40, seed, self.goes_back([spec]))

    def test_all_algorithms_in_one_request(self, way: str) -> None:
        """All or nothing holds across different kinds of state."""
        limits = [limit_of("6/minute", spec) for spec in self.algorithms]
        with self.opened(way) as store:
            for seed in range(3):
                play(store, limits, NOW + seed * DAY, 40, seed, self.goes_back(self.algorithms))

    def test_a_race_on_one_key_is_exact(self, way: str, spec: Spec) -> None:
        """Of 400 requests at the same time exactly the limit of 50 pass."""
        limit = limit_of("50/minute", spec)
        with self.opened(way) as store:
            passed = [d for (d,) in store.together([hits_of(limit)] * 400, NOW) if d.allowed]
            same(len(passed), 50, "requests that passed")
            same(one(store, limit, NOW).allowed, False, "one more")

    def test_a_race_on_two_keys_is_all_or_nothing(self, way: str, spec: Spec) -> None:
        """What passed is counted under both keys, and what was rejected under neither."""
        wide, narrow = limit_of("100/minute", "sliding-window-log"), limit_of("20/minute", spec)
        with self.opened(way) as store:
            requests = [hits_of(wide, narrow), hits_of(narrow, wide)] * 60
            passed = sum(all(d.allowed for d in decisions) for decisions in store.together(requests, NOW))
            same(passed <= 20, True, f"{passed} passed a limit of 20")
            same(look(store, wide).remaining, 100 - passed, f"what is left of 100 after {passed} passed")
            left = look(store, narrow).remaining
            # A rejection that counts may have been by a hit that was given back afterwards.
            least = 0 if spec == COUNTS_REJECTED else 20 - passed
            same(least <= left <= 20 - passed, True, f"{left} left of 20 after {passed} passed")

    def test_a_race_of_two_handles_is_exact(self, way: str, spec: Spec) -> None:
        """Two workers at the same time let no more pass than one, and neither fails for the other."""
        limit = limit_of("100/minute", spec)
        store = self.make_store()
        handles = [WAYS[way](store), WAYS[way](self.make_second(store))]
        try:
            with ThreadPoolExecutor(len(handles)) as pool:
                answered = list(pool.map(lambda handle: handle.together([hits_of(limit)] * 100, NOW), handles))
            passed = [d for decisions in answered for (d,) in decisions if d.allowed]
            same(len(passed), 100, "requests that passed, of 100 by each handle")
            same([one(handle, limit, NOW).allowed for handle in handles], [False, False], "one more by each")
        finally:
            for handle in handles[::-1]:
                handle.close()

    def test_two_handles_share_their_state(self, way: str, spec: Spec) -> None:
        """What one worker counts, the next one sees, whichever methods each of them uses."""
        limit = limit_of("10/minute", spec)
        store = self.make_store()
        second = self.make_second(store)
        mine, *others = handles = [WAYS[way](store), Handle(second), AsyncHandle(second)]
        try:
            left = [one(handle, limit, NOW).remaining for handle in (mine, *others, mine, *others)]
            same(left, [9, 8, 7, 6, 5, 4], "counted by turns")
            others[1].forget([limit.prefix + CLIENT])
            same(look(mine, limit).remaining, 10, "forgotten by another handle")
        finally:
            for handle in handles[::-1]:
                handle.close()


class StoreSmoke(StoreCompliance):
    """Run each test of `StoreCompliance` once, about 30 tests in place of 400.

    Use it for a small question about a store that passes `StoreCompliance` elsewhere: another server version,
    another topology, a user with few rights. The tests take turns: every second one uses the awaitable methods, and
    each takes the next of ``algorithms``.

    Example:
        class TestOldServer(StoreSmoke):
            def make_store(self):
                return MyStore("old-server:1234")
    """

    def pytest_generate_tests(self, metafunc: Any) -> None:
        turn = sorted(name for name in dir(type(self)) if name.startswith("test_")).index(metafunc.function.__name__)
        metafunc.parametrize("way", [list(WAYS)[turn % len(WAYS)]])
        if "spec" in metafunc.fixturenames:
            metafunc.parametrize("spec", [self.algorithms[turn % len(self.algorithms)]], ids=label)
