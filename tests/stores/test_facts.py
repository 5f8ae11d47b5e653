"""``Store.facts``: the values of each server, or of the files, without a judgement. A part without a reply says why."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
import redis
from redis_handles import PATIENT
from servers import HOST, Server, certificates, redis_running, tls_options

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import RedisStore, Store, open_store
from ratelimit_mw.stores.base import Facts
from ratelimit_mw.stores.memcached import store as memcached_store
from ratelimit_mw.stores.redis import router


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on a busy machine may take longer to reply than facts may take."""
    for module, name in (router, "_FACTS_SECONDS"), (memcached_store, "_FACTS_SECONDS"):
        monkeypatch.setattr(module, name, 60.0)


def facts_of(url: str) -> Sequence[Facts]:
    return facts_after_a_call(open_store(url, PATIENT))


def facts_after_a_call(store: Store) -> Sequence[Facts]:
    Limiter([Rule(name="api", limits="5/minute")], store).hit({"ip": "192.0.2.7"})
    facts = list(store.facts())
    store.close()
    return facts


def test_a_redis_has_its_reply_to_info(redis_server: Server) -> None:
    """By a URL, and through a client of the application, which may decode texts."""
    client = redis.Redis(host=HOST, port=redis_server.port, decode_responses=True)
    by_client = facts_after_a_call(RedisStore(client=client, timeout_us=PATIENT))
    client.close()
    for (facts,) in (facts_of(f"redis://{HOST}:{redis_server.port}/0"), by_client):
        assert (facts.kind, facts.problem, facts.values["role"]) == ("redis", "", "master")
        assert int(facts.values["used_memory"]) > 0


@pytest.mark.slow
def test_a_redis_with_tls_has_facts(tmp_path: Path) -> None:
    """The connection for the facts has the certificates of the store. Without them, the problem says so."""
    certificates(tmp_path)
    with redis_running(tmp_path, *tls_options(tmp_path), tls=True) as server:
        url = f"rediss://{HOST}:{server.port}"
        (facts,) = facts_of(f"{url}?ssl_ca_certs={tmp_path}/cert.pem")
        assert (facts.name, facts.values["role"]) == (f"{HOST}:{server.port}", "master")
        (stranger,) = open_store(url, PATIENT).facts()
        assert "certificate verify failed" in stranger.problem


@pytest.mark.parametrize("url", [f"redis://{HOST}:1/0", f"memcached://{HOST}:1", f"redis+sentinel://{HOST}:1/shop/0"])
def test_a_server_without_a_reply_has_a_problem(url: str) -> None:
    facts = list(open_store(url).facts())
    assert all(each.problem and not each.values for each in facts)
    assert facts[0].name == f"{HOST}:1"


def test_each_memcached_has_its_statistics(memcached_server: Server) -> None:
    with closing(open_store(f"memcached://{HOST}:{memcached_server.port},{HOST}:1", PATIENT)) as store:
        known, gone = store.facts()
    assert int(known.values["limit_maxbytes"]) > 0
    assert gone.problem.endswith(f"cannot connect to {HOST}:1: Connection refused")
