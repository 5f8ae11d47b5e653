"""Stores by address: what cannot be meant is rejected, and whose clock counts."""

import itertools
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
from libraries import load_without
from tables import expect_error

from ratelimit_mw import ConfigError, Limiter, Rule, stores
from ratelimit_mw.clock import SECOND, now_us
from ratelimit_mw.errors import MissingExtraError
from ratelimit_mw.stores import LmdbStore, MemcachedStore, MemoryStore, PostgresStore, RedisStore, open_store
from ratelimit_mw.testing import ManualClock

MISTAKES = {
    "memory://host": "memory:// has no host and no path",
    "memory:///path": "memory:// has no host and no path",
    "memory://?max_keys=": "max_keys must be a whole number of at least 1, got ''",
    "memory://?max_keys=-1": "max_keys must be a whole number of at least 1, got '-1'",
    "memory://?max_keys=\u0663": "max_keys must be a whole number",
    "memory://?max_keys=" + "9" * 5000: "max_keys must be a whole number of at least 1, got '999",
    "memory://?max_keys=1&max_keys=2": "memory:// has the option 'max_keys' twice",
    "memory://?snapshot=": "snapshot must be a file in an existing folder, got '.'",
    "memory://?snapshot=/no/such/folder/file": "got '/no/such/folder/file'",
    "redis:/\n/ann:h1dden@[a": "a store URL starts with a scheme",
    "//ann:h1dden@ca\u2100che/x://y": "cannot parse the store URL: its login or its host is malformed",
    "redis://[": "expected servers such as",
    "memory://?max_keys=0": "max_keys must be a whole number of at least 1, got '0'",
    "Memory://?maxkeys=1": "memory:// has no option 'maxkeys'. Its options are max_keys",
    "nothing://": "unknown scheme 'nothing' of a store URL. Expected one of memory, lmdb, redis",
    "": "starts with a scheme and ://",
    "reddis://h": "unknown scheme 'reddis' of a store URL. Did you mean 'redis'?",
    "memcached://h:99999": "NAME:PORT",
    "memcached+unix://h/run/memcached.sock": r"needs the path of a socket. Write memcached\+unix:///run/memcached.sock",
    "memcached+unix://": "needs the path of a socket",
    "redis:h:99999": "starts with a scheme and ://, for example redis://cache:6379/0",
    "redis://a,b": "one host",
    "redis://h1dden@a:port": "NAME:PORT",
    "redis://:h1dden@a:0": "NAME:PORT",
    "redis://:h1dden@a:99999": "NAME:PORT, with ports up to 65535",
    "redis://:h1dden@a/zero": "number of a database",
    "redis://:h1dden@a?colour=red": "no option 'colour'",
    "redis://:h1dden@a/2?db=1": "does not take db: the path names a database",
    "redis+cluster://:h1dden@a?db=1": "a cluster has one database",
    "redis://:h1dden@a?password=h1dden": "does not take password: write the login before the host",
    "redis://:h1dden@a?protocol=3": "no option 'protocol'",
    "redis://:h1dden@a?ssl_ca_certs=/ca.pem": "TLS needs rediss://",
    "redis://a?prefix=half&h1dden": "no option of this name",
    "redis+sentinel://a/mymaster?passwort=h1dden": "no option 'passwort'",
    "redis://a?sentinel_password=h1dden": "redis\\+sentinel://",
    "unix://:h1dden@host/run/redis.sock": "path of a socket",
    "unix://": "path of a socket",
    "unix:///run/redis.sock?db=one": "number of a database",
    "redis+sentinel://:h1dden@a,b": "name of a service",
    "redis+cluster://:h1dden@a/1": "has no path",
    "lmdb://host/var/lib/app": "absolute path",
    "lmdb:var/lib/app": "starts with a scheme and ://",
    "lmdb://": "absolute path",
    "lmdb:///a%00b": "absolute path",
    "lmdb:///var/lib/app#1": "has # .* within .* its path",
    "lmdb:///tmp/x?size=much": "option size: expected bytes .*; got 'much'",
    "lmdb:///tmp/x?size=1.5GiB": "option size: expected bytes .*; got '1.5GiB'",
    "lmdb:///tmp/x?size=1MiB": "option size: .* at least 4 MiB; got 1048576",
    "lmdb:///tmp/x?sise=1GiB": "no option 'sise'",
    "memcached://h1/0": "has no path",
    "memcached://h1?pool=3": "has no option 'pool'. Its options are prefix",
    "memcached://h1?prefix=a%20b": "expected a prefix of 1 to 50 printable ASCII characters",
    "memcached://h1?prefix=" + "x" * 51: "expected a prefix of 1 to 50 printable ASCII characters",
    "memcached://": "expected servers such as",
    "memcached://app:h1dden@h1": "memcached:// has no login",
    "memcacheds://:h1dden@h1": "memcacheds:// has no login",
    "memcached+unix://app:h1dden@/run/memcached.sock": "has no login",
    "memcached://app:h1dden/x@h1": "has # .* within its login",
    "memcached://app:h1dden#x@h1": "has # .* within its login",
    "memcached://h 1": "expected servers such as",
    "postgresql://db/shop?table=a;b": "Write them as %23",
    "postgresql://db/shop?table=Shop": "option table: expected a name of small letters",
    "postgresql://db/shop?sslmode=on": "sslmode is one of disable",
    "postgresql://db/shop?host=/run": "and no server before the path",
    "postgresql://db/shop?target_session_attrs=primry": "target_session_attrs is one of any, read-write",
    "postgresql:///shop?host=db1,db2": "option host: expected the folder of a Unix socket",
    "postgresql://app:h1dd%00en@db/shop": "has %00 in its login, its path or an option",
    "postgresql://db/shop?application_name=a%00": "has %00 in its login, its path or an option",
    "postgresql://a b/shop": "expected servers such as",
    "postgresql://db/shop?prefix=a": "has no option 'prefix'. Its options are table, host, sslmode",
}


