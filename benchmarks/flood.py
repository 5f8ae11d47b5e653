"""Floods a bounded memory store with strangers. Reports the rejected clients and the memory.

`python benchmarks/flood.py` prints the table of memory-store.md. Each case runs in a process of its own, to
measure its memory alone. The clock is set by hand, so the whole flood falls into one period.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

PERIOD = 60.0
REGULARS = 1_000
AMOUNTS = (5, 20, 100)
BOUNDS = (1_000_000, 100_000)
HEADS = (
    "max_keys",
    "limit",
    "strangers rejected at first",
    "regulars rejected",
    "rejected client allowed again",
    "memory, MB",
    "CPU of a hit, µs",
)


def flood(amount: int, max_keys: int, strangers: int) -> list[str]:
    """One row of the table."""
    clock = ManualClock(1_000_000 * PERIOD)
    before = _peak_memory()
    limiter = Limiter([Rule(limits=f"{amount}/minute")], MemoryStore(max_keys), clock)
    for _ in range(amount):
        limiter.hit({"ip": "blocked"})
    assert not limiter.hit({"ip": "blocked"})
    for number in range(REGULARS):
        limiter.hit({"ip": f"regular-{number}"})

    began, decided = time.process_time(), 0
    first_rejected = regulars_rejected = allowed_again = 0
    every = strangers // REGULARS
    for number, hits in enumerate(_hits_of_strangers(strangers)):
        clock.set(1_000_000 * PERIOD + PERIOD * 0.9 * number / strangers)
        stranger = {"ip": f"stranger-{number}"}
        first_rejected += not limiter.hit(stranger)
        for _ in range(hits - 1):
            limiter.hit(stranger)
        decided += hits
        if number % every == 0:
            regulars_rejected += not limiter.hit({"ip": f"regular-{number // every % REGULARS}"})
            allowed_again += bool(limiter.hit({"ip": "blocked"}))
            decided += 2
    busy = time.process_time() - began
    return [
        f"{max_keys:,}",
        f"{amount}/minute",
        f"{first_rejected / strangers:.1%}",
        f"{regulars_rejected} of {REGULARS:,}",
        f"{allowed_again} of {REGULARS:,} times",
        f"{(_peak_memory() - before) / 1e6:.0f}",
        f"{busy / decided * 1e6:.1f}",
    ]


def _hits_of_strangers(strangers: int) -> Iterator[int]:
    """One to three hits each, the same in every run."""
    chance = random.Random(1)
    return (chance.randint(1, 3) for _ in range(strangers))


def _peak_memory() -> int:
    """Bytes; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strangers", type=int, default=2_000_000, metavar="N", help="default: 2000000")
    parser.add_argument("--case", type=int, nargs=2, metavar=("AMOUNT", "MAX_KEYS"), help="one row only")
    asked = parser.parse_args()
    if asked.case:
        print("| " + " | ".join(flood(*asked.case, asked.strangers)) + " |")
        return
    print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS), flush=True)
    for max_keys in BOUNDS:
        for amount in AMOUNTS:
            case = ["--strangers", str(asked.strangers), "--case", str(amount), str(max_keys)]
            subprocess.run([sys.executable, __file__, *case], check=True)


if __name__ == "__main__":
    main()
