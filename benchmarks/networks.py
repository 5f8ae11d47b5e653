"""One client looked up in an allow or deny list of networks: by bisection, and compared with each network in turn."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable, Collection, Iterator

from benchmarks.timing import per_call, table
from ratelimit_mw.keys.ip import Networks

SIZES = (10, 1_000, 10_000)
CALLS = 200
IN_TURN = 10
ROUNDS = 5


def _networks(count: int, chance: random.Random) -> list[ipaddress.IPv4Network]:
    """Networks of 256 addresses, as lists of hosting providers have them."""
    return [ipaddress.IPv4Network((chance.getrandbits(24) << 8, 24)) for _ in range(count)]


def _clients(chance: random.Random, is_ipv6: bool) -> Iterator[str]:
    """Clients that were never seen before."""
    while True:
        if is_ipv6:
            yield str(ipaddress.IPv6Network((chance.getrandbits(61) << 64, 64)))
        else:
            yield str(ipaddress.IPv4Address(chance.getrandbits(32)))


def _lookups(networks: Collection[object], clients: Iterator[str]) -> Callable[[int], None]:
    ready = [next(clients) for _ in range(CALLS * (ROUNDS + 1))]

    def run(calls: int) -> None:
        for _ in range(calls):
            _ = ready.pop() in networks

    return run


def _known(networks: Networks) -> Callable[[int], None]:
    def run(calls: int) -> None:
        for _ in range(calls):
            _ = "192.0.2.7" in networks

    return run


def _in_turn(networks: list[ipaddress.IPv4Network]) -> Callable[[int], None]:
    address = ipaddress.IPv4Address("192.0.2.7")

    def run(calls: int) -> None:
        for _ in range(calls):
            _ = any(address in network for network in networks)

    return run


def report() -> str:
    chance = random.Random(1)
    rows = []
    for size in SIZES:
        listed = _networks(size, chance)
        networks = Networks(listed)
        candidates = {
            "known": _known(networks),
            "ipv4": _lookups(networks, _clients(chance, is_ipv6=False)),
            "ipv6": _lookups(networks, _clients(chance, is_ipv6=True)),
        }
        times = per_call(candidates, CALLS, ROUNDS)
        times |= per_call({"in turn": _in_turn(listed)}, IN_TURN, ROUNDS)
        rows.append((f"{size:,}", *(f"{times[name] / 1000:,.1f}" for name in (*candidates, "in turn"))))
    heads = ("networks", "known client, µs", "new IPv4 client, µs", "new IPv6 client, µs", "compared in turn, µs")
    return table("One lookup in a list of networks", rows, heads)
