"""The compliance suites that are shipped for users, on everything that is built in."""

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import Algorithm, build
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.testing import AlgorithmCompliance, StoreCompliance

MANY = (*AlgorithmCompliance.quotas, "200000/day", "1000000000000/366d")
BURSTS = (*MANY, "100/minute burst 20", "5/minute burst 5000", "3/7s burst 1", "1/day burst 1000000000000")


class TestFixedWindow(AlgorithmCompliance):
    quotas = MANY

    def make(self, quota: Quota) -> Algorithm:
        return build("fixed-window", quota)


class TestSlidingWindowLog(AlgorithmCompliance):
    def make(self, quota: Quota) -> Algorithm:
        return build("sliding-window-log", quota)


class TestRejectionCountingLog(AlgorithmCompliance):
    counts_rejected = True

    def make(self, quota: Quota) -> Algorithm:
        return build({"name": "sliding-window-log", "count_rejected": True}, quota)


class TestSlidingWindowCounter(AlgorithmCompliance):
    quotas = MANY

    def make(self, quota: Quota) -> Algorithm:
        return build("sliding-window-counter", quota)


class TestTieredWindow(AlgorithmCompliance):
    quotas = MANY

    def make(self, quota: Quota) -> Algorithm:
        return build("tiered-window", quota)


class TestTieredWindowOfAFewBuckets(AlgorithmCompliance):
    quotas = ("1/second", "7/10s", "100/hour")

    def make(self, quota: Quota) -> Algorithm:
        return build({"name": "tiered-window", "precision": "250ms"}, quota)


class TestTokenBucket(AlgorithmCompliance):
    quotas = BURSTS

    def make(self, quota: Quota) -> Algorithm:
        return build("token-bucket", quota)


class TestIntervalTokenBucket(AlgorithmCompliance):
    quotas = BURSTS

    def make(self, quota: Quota) -> Algorithm:
        return build({"name": "token-bucket", "refill": "interval"}, quota)


class TestLeakyBucket(AlgorithmCompliance):
    quotas = BURSTS

    def make(self, quota: Quota) -> Algorithm:
        return build("leaky-bucket", quota)


class TestLeakyBucketQueue(AlgorithmCompliance):
    quotas = BURSTS

    def make(self, quota: Quota) -> Algorithm:
        return build({"name": "leaky-bucket", "mode": "queue"}, quota)


class TestGcra(AlgorithmCompliance):
    quotas = BURSTS

    def make(self, quota: Quota) -> Algorithm:
        return build("gcra", quota)


class TestMemoryStore(StoreCompliance):
    def make_store(self) -> Store:
        return MemoryStore()
