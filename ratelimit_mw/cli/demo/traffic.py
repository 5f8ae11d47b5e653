"""Made-up traffic for the demo: the same seed gives the same requests. Pure; sends nothing, knows no rules.

Its shape is that of a real access log of 10,000 requests (elastic/examples, Apache-2.0). There, 39 % of the clients
ask once and half of them at most twice, one in a hundred asks for 25 % of everything and one in ten for 55 %. Half of
a client's requests follow within seconds: a page, then what is on it. The days of the log become seconds here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Final, NamedTuple

__all__ = [
    "ATTACKED_ACCOUNT",
    "CRAWLER",
    "KINDS",
    "ONE_ACCOUNT",
    "ONE_ADDRESS",
    "PASSWORD",
    "READERS",
    "SIGNING_IN",
    "Request",
    "span",
    "traffic",
]

READERS: Final = "readers"
CRAWLER: Final = "a steady crawler"
SIGNING_IN: Final = "people signing in"
ONE_ADDRESS: Final = "attack from one IP"
ONE_ACCOUNT: Final = "attack on one user"
KINDS: Final = (READERS, CRAWLER, SIGNING_IN, ONE_ADDRESS, ONE_ACCOUNT)

PASSWORD: Final = "correct-horse"  # noqa: S105 - the one password of the demo's application
ATTACKED_ACCOUNT: Final = "admin"

_CRAWLER: Final = "192.0.2.10"
_ATTACKER: Final = "203.0.113.66"
_ATTACKERS: Final = "198.51.100.{}"
_MOST_ATTACKERS: Final = 60
_READERS: Final = 0xC6_12_00_00  # 198.18.0.0; like the others, an address that no client in the world has
_PEOPLE: Final = 0xC6_13_00_00  # 198.19.0.0

_SECONDS: Final = 10.0
_LEAST_SECONDS: Final = 3.0
_A_SECOND: Final = 300

_TAIL: Final = 1.3  # visits a client: a Pareto distribution with this exponent comes close to the log
_FULL_PAGES: Final = 0.25  # of visits; in the others the assets are in the browser's cache
_LARGEST_SHARE: Final = 0.05  # of all requests, by one client: 4.8 % in the log
_SEARCHES: Final = 0.1
_ASSETS: Final = ("style.css", "print.css", "site.js", "logo.png", "photo.jpg", "favicon.ico")


class Request(NamedTuple):
    """One request, ``at`` seconds from the start; ``target`` as it is sent, ``credentials`` "account:password"."""

    at: float
    client: str
    kind: str
    method: str
    target: str
    credentials: str | None = None


def span(requests: int) -> float:
    """Over how many seconds so many requests come: 300 a second, in ten seconds at most.

    >>> span(3000), span(1500), span(90)
    (10.0, 5.0, 3.0)
    """
    return min(_SECONDS, max(_LEAST_SECONDS, requests / _A_SECOND))


def traffic(seed: int, requests: int) -> list[Request]:
    """So many requests, in order of time.

    >>> len(traffic(1, 500)), traffic(1, 500) == traffic(1, 500), traffic(1, 500) == traffic(2, 500)
    (500, True, False)
    """
    rng = random.Random(seed)  # noqa: S311 - repeatable on purpose, hides nothing
    seconds = span(requests)
    parts = [
        _crawler(requests * 3 // 100, seconds),
        _signing_in(rng, requests * 2 // 100, seconds),
        _from_one_address(rng, requests * 9 // 100, seconds),
        _on_one_account(rng, requests * 5 // 100, seconds),
    ]
    made = [request for part in parts for request in part]
    made += _readers(rng, requests - len(made), max(1, int(requests * _LARGEST_SHARE)), seconds)
    return sorted(request._replace(at=round(request.at, 4)) for request in made)


def _readers(rng: random.Random, requests: int, most: int, seconds: float) -> list[Request]:
    made: list[Request] = []
    for number in count(1):
        if len(made) >= requests:
            break
        client = _ipv4(_READERS + number)
        made += islice(_reader(rng, client, most, seconds), most)
    return made[:requests]


def _reader(rng: random.Random, client: str, most: int, seconds: float) -> Iterator[Request]:
    """A client's visits: few for most, many for some; between its first and the end."""
    visits = int(min(most, (1 - rng.random()) ** (-1 / _TAIL)))
    first = rng.random() * seconds * 0.8
    for at in sorted(first + rng.random() * (seconds - first) for _ in range(visits)):
        yield Request(at, client, READERS, "GET", _page(rng))
        if rng.random() < _FULL_PAGES:
            for asset in _ASSETS:
                yield Request(min(seconds, at + rng.random() * 0.5), client, READERS, "GET", f"/static/{asset}")


def _page(rng: random.Random) -> str:
    if rng.random() < _SEARCHES:
        return f"/search?q=word{int(rng.random() * 100)}"
    return f"/articles/{int(rng.random() ** 2 * 200)}"


def _crawler(requests: int, seconds: float) -> Iterator[Request]:
    for i in range(requests):
        yield Request(seconds * i / requests, _CRAWLER, CRAWLER, "GET", f"/articles/{i}")


def _signing_in(rng: random.Random, requests: int, seconds: float) -> Iterator[Request]:
    """Each from an address of their own, with the right password."""
    for i in range(requests):
        yield _login(rng.random() * seconds, _ipv4(_PEOPLE + i), SIGNING_IN, f"person{i}", PASSWORD)


def _from_one_address(rng: random.Random, requests: int, seconds: float) -> Iterator[Request]:
    """One address tries one password on many accounts, up to the middle."""
    for i in range(requests):
        yield _login(seconds * (0.1 + 0.5 * rng.random()), _ATTACKER, ONE_ADDRESS, f"person{i}", "123456")


def _on_one_account(rng: random.Random, requests: int, seconds: float) -> Iterator[Request]:
    """Many addresses try many passwords on one account, later."""
    for i in range(requests):
        address = _ATTACKERS.format(1 + i % _MOST_ATTACKERS)
        at = seconds * (0.5 + 0.4 * rng.random())
        yield _login(at, address, ONE_ACCOUNT, ATTACKED_ACCOUNT, f"guess{i}")


def _login(at: float, client: str, kind: str, account: str, password: str) -> Request:
    return Request(at, client, kind, "POST", "/login", f"{account}:{password}")


def _ipv4(number: int) -> str:
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
