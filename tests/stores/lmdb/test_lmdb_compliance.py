"""The LMDB store against the compliance suite, the named vectors, and the memory store on random traffic."""

import itertools
import random
from pathlib import Path

import pytest
from traces import SPECS
from vectors import CASES, ThroughStore, replay

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import build_limit
from ratelimit_mw.clock import to_us
from ratelimit_mw.decision import Charge, Correction, Hit
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.stores.lmdb.store import LmdbStore
from ratelimit_mw.testing import ManualClock, StoreCompliance
from ratelimit_mw.testing.store_suite import WAYS

NOW = 1_767_268_820_500_000
SIZE = 64 << 20
PATIENT = 10_000_000


class TestLmdbStore(StoreCompliance):
    largest_log = 5_000

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.numbers = itertools.count()
        self.clock = ManualClock(NOW / 1e6)

    def make_store(self) -> Store:
        return LmdbStore(str(self.folder / str(next(self.numbers))), SIZE, timeout_us=PATIENT, clock=self.clock)

    def make_second(self, store: Store) -> Store:
        assert isinstance(store, LmdbStore)
        return LmdbStore(store.path, SIZE, timeout_us=PATIENT, clock=self.clock)

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LmdbStore:
    return LmdbStore(str(tmp_path_factory.mktemp("lmdb")), SIZE, timeout_us=PATIENT)


@pytest.mark.parametrize("way", WAYS)
def test_the_vectors_hold_through_the_store(tmp_path: Path, way: str) -> None:
    """Every case that was worked by hand, blocking and on an event loop."""
    handle = WAYS[way](LmdbStore(str(tmp_path), SIZE, timeout_us=PATIENT))
    for case in CASES:
        through = ThroughStore(case, handle)
        handle.forget([through.key])
        replay(case, through)
    handle.close()


@pytest.mark.parametrize("kind", ["sliding-window-log", "concurrency"])
def test_random_traffic_is_decided_as_by_the_memory_store(kind: str, store: LmdbStore) -> None:
    """Long traces on few keys, with two limits, peeks, corrections and resets: no decision differs."""
    chance = random.Random(kind)
    memory = MemoryStore()
    quotas = ("150/20s", "400/hour") if kind in SPECS else ("40 concurrent", "60 concurrent")
    limits = [build_limit(f"{kind} {i}", 0, Quota.parse(text), SPECS.get(kind)) for i, text in enumerate(quotas)]
    refundable: list[Correction] = []
    now = NOW
    for _ in range(600):
        now += chance.choice((0, 1, 40_000, 40_000, to_us(chance.random()), -200_000))
        key = chance.choice(("a", "b", "\x00", "x" * 600))
        hits = [Hit(limit, limit.prefix + key, chance.choice((0, 1, 1, 2, 9))) for limit in limits]
        act = chance.random()
        if act < 0.8:
            consume = act > 0.05
            decisions = memory.apply(hits, now, consume)
            assert list(map(repr, store.apply(hits, now, consume))) == list(map(repr, decisions))
            if consume and all(decision.allowed for decision in decisions):
                refundable += [
                    Correction(hit.limit, hit.key, hit.cost, Charge(decision.at_us, hit.cost, decision.delay_us))
                    for hit, decision in zip(hits, decisions, strict=True)
                    if hit.cost
                ]
        elif act < 0.99:
            charge = Correction(limits[0], hits[0].key, 1, None)
            changes = [charge]
            if refundable and act < 0.97:
                changes = [refundable.pop(chance.randrange(len(refundable)))]
            assert store.correct(changes, now) == memory.correct(changes, now)
        else:
            memory.forget([hits[0].key])
            store.forget([hits[0].key])
