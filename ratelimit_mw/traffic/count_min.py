"""A count-min sketch: the counts of any number of names in 5 rows of 1,024 cells. Pure, no I/O.

A count adds to one cell of each row. Names may share cells, so no cell is too low, and the lowest is the best estimate
of the count of a name. Sketches add up cell by cell (Cormode and Muthukrishnan, "An improved data stream summary: the
count-min sketch and its applications", 2005).
"""

from __future__ import annotations

import math
from typing import Final

from .digest import digest_of
from .estimate import Estimate

_ROWS: Final = 5
COLUMNS: Final = 1_024
EPSILON: Final = math.e / COLUMNS
"""With probability 1 - ``DELTA``, a count is too high by at most this share of all counts in the sketch: 0.27%."""
DELTA: Final = math.exp(-_ROWS)
"""0.67%."""


def cells_of(name: str, salt: str) -> list[int]:
    """Return the cells of a name, one in each row. ``salt`` is the salt of the log."""
    digest = digest_of(salt, name)
    parts = (int.from_bytes(digest[4 * row : 4 * row + 4]) for row in range(_ROWS))
    return [row * COLUMNS + part % COLUMNS for row, part in enumerate(parts)]


def estimate(least: int, total: int) -> Estimate:
    """Return the count of a name, from the least of its cells and all counts of the sketch."""
    return Estimate(least, min(least, math.ceil(EPSILON * total)))