def test_an_invalid_store_url_is_an_error() -> None:
    """Scheme, options and values are checked, before any file is opened. No message has a part of a password."""
    for url, message in MISTAKES.items():
        assert not any(part in expect_error(message, open_store, url) for part in ("h1d", "dden")), url


@pytest.mark.parametrize(("address", "library"), [("lmdb:///tmp/nowhere", "lmdb"), ("redis://", "hiredis")])
def test_a_missing_library_names_its_extra(address: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it, for a URL and for the class of the store."""
    scheme = address.partition(":")[0]
    load_without(monkeypatch, f"ratelimit_mw.stores.{scheme}", library)
    for use in (partial(open_store, address), partial(getattr, stores, f"{scheme.title()}Store")):
        with pytest.raises(MissingExtraError, match=rf'pip install "ratelimit-mw\[{scheme}\]"'):
            use()


def test_an_invalid_max_keys_is_an_error() -> None:
    """max_keys is a whole number of at least 1."""
    wrong: list[Any] = [0, -1, 1.5, True, "9"]
    for max_keys in wrong:
        with pytest.raises(ConfigError, match="max_keys must be a whole number of at least 1"):
            MemoryStore(max_keys)


def test_the_clock_of_the_store_counts_by_default() -> None:
    """By default it is the real time in microseconds."""
    clock = ManualClock(1_000_000.0)
    rate = Limiter([Rule(limits="1/minute", key=[])], store=MemoryStore(clock=clock))
    verdict = rate.hit({})
    assert verdict.decisions[0].at == 1_000_000.0
    rate.refund(verdict)
    assert rate.hit({}).allowed
    before = now_us()
    default = Limiter([Rule(limits="1/minute; 2/hour", key=[])]).hit({}).decisions[0]
    assert before <= default.at_us <= before + 60 * SECOND
    assert open_store("memory://?max_keys=5").apply([]) == []


def test_a_store_has_a_name_without_secrets() -> None:
    """The name is in the repr and in the log."""
    named = redis.Redis(host="cache", port=7000, db=2, username="ann", password="secret")
    primary = redis.Sentinel([("cache", 26379)]).master_for("mymaster", password="secret")
    names = {
        "<RedisStore redis://cache:7000/2>": RedisStore(client=named),
        "<RedisStore redis://cache:6379/0>": RedisStore(aclient=redis.asyncio.Redis(host="cache")),
        "<RedisStore unix:///redis.sock>": RedisStore(client=redis.from_url("unix:///redis.sock")),
        "<RedisStore redis+sentinel://mymaster>": RedisStore(client=primary),
        "<MemoryStore memory://>": MemoryStore(),
        "<LmdbStore lmdb:///tmp/limits>": LmdbStore("/tmp/limits"),
        "<RedisStore redis://h:7/1>": RedisStore("redis://app:secret@h:7/1?prefix=secret"),
        "<RedisStore redis://localhost:6379/0>": RedisStore(client=redis.Redis(password="secret")),
        "<MemcachedStore memcached://a:1,b>": MemcachedStore("memcached://a:1,b?prefix=secret"),
        "<MemcachedStore memcacheds://a:1,b>": open_store("memcacheds://a:1,b?prefix=secret"),
        "<PostgresStore postgresql://db/shop>": PostgresStore("postgresql://app:secret@db/shop"),
        "<RedisStore redis+sentinel://h1,h2/main>": open_store("redis+sentinel://:secret@h1,h2/main"),
    }
    assert [repr(store) for store in names.values()] == list(names)


# What stands between two halves of a password that is not escaped: in a login, after the port, in an option, and in an
# option that is joined to the next one.
PLACES = [
    "{}://app:h1d{}den@host:1",
    "{}://:1{}h1dden@host/main",
    "{}://app:1{}prefix=h1dden@host",
    "{}://app:1/main{}h1dden@host",
    "{}://app/main?password=h1d{}den&prefix={}",
    "{}://app?protocol=2{}password=h1dden",
    "{}:///path?size=1GiB{}password=h1dden",
    "{}://?max_keys=5{}password=h1dden",
    "{}:h1d{}den@host",
]
SCHEMES = ["redis", "rediss+cluster", "redis+sentinel", "unix", "memcached", "memcached+unix"]
SCHEMES += ["postgresql", "lmdb", "memory", "other"]


def test_no_part_of_a_password_shows() -> None:
    """Neither an error nor a name has a part of a password with a character that is not escaped."""
    for place, scheme, character in itertools.product(PLACES, SCHEMES, "#?/@&;=:%"):
        address = place.format(scheme, character, character)
        try:
            store = open_store(address)
        except ConfigError as error:
            shown = str(error)
        else:
            shown = f"{store!r} {store.name}"
            store.close()
        assert not any(part in shown for part in ("h1d", "den")), address


def test_characters_that_are_no_mistake() -> None:
    """An empty fragment or path, the padding of base64, an @ in a file path, and a short prefix."""
    for address in (
        "redis://h/0#",
        "redis://h?prefix=Zm9vYg==",
        "unix:///run/a@b",
        "lmdb:///a@b",
        "memcached+unix:///a@b",
        "memcached://h/?prefix=p",
    ):
        open_store(address).close()


def test_an_unknown_option_lists_the_options_of_its_scheme() -> None:
    """A scheme without TLS takes no options for TLS, and only a sentinel URL takes a login for sentinels."""
    for scheme in ("memcached", "memcacheds", "memcached+unix", "redis", "rediss", "redis+sentinel", "rediss+cluster"):
        with pytest.raises(ConfigError, match="has no option 'timeout'") as caught:
            open_store(f"{scheme}://h?timeout=5")
        listed = str(caught.value).partition("Its options are ")[2].split(", ")
        assert "prefix" in listed
        assert ("ssl_certfile" in listed) == scheme.startswith(("rediss", "memcacheds")), scheme
        assert ("sentinel_password" in listed) == scheme.endswith("+sentinel"), scheme
