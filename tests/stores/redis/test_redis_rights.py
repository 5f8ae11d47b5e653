"""The rights of a user that redis.md names: enough, and no more than that."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from folders import page_of
from redis_handles import ALGORITHMS, NOW, PATIENT, hit, limit_of
from servers import HOST, STEADY, cluster_running, redis_running

from ratelimit_mw import Quota, StoreError
from ratelimit_mw.algorithms import build_limit
from ratelimit_mw.clock import SECOND
from ratelimit_mw.decision import Charge, Correction
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.testing import ManualClock, StoreCompliance
from ratelimit_mw.traffic import TrafficLog


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a user with the very rights of redis.md."""
    with redis_running(tmp_path_factory.mktemp("rights")) as server:
        with redis.Redis(port=server.port) as admin:
            admin.execute_command("ACL SETUSER", *rights())
        yield f"redis://ratelimit:s3cret@{HOST}:{server.port}/1"


def rights(user: str = "ratelimit") -> list[str]:
    """The line of the page."""
    page = page_of("redis").read_text("utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith(f"ACL SETUSER {user} ")]
    return line.replace("PASSWORD", "s3cret").split()[2:]


@pytest.mark.slow
class TestRights(StoreCompliance):
    """The rights are enough for each clause of the contract."""

    algorithms = StoreCompliance.algorithms[1::3]

    @pytest.fixture(autouse=True)
    def _server(self, limited: str) -> None:
        self.url = limited

    def make_store(self) -> Store:
        return open_store(self.url, PATIENT)


@pytest.mark.slow
def test_the_rights_are_enough_for_the_rest(limited: str) -> None:
    """Pings, slots and lists of keys too; keys of others are not to be had."""
    store, slots = open_store(limited, PATIENT), build_limit("slots", 0, Quota.parse("2 concurrent"), "fixed-window")
    store.ping()
    assert store.list_keys("1|nothing|").keys == []
    taken = store.apply([hit(slots)])[0]
    store.correct([Correction(slots, hit(slots).key, 0, Charge(taken.at_us, 1))])
    store.correct([Correction(slots, hit(slots).key, 1, Charge(taken.at_us, 1))])
    store.close()
    other = open_store(f"{limited}?prefix=app:", PATIENT)
    with pytest.raises(StoreError, match="NOPERM"):
        other.ping()
    with pytest.raises(StoreError, match="NOPERM"):
        other.apply([hit(slots)])
    other.close()


def use_log(url: str) -> None:
    """Call every method of a traffic log. One with many events and clients calls all commands."""
    log = TrafficLog(url, "1h:7d", ManualClock(NOW / SECOND))
    at = NOW // SECOND
    for i in range(2_100):
        log.record("a", f"client {i}")
    log.flush()
    log.record("a", "client 1", 9)
    for i in range(10_000):
        log.record(f"event {i}")
    log.flush()
    assert log.total("a", at, at) == 2_109
    assert log.total("other", at, at) == 1
    assert log.total("a", at, at, by="client 1") == 10
    assert log.top("a", at, at).complete_from == 2
    assert abs(log.distinct("a", at, at) - 2_100) < 100
    assert log.events(at, at)["a"] == 2_109
    log.close()


@pytest.mark.slow
def test_the_rights_are_enough_for_a_traffic_log(limited: str) -> None:
    """The user of the limits needs them, too, to have a log."""
    with redis.Redis.from_url(limited.replace("ratelimit:s3cret@", "")) as admin:
        admin.execute_command("ACL SETUSER", *rights("traffic"))
    use_log(limited.replace("ratelimit:", "traffic:"))
    with pytest.raises(StoreError, match=r"docs/reference/stores/redis\.md lists the permissions"):
        TrafficLog(limited, "1h:7d").events(0, 1)


@pytest.mark.thorough
def test_on_a_cluster_two_more_are_enough(tmp_path: Path) -> None:
    """To read the map, and to follow a slot that moves; hits, corrections and pings in several slots."""
    with cluster_running(tmp_path, *STEADY, "--user", *rights(), "+cluster|slots", "+asking") as nodes:
        store = open_store(f"redis+cluster://ratelimit:s3cret@{HOST}:{nodes[0].port}", PATIENT)
        hits = [hit(limit_of("5/hour", spec)) for spec in ALGORITHMS]
        assert all(decision.remaining == 4 for decision in store.apply(hits))
        store.correct([Correction(one.limit, one.key, 1, None) for one in hits])
        store.ping()
        store.forget(one.key for one in hits)
        assert all(decision.remaining == 4 for decision in store.apply(hits))
        store.close()
