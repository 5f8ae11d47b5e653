"""The statements of managed-redis.md: its URLs, evictions by policy, and shards behind one endpoint."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import redis
from folders import page_of
from redis_handles import PATIENT, client
from servers import HOST, redis_running, wait_for

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import check_store_url

PAGE = page_of("managed-redis").read_text()
TABLE = PAGE.partition("\n\n## ")[0]
URLS = re.findall(r"`(rediss?(?:\+cluster)?://[^`]*[^`/])`", TABLE)
OTHER_KEYS = 20_000  # of about 100 bytes, in a server of 2 MB


@contextmanager
def patient_limiter(url: str, *rules: Rule) -> Iterator[Limiter]:
    """A limiter that rejects without the store, and asks the store for every request."""
    settings = Settings(on_store_error="deny", store_timeout=PATIENT / 1e6, rejection_cache=0)
    with closing(Limiter(rules or [Rule(name="daily", limits="2/day")], url, settings=settings)) as limiter:
        yield limiter


@contextmanager
def full_server(folder: Path, policy: str) -> Iterator[tuple[Limiter, redis.Redis]]:
    """A limiter on a server of 2 MB, and a client that can fill the server."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_running(folder, "--maxmemory", "2mb", "--maxmemory-policy", policy))
        limiter = stack.enter_context(patient_limiter(f"redis://{HOST}:{server.port}"))
        yield limiter, stack.enter_context(client(server))


def fill(handle: redis.Redis) -> None:
    """Write the keys of another program. Without eviction, the server rejects them when it is full."""
    with handle.pipeline(transaction=False) as pipeline:
        for i in range(OTHER_KEYS):
            pipeline.set(f"other:{i}", "x" * 100, ex=60)
        pipeline.execute(raise_on_error=False)


def test_every_service_has_a_valid_url() -> None:
    """Endpoints, ports, options and prefixes are parsed as the store will use them."""
    for url in URLS:
        check_store_url(url)
    rows = [row for row in TABLE.splitlines() if row.startswith("| ")][1:]
    assert rows
    assert all(any(url in row for url in URLS) for row in rows)


@pytest.mark.slow
def test_a_full_server_that_evicts_by_expiry_keeps_daily_quotas(tmp_path: Path) -> None:
    """Other keys fill the memory several times, and they expire sooner."""
    with full_server(tmp_path, "volatile-ttl") as (limiter, handle):
        assert [limiter.hit({"ip": "192.0.2.7"}).allowed for _ in range(3)] == [True, True, False]
        fill(handle)
        assert not limiter.hit({"ip": "192.0.2.7"}).allowed


@pytest.mark.slow
def test_a_full_server_without_eviction_keeps_rejecting(tmp_path: Path) -> None:
    """The key stays. A new client cannot be written, and on_store_error rejects it."""
    with full_server(tmp_path, "noeviction") as (limiter, handle):
        assert [limiter.hit({"ip": "192.0.2.7"}).allowed for _ in range(3)] == [True, True, False]
        fill(handle)
        handle.config_set("maxmemory", "1mb")  # certainly less than it holds
        known, new = limiter.hit({"ip": "192.0.2.7"}), limiter.hit({"ip": "192.0.2.8"})
        assert (known.allowed, known.unavailable) == (False, False)
        assert (new.allowed, new.unavailable) == (False, True)


@pytest.mark.slow
def test_one_prefix_serves_shards_behind_one_endpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that insists on one slot rejects keys of two features. With a tag in the prefix, it decides them."""
    with redis_running(tmp_path, "--cluster-enabled", "yes") as server, client(server) as handle:
        handle.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        wait_for(lambda: handle.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "the cluster")
        rules = [Rule(name="address", limits="2/day", key=["ip"]), Rule(name="account", limits="2/day", key=["user"])]
        features = {"ip": "192.0.2.7", "user": "ann"}
        with patient_limiter(f"redis://{HOST}:{server.port}", *rules) as limiter:
            assert all(limiter.hit(features).unavailable for _ in range(4))
        assert "Keys in request don't hash to the same slot" in caplog.text
        with patient_limiter(f"redis://{HOST}:{server.port}?prefix={{rl}}:", *rules) as limiter:
            verdicts = [limiter.hit(features) for _ in range(3)]
    assert [(verdict.allowed, verdict.unavailable) for verdict in verdicts] == [(True, False)] * 2 + [(False, False)]
