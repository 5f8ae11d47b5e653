"""The demo's made-up traffic: repeatable, bounded, and of the shape of a real log."""

import subprocess
import sys
from collections import Counter
from ipaddress import ip_address, ip_network
from itertools import pairwise
from statistics import mean, median

import pytest

from ratelimit_mw.cli.demo.traffic import (
    ATTACKED_ACCOUNT,
    CRAWLER,
    KINDS,
    ONE_ACCOUNT,
    ONE_ADDRESS,
    PASSWORD,
    READERS,
    SIGNING_IN,
    Request,
    span,
    traffic,
)

# Networks set aside for documentation (RFC 5737) and measurements (RFC 2544): no client has such an address.
NOBODYS = [ip_network(n) for n in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15")]
SEEDS = range(1, 21)


def of_kind(kind: str, requests: list[Request]) -> list[Request]:
    return [request for request in requests if request.kind == kind]


def demand(requests: list[Request]) -> list[int]:
    """Requests by client, the busiest first."""
    return sorted(Counter(request.client for request in requests).values(), reverse=True)


def test_the_same_seed_gives_the_same_traffic_in_every_process() -> None:
    """Whoever runs the demo with a seed plays what everybody plays with it."""
    code = "from ratelimit_mw.cli.demo.traffic import traffic; print(traffic(7, 2000))"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout == f"{traffic(7, 2000)}\n"


def test_another_seed_gives_other_traffic() -> None:
    """The seed matters."""
    assert traffic(1, 2000) != traffic(2, 2000)


@pytest.mark.parametrize("requests", [1, 2, 19, 20, 99, 100, 1000, 3000, 20_000])
def test_as_many_requests_as_asked_for_in_order_within_the_span(requests: int) -> None:
    """No more and no fewer, each at its time, none after the end."""
    made = traffic(3, requests)
    times = [request.at for request in made]
    assert len(made) == requests
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= span(requests) <= 10
    assert {request.kind for request in made} <= set(KINDS)


def test_a_full_run_has_every_kind_of_client() -> None:
    """Readers are most of it; nobody else is missing."""
    kinds = Counter(request.kind for request in traffic(1, 3000))
    assert kinds == {READERS: 2430, CRAWLER: 90, SIGNING_IN: 60, ONE_ADDRESS: 270, ONE_ACCOUNT: 150}


def test_demand_is_as_heavy_tailed_as_in_the_log() -> None:
    """Over many seeds, for one run of a heavy tail tells little, the shares come close to those measured in the log."""
    runs = [demand(of_kind(READERS, traffic(seed, 10_000))) for seed in SEEDS]
    once = mean(sum(size == 1 for size in sizes) / len(sizes) for sizes in runs)
    top_hundredth = mean(sum(sizes[: len(sizes) // 100]) / sum(sizes) for sizes in runs)
    top_tenth = mean(sum(sizes[: len(sizes) // 10]) / sum(sizes) for sizes in runs)
    assert once == pytest.approx(0.39, abs=0.06)
    assert top_hundredth == pytest.approx(0.25, abs=0.06)
    assert top_tenth == pytest.approx(0.55, abs=0.08)
    assert {median(sizes) for sizes in runs} == {2}


@pytest.mark.parametrize("requests", [19, 300, 3000, 10_000])
def test_no_reader_asks_for_more_than_its_share(requests: int) -> None:
    """The log's busiest client asks for 4.8 % of everything; here 5 % is the most, whatever the seed."""
    for seed in SEEDS:
        assert demand(of_kind(READERS, traffic(seed, requests)))[0] <= max(1, requests * 5 // 100)


def test_readers_come_in_bursts() -> None:
    """A page that is seen for the first time brings all its assets along within half a second."""
    requests = of_kind(READERS, traffic(1, 3000))
    by_client: dict[str, list[Request]] = {}
    for request in requests:
        by_client.setdefault(request.client, []).append(request)
    fetched = [r for r in requests if r.target == "/static/style.css"]
    assert len(fetched) > 100
    for asset in fetched:
        before = [r for r in by_client[asset.client] if asset.at - 0.5001 <= r.at <= asset.at]
        assert any(not r.target.startswith("/static/") for r in before)


def test_the_crawler_keeps_a_steady_pace() -> None:
    """One address, from beginning to end, the same time between any two requests."""
    crawl = of_kind(CRAWLER, traffic(1, 3000))
    gaps = [b.at - a.at for a, b in pairwise(crawl)]
    assert len({request.client for request in crawl}) == 1
    assert max(gaps) - min(gaps) < 0.001
    assert sum(gaps) > 9.8


def test_one_attack_comes_from_one_address_and_one_goes_at_one_account() -> None:
    """The first tries many accounts from a single client, the second one account from many; the password is wrong."""
    requests = traffic(1, 3000)
    from_one, on_one = of_kind(ONE_ADDRESS, requests), of_kind(ONE_ACCOUNT, requests)
    assert {(r.method, r.target) for r in from_one + on_one} == {("POST", "/login")}
    assert len({r.client for r in from_one}) == 1
    assert len({account(r) for r in from_one}) == len(from_one)
    assert {account(r) for r in on_one} == {ATTACKED_ACCOUNT}
    assert len({r.client for r in on_one}) == 60
    assert PASSWORD not in {(r.credentials or "").partition(":")[2] for r in from_one + on_one}


def account(request: Request) -> str:
    return (request.credentials or "").partition(":")[0]


def test_people_sign_in_each_from_home_with_the_right_password() -> None:
    """They are who must not suffer from the attacks: nobody shares an address or an account with an attacker."""
    requests = traffic(1, 3000)
    people = of_kind(SIGNING_IN, requests)
    others = {request.client for request in requests if request.kind != SIGNING_IN}
    assert len({request.client for request in people}) == len(people)
    assert not {request.client for request in people} & others
    assert {(request.credentials or "").partition(":")[2] for request in people} == {PASSWORD}
    assert ATTACKED_ACCOUNT not in {account(request) for request in people}


@pytest.mark.parametrize("requests", [3000, 100_000])
def test_no_client_has_an_address_that_exists(requests: int) -> None:
    """However many there are, they stay in networks that belong to nobody."""
    for client in {request.client for request in traffic(1, requests)}:
        assert any(ip_address(client) in network for network in NOBODYS), client
