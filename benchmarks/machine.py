"""The priority and the cores of a benchmark, so that other work of the machine changes its numbers less. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.timing import progress


@contextmanager
def real_time() -> Iterator[None]:
    """Let this process and those that it starts run before all others. Only root may do so."""
    try:
        usual = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except (AttributeError, PermissionError):
        progress("without root on Linux, other processes of this machine delay requests")
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, *usual)


@contextmanager
def on_cores(is_client: bool) -> Iterator[None]:
    """Let this process and those that it starts run on the first core, or on the others: those of the servers."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        yield
        return
    os.sched_setaffinity(0, cores[:1] if is_client else cores[1:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
