"""The requests that the demo sends: generated, or those of an access log.

The requests have the shape of a real access log (elastic/examples, Apache-2.0), with seconds for days. In that log 39%
of the clients send one request, the busiest 1% send 25% of all requests, and the busiest 10% send 55%. Half of the
requests of a client follow within seconds: a page, then its files.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import quote

from ..access_log import LogEntry

LOG_KINDS: Final = ("1 request", "2 to 9 requests", "10 to 99 requests", "100 requests or more")
TRAFFIC_KINDS: Final = ("readers", "a crawler", "people logging in", "attack from one IP", "attack on one account")
_READERS, _CRAWLER, _PEOPLE, _ONE_IP, _ONE_ACCOUNT = TRAFFIC_KINDS

# Kind, percent of all requests. First and last time as shares of the run. Client, account, password.
_LOGINS: Final = (
    (_PEOPLE, 2, 0.0, 1.0, "198.19.{0}.{1}", "person{3}", "correct-horse"),
    (_ONE_IP, 9, 0.1, 0.6, "203.0.113.66", "person{3}", "123456"),
    (_ONE_ACCOUNT, 5, 0.5, 0.9, "198.51.100.{2}", "admin", "guess{3}"),
)
_VISITS_EXPONENT: Final = 1.3  # A Pareto distribution of visits with this exponent comes close to the log.
_LARGEST_SHARE: Final = 0.05  # Of all requests, by one client. It is 4.8% in the log.
_FIRST_VISITS: Final = 0.25  # The share of pages that are followed by their files.
_FILES: Final = ("style.css", "print.css", "site.js", "logo.png", "photo.jpg", "favicon.ico")

_PATH_CHARACTERS: Final = "/:@!$&'()*+,;=~-._"
# A percent sign of a query is in the log as it was sent.
_QUERY_CHARACTERS: Final = _PATH_CHARACTERS + "?%[]"


class DemoRequest(NamedTuple):
    """A request, ``at`` seconds after the start. ``body`` is JSON."""

    at: float
    client: str
    kind: str
    method: str
    target: str
    body: str | None = None


def make_traffic(seed: int, requests: int) -> list[DemoRequest]:
    """Return this number of requests by time: 300 per second, within 3 to 10 seconds."""
    rng = random.Random(seed)  # noqa: S311 - the same in every run
    end = min(10.0, max(3.0, requests / 300))
    pages = requests * 3 // 100
    made = [DemoRequest(end * i / pages, "192.0.2.10", _CRAWLER, "GET", f"/articles/{i}") for i in range(pages)]
    for kind, percent, first, last, *texts in _LOGINS:
        for i in range(requests * percent // 100):
            client, account, password = (text.format(i >> 8, i & 255, i % 60 + 1, i) for text in texts)
            body = json.dumps({"account": account, "password": password})
            at = end * (first + (last - first) * rng.random())
            made.append(DemoRequest(at, client, kind, "POST", "/login", body))
    largest = max(1, int(requests * _LARGEST_SHARE))
    readers = (request for number in range(1, requests + 1) for request in _reader(rng, number, largest, end))
    made += islice(readers, requests - len(made))
    return sorted(request._replace(at=round(request.at, 4)) for request in made)


def _reader(rng: random.Random, number: int, largest: int, end: float) -> Iterator[DemoRequest]:
    """Yield up to ``largest`` requests of one client: few visits for most clients, many for some."""
    client = str(IPv4Address("198.18.0.0") + number)
    visits = int(min(largest, (1 - rng.random()) ** (-1 / _VISITS_EXPONENT)))
    first = rng.random() * end * 0.8
    times = sorted(first + rng.random() * (end - first) for _ in range(visits))
    requests = ((at, target) for visit in times for at, target in _page(rng, visit))
    for at, target in islice(requests, largest):
        yield DemoRequest(min(end, at), client, _READERS, "GET", target)


def _page(rng: random.Random, at: float) -> Iterator[tuple[float, str]]:
    """Yield one page: an article or a search, then its files unless the browser has cached them."""
    is_search, number = rng.random() < 0.1, rng.random()
    yield at, f"/search?q=word{int(number * 100)}" if is_search else f"/articles/{int(number**2 * 200)}"
    if rng.random() < _FIRST_VISITS:
        yield from ((at + rng.random() * 0.5, f"/static/{name}") for name in _FILES)


def read_requests(log: Iterable[LogEntry], most: int) -> list[DemoRequest]:
    """Return the first requests of a log. Tunnels (CONNECT) are left out, because they have no path."""
    entries = list(islice((entry for entry in log if entry.method != "CONNECT"), most))
    sizes = Counter(entry.client for entry in entries)
    return [_request(entry, sizes[entry.client]) for entry in entries]


def _request(entry: LogEntry, client_requests: int) -> DemoRequest:
    kind = LOG_KINDS[sum(client_requests >= least for least in (2, 10, 100))]
    body = "{}" if entry.method == "POST" else None
    path, query, _ = entry.target
    # The server decodes the path of the log.
    target = quote(path if path.startswith("/") else f"/{path}", _PATH_CHARACTERS, errors="replace")
    target += f"?{quote(query, _QUERY_CHARACTERS, errors='replace')}" if query else ""
    return DemoRequest(0.0, entry.client or "-", kind, entry.method, target, body)
