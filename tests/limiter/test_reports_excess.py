"""The excess of ``consistency = "reported"`` has a bound, with random traffic."""

from __future__ import annotations

import random

import pytest
from report_processes import Process, reported, setup

pytestmark = pytest.mark.usefixtures("no_report_thread")


class Traffic:
    """Requests of several processes at random times, with late, failed and missing reports."""

    def __init__(self, seed: int, processes: int, amount: int, dies: bool) -> None:
        self.chance = random.Random(seed)
        self.clock, self.processes = setup(reported(f"{amount}/minute"), processes=processes)
        self.weights = [self.chance.choice((1, 1, 5, 50)) for _ in range(processes)]
        self.dies, self.lost = dies, 0
        self.admitted, self.own, self.since = ([0] * processes for _ in range(3))
        """What each process has admitted: all, since the last reply of the store, and until its last admission."""

    def run(self, requests: int) -> None:
        for step in range(requests):
            (i,) = self.chance.choices(range(len(self.processes)), self.weights)
            if self.chance.random() < 0.02:
                self.report(i)
            if self.chance.random() < 0.1:
                self.clock.advance(self.chance.choice((0.001, 0.01, 0.09)))
            if self.dies and step == requests // 2:
                self.die(i)
            self.admit(i, self.chance.choice((1, 1, 1, 4)))

    def report(self, i: int) -> None:
        process, before = self.processes[i], len(self.processes[i].calls)
        process.down = self.chance.random() < 0.2
        process.report()
        if len(process.calls) > before and not process.down:
            self.own[i] = 0
        process.down = False

    def admit(self, i: int, cost: int) -> None:
        before = len(self.processes[i].calls)
        is_allowed = self.processes[i].hit(cost).allowed
        if len(self.processes[i].calls) > before:
            self.own[i] = 0
        if is_allowed:
            self.admitted[i] += cost
            self.own[i] += cost
            self.since[i] = self.own[i]

    def die(self, i: int) -> None:
        """Replace a process. The store never counts what it has not reported."""
        self.lost += sum(each.unsent for each in self.processes[i].limiter._leases._reports.accounts.values())  # type: ignore[union-attr]
        self.processes[i] = Process(self.processes[0].shared, self.clock, reported("1/minute"))
        self.processes[i].limiter.rules = self.processes[i - 1].limiter.rules


@pytest.mark.parametrize("seed", range(20))
def test_the_excess_is_at_most_what_the_other_processes_have_not_reported(seed: int) -> None:
    """Each process admits at most the rest that the store showed it last, so the excess is below W - 1 such rests."""
    traffic = Traffic(seed, processes=2 + seed % 5, amount=300, dies=False)
    traffic.run(1500)
    total = sum(traffic.admitted)
    bound = sum(traffic.since) - min(traffic.since)
    assert 300 <= total <= 300 + bound
    for process in traffic.processes:
        process.report()
    assert traffic.processes[0].rest() == [0]


@pytest.mark.parametrize("seed", range(5))
def test_a_process_that_dies_loses_its_last_sum(seed: int) -> None:
    """The others admit it once more, and no more than that."""
    traffic = Traffic(seed, processes=4, amount=1_000_000, dies=True)
    traffic.run(1500)
    for process in traffic.processes:
        process.limiter.close()
    assert traffic.processes[0].rest() == [1_000_000 - sum(traffic.admitted) + traffic.lost]
