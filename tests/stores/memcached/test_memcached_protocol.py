"""The parts of the Memcached store that do no I/O: addresses, names, expiry, commands and answers, tiers."""

import gc
import time
from collections.abc import Awaitable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memcached_handles import LEGAL

from ratelimit_mw import ConfigError
from ratelimit_mw.clock import SECOND
from ratelimit_mw.runtime.blocking import run_blocking
from ratelimit_mw.stores.bytecall import DAY
from ratelimit_mw.stores.drivers import ThreadDriver
from ratelimit_mw.stores.memcached.address import read_servers
from ratelimit_mw.stores.memcached.connections import KeyCommands, MemcachedConnections, Rendezvous
from ratelimit_mw.stores.memcached.protocol import KeyNames, ReplyReader, StoredValue, expiry
from ratelimit_mw.stores.memcached.tiers import TierBlock, cover, tiers
from ratelimit_mw.stores.servers import Server
from ratelimit_mw.stores.wire import MORE, ReplyError
from ratelimit_mw.testing.store_compliance import HOSTILE

# -- addresses and places --------------------------------------------------------------------------------------


def test_servers_are_parsed() -> None:
    """With and without a port, names in any case, IPv6 addresses in brackets."""
    found = read_servers("10.0.0.1:11212,Cache.Example,[::1]:11213,[::2]")
    assert tuple(each[:2] for each in found) == (
        ("10.0.0.1", 11212),
        ("cache.example", 11211),
        ("::1", 11213),
        ("::2", 11211),
    )
    assert [str(server) for server in found][1:3] == ["cache.example:11211", "[::1]:11213"]


def test_wrong_servers_are_an_error() -> None:
    """The error comes at the start, and shows an example."""
    for text in ("", ",", "a,", "a b", "a:", "a:x", "a:99999", "[::1", "a/b:1:2"):
        with pytest.raises(ConfigError, match="expected servers such as"):
            read_servers(text)


TOKENS = [b":ip=192.0.2.%d" % i for i in range(2_000)]


def servers(*hosts: str) -> list[Server]:
    return [Server(host, 11211) for host in hosts]


def test_keys_are_spread_independently_of_the_order_of_servers() -> None:
    """Each of four servers has about a quarter of the keys."""
    one, other = Rendezvous(servers("a", "b", "c", "d")), Rendezvous(servers("d", "b", "a", "c"))
    places = [one.server_of(token) for token in TOKENS]
    assert places == [other.server_of(token) for token in TOKENS]
    assert all(400 < places.count(server) < 600 for server in one.servers)


def test_removing_a_server_moves_only_its_keys() -> None:
    """The keys of the other servers keep their counts."""
    before, after = Rendezvous(servers("a", "b", "c")), Rendezvous(servers("a", "c"))
    moved = [token for token in TOKENS if before.server_of(token) != after.server_of(token)]
    assert moved == [token for token in TOKENS if before.server_of(token) == Server("b", 11211)]


# -- names and expiry ------------------------------------------------------------------------------------------


def all_names(names: KeyNames, key: str) -> list[bytes]:
    """Return each kind of name of a key, at its longest."""
    token = names.token(key)
    return [names.state(token), names.counter((12, 10**16), token)]


@pytest.mark.parametrize("prefix", ["rl:", "x" * 50])
def test_hostile_keys_have_different_legal_names(prefix: str) -> None:
    """Names have at most 250 bytes of printable ASCII without spaces, and all differ.

    A client that sends the name of a long key gets a name of its own.
    """
    names = KeyNames(prefix)
    hashed = names.state(names.token("x" * 300)).decode()
    texts = ["x" * 300, hashed, hashed.removeprefix(prefix), hashed[-32:]]
    found = [name for text in {*HOSTILE, *texts} for name in all_names(names, text)]
    assert all(LEGAL.fullmatch(name) and name.startswith(prefix.encode()) for name in found)
    assert len(set(found)) == len(found)


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_two_keys_have_different_legal_names(one: str, other: str) -> None:
    """Including keys that look like the hash of another key or like a name of another kind."""
    names = KeyNames("rl:")
    mine, its = all_names(names, one), all_names(names, other)
    assert all(LEGAL.fullmatch(name) for name in (*mine, *its))
    assert one == other or not set(mine) & set(its)


def test_a_common_key_can_be_read_in_the_server() -> None:
    names, key = KeyNames("rl:"), "1|login|fixed-window|1m|ip=192.0.2.7"
    assert names.state(names.token(key)) == f"rl::{key}".encode()


def test_an_expiry_is_whole_seconds_plus_two() -> None:
    """Rounded up, plus two seconds for the server's clock, which ticks once a second, and late where it is busy."""
    times = (0, 1, SECOND, SECOND + 1, 60 * SECOND, 30 * DAY - 2 * SECOND)
    assert [expiry(us) for us in times] == [2, 3, 3, 4, 62, 30 * 86_400]


def test_beyond_thirty_days_an_expiry_is_a_date() -> None:
    """Memcached reads a larger number of seconds as a date in 1970."""
    for days in (30, 31, 366, 800):
        before = time.time()
        assert before + days * 86_400 < expiry(days * DAY) <= time.time() + days * 86_400 + 3


