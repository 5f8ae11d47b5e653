"""Time of one thread, for tests of time budgets on a busy machine."""

import time
from pathlib import Path


def own_seconds() -> float:
    """Return the time minus the time that this thread waited for a processor."""
    return time.monotonic() - int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
