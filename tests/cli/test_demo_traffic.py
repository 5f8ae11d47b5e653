"""The generated traffic of the demo is repeatable, limited, and has the shape of a real log."""

import json
import subprocess
import sys
from collections import Counter
from functools import cache
from ipaddress import ip_address, ip_network
from itertools import pairwise
from statistics import mean, median

import pytest

from ratelimit_mw.cli.demo import traffic
from ratelimit_mw.cli.demo.traffic import TRAFFIC_KINDS, DemoRequest

READERS, CRAWLER, PEOPLE, ONE_IP, ONE_ACCOUNT = TRAFFIC_KINDS
# Networks for documentation (RFC 5737) and measurements (RFC 2544): no real client has such an IP address.
UNUSED = [ip_network(n) for n in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15")]
SEEDS = range(1, 21)
make_traffic = cache(traffic.make_traffic)


def of_kind(kind: str, requests: list[DemoRequest]) -> list[DemoRequest]:
    return [request for request in requests if request.kind == kind]


def requests_per_client(requests: list[DemoRequest]) -> list[int]:
    return sorted(Counter(request.client for request in requests).values(), reverse=True)


def logins(requests: list[DemoRequest]) -> list[tuple[str, str]]:
    """The accounts and passwords."""
    return [tuple(json.loads(request.body or "").values()) for request in requests]


def test_same_seed_gives_the_same_traffic_in_every_process() -> None:
    """The seed alone decides, and another seed gives other traffic."""
    code = "from ratelimit_mw.cli.demo.traffic import make_traffic; print(make_traffic(7, 2000))"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout == f"{make_traffic(7, 2000)}\n"
    assert make_traffic(1, 2000) != make_traffic(2, 2000)


@pytest.mark.parametrize("number", [1, 2, 19, 20, 99, 100, 1000, 3000, 20_000])
def test_traffic_has_the_given_number_of_requests_in_order(number: int) -> None:
    """They are sorted by time and end within ten seconds."""
    requests = make_traffic(1, number)
    times = [request.at for request in requests]
    assert len(requests) == number
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= min(10, max(3, number / 300))
    assert {request.kind for request in requests} <= set(TRAFFIC_KINDS)


def test_default_traffic_has_every_kind_of_client() -> None:
    """Most requests come from readers."""
    kinds = Counter(request.kind for request in make_traffic(1, 3000))
    assert kinds == {READERS: 2430, CRAWLER: 90, PEOPLE: 60, ONE_IP: 270, ONE_ACCOUNT: 150}


@pytest.mark.slow
def test_readers_are_as_unequal_as_in_the_log() -> None:
    """On average over many seeds the shares are close to those of the log."""
    runs = [requests_per_client(of_kind(READERS, make_traffic(seed, 10_000))) for seed in SEEDS]
    once = mean(sum(size == 1 for size in sizes) / len(sizes) for sizes in runs)
    top_hundredth = mean(sum(sizes[: len(sizes) // 100]) / sum(sizes) for sizes in runs)
    top_tenth = mean(sum(sizes[: len(sizes) // 10]) / sum(sizes) for sizes in runs)
    assert once == pytest.approx(0.39, abs=0.06)
    assert top_hundredth == pytest.approx(0.25, abs=0.06)
    assert top_tenth == pytest.approx(0.55, abs=0.08)
    assert {median(sizes) for sizes in runs} == {2}


@pytest.mark.parametrize("number", [19, 10_000])
def test_no_reader_sends_more_than_five_percent(number: int) -> None:
    """The busiest client of the log sends 4.8%."""
    for seed in SEEDS:
        assert requests_per_client(of_kind(READERS, make_traffic(seed, number)))[0] <= max(1, number * 5 // 100)


def test_readers_come_in_bursts() -> None:
    """A file is requested within half a second after a page of the same client."""
    requests = of_kind(READERS, make_traffic(1, 3000))
    by_client: dict[str, list[DemoRequest]] = {}
    for request in requests:
        by_client.setdefault(request.client, []).append(request)
    files = [r for r in requests if r.target == "/static/style.css"]
    assert len(files) > 100
    for file in files:
        before = [r for r in by_client[file.client] if file.at - 0.5001 <= r.at <= file.at]
        assert any(not r.target.startswith("/static/") for r in before)


def test_crawler_keeps_a_steady_pace() -> None:
    """One client, from the beginning to the end, with equal gaps."""
    crawl = of_kind(CRAWLER, make_traffic(1, 3000))
    gaps = [b.at - a.at for a, b in pairwise(crawl)]
    assert len({request.client for request in crawl}) == 1
    assert max(gaps) - min(gaps) < 0.001
    assert sum(gaps) > 9.8


def test_attacks_and_people_share_no_client_and_no_account() -> None:
    """One client tries many accounts, many clients try one account, and people log in with the right password."""
    requests = make_traffic(1, 3000)
    one_ip, one_account, people = (of_kind(kind, requests) for kind in (ONE_IP, ONE_ACCOUNT, PEOPLE))
    assert {(r.method, r.target) for r in one_ip + one_account + people} == {("POST", "/login")}
    assert len({r.client for r in one_ip}) == 1
    assert len({account for account, _ in logins(one_ip)}) == len(one_ip)
    assert {account for account, _ in logins(one_account)} == {"admin"}
    assert len({r.client for r in one_account}) == 60
    assert len({r.client for r in people}) == len(people)
    assert not {r.client for r in people} & {r.client for r in requests if r.kind != PEOPLE}
    assert "admin" not in {account for account, _ in logins(people)}
    passwords = {password for _, password in logins(people)}
    assert len(passwords) == 1
    assert not passwords & {password for _, password in logins(one_ip + one_account)}


def test_clients_have_ip_addresses_that_are_not_in_use() -> None:
    """Even when there are many clients."""
    for client in {request.client for request in make_traffic(1, 20_000)}:
        assert any(ip_address(client) in network for network in UNUSED), client