# -- commands and answers --------------------------------------------------------------------------------------

ANSWER = b"STORED\r\n12\r\nVALUE a 0 4 7\r\n\r\nEN\r\nVALUE b 0 0 8\r\n\r\nEND\r\nSTAT pid 1 2\r\nEND\r\nEND\r\nNEXT"


def test_a_reply_is_parsed_in_pieces_of_any_size() -> None:
    """Values may contain line ends and the word END. Lines of statistics are values, too."""
    values = {b"a": StoredValue(b"\r\nEN", b"7"), b"b": StoredValue(b"", b"8")}
    for size in (1, 2, 3, 7, 100):
        reader, found = ReplyReader(), []
        for start in range(0, len(ANSWER), size):
            reader.feed(ANSWER[start : start + size])
            while (reply := reader.gets()) is not MORE:
                found.append(reply)
        assert found == [b"STORED", b"12", values, {b"pid": "1 2"}, {}]


class Replying(MemcachedConnections):
    """Connections to servers that give some replies."""

    def __init__(self, replies: list[Any]) -> None:
        super().__init__(None, ThreadDriver(1.0))
        self._replies = replies

    def channel(self, _: Server) -> Any:
        return self

    async def send(self, *_: object) -> Awaitable[list[Any]]:
        async def receive() -> list[Any]:
            return self._replies

        return receive()


def test_another_reply_is_an_error() -> None:
    """A server that is no Memcached does not count as an empty one, and no line can fill the memory."""
    failures = (b"ERROR", b"CLIENT_ERROR bad data chunk", b"SERVER_ERROR out of memory storing object")
    unknown = (b"VALUE a 0 x 7\r\n", b"VALUE a 0 4\r\n", b"x" * 3_000)
    cases = [(b"%b\r\n" % line, line.decode().split()[0]) for line in failures]
    cases += [(reply, "expected a reply of Memcached") for reply in unknown]
    for reply, message in cases:
        reader = ReplyReader()
        reader.feed(reply)
        with pytest.raises(ReplyError, match=message):
            reader.gets()
    (server,) = servers("a")
    with pytest.raises(ReplyError, match="expected a reply of Memcached"):
        run_blocking(Replying([b""]).exchange([KeyCommands(server, (), (b"x",))], 1.0))


# -- tiers -----------------------------------------------------------------------------------------------------

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND


def blocks_of(span: int, bucket: int) -> list[TierBlock]:
    """Return all counters of a window."""
    return [block for parts, whole in cover(tiers(span), span, bucket) for block in (*parts, whole) if block]


def test_a_day_by_the_second_is_read_in_at_most_87_counters() -> None:
    """At seconds of each kind: 179 and 60 have no common divisor."""
    most = max(len(blocks_of(86_400, 20_000 * 86_400 + second)) for second in range(0, 86_400, 179))
    assert most == 51 + 11 * 3 + 3


PRECISIONS = (1, 7, 1000, 10_000, 250_000, SECOND, 7 * SECOND, 90 * SECOND, MINUTE, HOUR, DAY)


@given(st.sampled_from(PRECISIONS), st.integers(1, 5000), st.integers(0, 10**17))
def test_a_window_is_covered_once_and_by_few_counters(precision: int, span: int, now: int) -> None:
    """Every bucket in the window is in exactly one part that is read; no older bucket is. Waits are near."""
    sizes, bucket = tiers(span), now // precision
    groups = cover(sizes, span, bucket)
    ends = [bucket - span + 1]
    for parts, whole in groups:
        for tier, number in parts:
            assert number * sizes[tier] == ends[-1]
            ends.append(ends[-1] + sizes[tier])
        if whole:
            assert whole.number * sizes[whole.tier] < ends[0] < ends[-1] == (whole.number + 1) * sizes[whole.tier]
    assert bucket + sizes[-1] <= ends[-1] - 1
    assert sizes[-1] == 1 or sizes[-1] * 10 <= span
    assert len(blocks_of(span, bucket)) <= 122 + 12 * (len(sizes) - 1)


def test_the_blocks_of_earlier_windows_are_forgotten() -> None:
    """A process that runs for long keeps the blocks of its latest windows only."""
    cover.cache_clear()
    for bucket in range(2_000):
        cover(tiers(100), 100, bucket)
    gc.collect()
    assert sum(type(each) is TierBlock for each in gc.get_objects()) < 10_000


@pytest.mark.parametrize(("hosts", "read"), [("ab", "a"), ("ca", "ca")])
def test_replies_are_read_although_another_server_fails(hosts: str, read: str) -> None:
    """To "b" nothing can be sent, and "c" does not reply. The connection to a server that works stays in use."""
    done, connections = [], MemcachedConnections(None, Mock())

    async def receive(host: str) -> list[Any]:
        done.append(host)
        if host == "c":
            raise IndexError
        return []

    for host in hosts:
        send = AsyncMock(side_effect=IndexError if host == "b" else lambda *_, host=host: receive(host))
        connections._channels[Server(host, 1)] = Mock(send=send)
    with pytest.raises(IndexError):
        run_blocking(connections.exchange([KeyCommands(Server(host, 1)) for host in hosts], 0.0))
    assert "".join(done) == read
