"""The compliance suites that are shipped for users, and the vectors, on everything that is built in."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from memcached_handles import address, check_rounded
from redis_handles import NOW
from servers import Server, memcached_running
from store_urls import PATIENT, URLS
from vectors import CASES, Case, ThroughStore, replay

from ratelimit_mw import Decision, Quota
from ratelimit_mw.algorithms import Algorithm, build
from ratelimit_mw.stores import LmdbStore, MemcachedStore, MemoryStore, Store, open_store
from ratelimit_mw.stores.memcached.tiers import tiers
from ratelimit_mw.testing import AlgorithmCompliance, ManualClock, StoreCompliance
from ratelimit_mw.testing.store_suite import COUNTS_REJECTED, WAYS

FEW = StoreCompliance.algorithms[1::3]
MANY = ("1/second", "5/minute", "7/10s", "9999/day", "1000000000000/366d")
BURSTS = (*MANY, "100/minute burst 20", "3/7s burst 1", "1/day burst 1000000000000")

SUITES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "FixedWindow": ("fixed-window", MANY),
    "SlidingWindowLog": ("sliding-window-log", AlgorithmCompliance.quotas),
    "RejectionCountingLog": (COUNTS_REJECTED, AlgorithmCompliance.quotas),
    "SlidingWindowCounter": ("sliding-window-counter", MANY),
    "TieredWindow": ("tiered-window", MANY),
    "TieredWindowOfAFewBuckets": (
        {"name": "tiered-window", "precision": "250ms"},
        ("1/second", "7/10s", "100/hour"),
    ),
    "TokenBucket": ("token-bucket", BURSTS),
    "IntervalTokenBucket": ({"name": "token-bucket", "refill": "interval"}, BURSTS),
    "LeakyBucket": ("leaky-bucket", BURSTS),
    "LeakyBucketQueue": ({"name": "leaky-bucket", "mode": "queue"}, BURSTS),
    "Gcra": ("gcra", BURSTS),
}


def suite_of(name: str, spec: Any, quotas: tuple[str, ...]) -> type[AlgorithmCompliance]:
    def make(self: AlgorithmCompliance, quota: Quota) -> Algorithm:
        return build(spec, quota)

    values = {"make": make, "quotas": quotas, "counts_rejected": spec is COUNTS_REJECTED}
    return type(f"Test{name}", (AlgorithmCompliance,), values)


globals().update({f"Test{name}": suite_of(name, *values) for name, values in SUITES.items()})


class TestMemoryStore(StoreCompliance):
    def make_store(self) -> Store:
        return MemoryStore()


class TestLmdbStore(StoreCompliance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.numbers = itertools.count()
        self.clock = ManualClock(NOW / 1e6)

    def open_at(self, path: str) -> Store:
        return LmdbStore(path, 64 << 20, timeout_us=PATIENT, clock=self.clock)

    def make_store(self) -> Store:
        return self.open_at(str(self.folder / str(next(self.numbers))))

    def make_second(self, store: Store) -> Store:
        assert isinstance(store, LmdbStore)
        return self.open_at(store.path)

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)


class OnServer(StoreCompliance):
    """A store whose state is in a server of the session."""

    kind: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _url(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.url = URLS[self.kind](request.getfixturevalue, tmp_path)

    def make_store(self) -> Store:
        return open_store(self.url, 60_000_000)  # no test waits for the end of the budget

    def make_second(self, store: Store) -> Store:
        return self.make_store()


@pytest.mark.slow
class TestRedisStore(OnServer):
    kind = "redis"


@pytest.mark.slow
class TestCluster(OnServer):
    """The keys of a request are in several slots."""

    kind = "cluster"
    algorithms = FEW

    def keeps_time(self, name: str) -> bool:
        return name not in ("token-bucket", "gcra", "leaky-bucket")  # a refund moves a bucket to the time of the refund


@pytest.mark.slow
class TestMemcachedStore(OnServer):
    kind = "memcached"

    def keeps_time(self, name: str) -> bool:
        return name != "tiered-window"

    def check_decisions(self, actual: Sequence[Decision], expected: Sequence[Decision], place: str) -> None:
        check_rounded(actual, expected, place)


@pytest.fixture(scope="module")
def second_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with memcached_running(tmp_path_factory.mktemp("second")) as server:
        yield server


@pytest.mark.slow
class TestTwoMemcacheds(TestMemcachedStore):
    """The keys of one request are on different servers."""

    algorithms = FEW

    @pytest.fixture(autouse=True)
    def _url(self, memcached_server: Server, second_server: Server) -> None:
        self.url = address(memcached_server, second_server)


@pytest.mark.slow
class TestPostgresStore(OnServer):
    kind = "postgres"


def is_kept(case: Case, store: Store) -> bool:
    """Whether a store keeps the limit of a case. Memcached has no log over 1,000, and no tiered window that goes back.

    Its tiered windows of several tiers have longer waits.
    """
    if not isinstance(store, MemcachedStore):
        return True
    if case["file"] == "tiered-window":
        algorithm = build(case["algorithm"], Quota.parse(case["quota"]))
        return len(tiers(algorithm.span)) == 1 and all(
            step["now"] <= later["now"] for step, later in itertools.pairwise(case["steps"])
        )
    return "log" not in case["file"] or Quota.parse(case["quota"]).amount <= 1_000


@pytest.mark.slow
@pytest.mark.parametrize("each_url", ["lmdb", "redis", "memcached", "postgres"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_the_vectors_hold_through_each_store(each_url: str, way: str) -> None:
    """Every case that was worked by hand, blocking and on an event loop."""
    with closing(WAYS[way](open_store(each_url, PATIENT))) as handle:
        cases = [case for case in CASES if is_kept(case, handle.store)]
        assert len(cases) > 0.9 * len(CASES)
        for case in cases:
            replay(case, ThroughStore(case, handle))
