"""URLs of a Redis: their parts, their mistakes, and no password in any text."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis_handles import PATIENT, hit, limit_of
from servers import HOST, redis_running

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.redis.address import Address
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.stores.url import check_store_url

MEANINGS: dict[str, dict[str, Any]] = {
    "redis://": {"hosts": (("localhost", 6379),)},
    "redis://example.com/3": {"hosts": (("example.com", 6379),), "db": 3},
    "valkey://example.com:7000": {"hosts": (("example.com", 7000),)},
    "redis://[::1]:7000/1": {"hosts": (("::1", 7000),), "db": 1},
    "redis://[::1]": {"hosts": (("::1", 6379),)},
    "redis://:pa%3Ass%40@example.com": {"hosts": (("example.com", 6379),), "password": "pa:ss@"},
    "redis://ann:secret@example.com": {"hosts": (("example.com", 6379),), "username": "ann", "password": "secret"},
    "rediss://example.com": {"hosts": (("example.com", 6379),)},
    "unix:///run/redis.sock": {"hosts": (("/run/redis.sock", 0),)},
    "unix://ann:secret@/run/redis.sock": {"hosts": (("/run/redis.sock", 0),), "username": "ann", "password": "secret"},
    "redis+sentinel://a,b:26380/mymaster/2": {"hosts": (("a", 26379), ("b", 26380)), "service": "mymaster", "db": 2},
    "redis+sentinel://a,[::1]:2,[::2]/mymaster": {
        "hosts": (("a", 26379), ("::1", 2), ("::2", 26379)),
        "service": "mymaster",
    },
    "redis://:pa[ss@a\n": {"hosts": (("a", 6379),), "password": "pa[ss"},
    "redis+cluster://:secret@a:7000,b:7001": {
        "hosts": (("a", 7000), ("b", 7001)),
        "cluster": True,
        "password": "secret",
    },
}


def test_parts_of_a_url() -> None:
    """A URL gives hosts, ports, database, path, service and login."""
    for address, parts in MEANINGS.items():
        assert check_store_url(address)[1] == Address(**parts), address


def test_a_remap_that_cannot_be_used_is_rejected() -> None:
    """It is for servers that announce others."""
    for url in ("redis://a", "unix:///a"):
        with pytest.raises(ConfigError, match="remap: needs a URL"):
            RedisStore(url, remap=lambda announced: announced)


def test_no_text_of_a_store_shows_its_password() -> None:
    """No repr of the address, the store, its attributes or its limiter shows the password."""
    store = open_store("redis://ann:h1dden@example.com/0")
    assert isinstance(store, RedisStore)
    limiter = Limiter([Rule(name="api", limits="5/minute")], store=store)
    assert not any("h1dden" in repr(thing) for thing in (store, vars(store), limiter))
    limiter = Limiter.from_settings({"store": "redis+sentinel://:h1dden@a/b?sentinel_password=h1dden"})
    assert not any("h1dden" in repr(thing) for thing in (limiter, vars(limiter), limiter.settings))


@pytest.mark.slow
def test_a_socket_in_the_file_system(tmp_path: Path) -> None:
    """``unix://`` with a database, and its alias of Celery, where a store on TCP finds the same state.

    Redis listens on TCP before it makes the socket. Its first reply over TCP shows that the socket accepts calls.
    """
    limit, path = limit_of("5/minute"), tmp_path / "redis.sock"
    with redis_running(tmp_path, "--unixsocket", str(path)) as server:
        for number, url in enumerate(
            (f"valkey://{HOST}:{server.port}/2", f"unix://{path}?db=2", f"redis+socket://{path}?db=2")
        ):
            with closing(open_store(url, PATIENT)) as store:
                assert store.apply([hit(limit)])[0].remaining == 4 - number
