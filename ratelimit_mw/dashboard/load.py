"""The adaptive limits of this process, with their curves in the last hour."""

from __future__ import annotations

from typing import Any

from ..clock import SECOND, now_us
from ..limiter.gates import EVERY
from ..limiter.limiter import Limiter
from ..operations.times import time_json


def read_load(limiter: Limiter) -> dict[str, Any]:
    """Return the adaptive limits as JSON: of several keys of a rule, the one with the lowest limit."""
    rows = []
    for rule, level in limiter.gates.levels().items():
        samples = {at // EVERY: known for at, known in [*limiter.gates.history.get(rule, ()), (now_us(), level)]}
        first, steps = min(samples), range(min(samples), max(samples) + 1)
        lines = {
            name: [getattr(samples[step], name) if step in samples else None for step in steps]
            for name in ("limit", "in_flight")
        }
        start, step = time_json(first * EVERY / SECOND), EVERY // SECOND
        peaks = f"the last change: {level.reason}"
        rows.append({"rule": rule, **level._asdict(), "peaks": peaks, "start": start, "step": step, "lines": lines})
    return {"curves": rows}
