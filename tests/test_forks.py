"""Forks: a child is served whatever the threads of its parent were doing, and holds nothing of its parent's."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest
from busy_forks import SCENES
from folders import SUPPORT
from redis_handles import address
from servers import Server

from ratelimit_mw import Limiter, Rule
from ratelimit_mw import forksafe as forks
from ratelimit_mw.decision import Verdict
from ratelimit_mw.limiter.breaker import Breaker
from ratelimit_mw.limiter.heartbeat import Heartbeat

WHO = {"ip": "192.0.2.7"}


@pytest.mark.parametrize("scene", SCENES)
def test_a_child_is_served(redis_server: Server, scene: str) -> None:
    """Each scene is a real fork beside real threads; no child waits for a lock that nobody will ever let go."""
    program = SUPPORT / "busy_forks.py"
    run = subprocess.run([sys.executable, program, scene, address(redis_server)], timeout=200, check=False)
    assert run.returncode == 0


def test_a_thread_inside_makes_a_child_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fork runs in the child: tables that a thread is changing are not used, those that are whole are."""
    monkeypatch.setattr(forks, "_SECONDS", 0.01)
    limiter = Limiter([Rule(name="child", limits="2/hour")])
    limiter.hit(WHO)
    forks._before()
    forks._in_child()
    assert [limiter.hit(WHO).allowed for _ in range(2)] == [True, False]
    with limiter._memory._lock:  # type: ignore[union-attr]
        forks._before()
        forks._in_child()
        assert [limiter.hit(WHO).allowed for _ in range(3)] == [True, True, False]


def test_a_child_holds_none_of_its_parents_slots() -> None:
    """Only what was taken after the fork is renewed in the child."""
    renewed: list[Verdict] = []
    seen = threading.Event()
    theirs, mine = Verdict((), ()), Verdict((), ())

    def renew(verdict: Verdict) -> None:
        renewed.append(verdict)
        seen.set()

    keeper = Heartbeat(renew, between=0.01)
    keeper._held.add(theirs)
    forks._in_child()
    keeper.hold(mine)
    assert seen.wait(5)
    keeper.close()
    assert set(renewed) == {mine}


def test_locks_that_are_gone_are_forgotten() -> None:
    """Forks know nothing of limiters that nobody has any more, however many there were."""
    gc.collect()
    before = len(forks._guards)
    breaker = Breaker()
    assert len(forks._guards) == before + 1
    del breaker
    gc.collect()
    assert len(forks._guards) == before


def test_a_fork_leaves_the_parent_as_it_was() -> None:
    """What a fork takes it lets go, also where it met a lock that is being made."""
    half_made = Unfinished()
    forks.guarded(half_made, "lock", threading.Lock)
    breaker = Breaker()
    forks._before()
    assert breaker._lock.locked()
    forks._in_parent()
    assert not breaker._lock.locked()
    assert not forks._held


class Unfinished:
    """An owner of a lock that it has not got yet."""
