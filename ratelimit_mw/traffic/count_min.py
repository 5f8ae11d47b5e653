"""A count-min sketch: the counts of any number of names in 5 rows of 1,024 cells. Pure, no I/O.

A count adds to one cell of each row. The least of these cells is the count of a name, and that of others which share
all of its cells. Sketches add up cell by cell (Cormode and Muthukrishnan, "An improved data stream summary: the
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
"""A count is too high by this part of all counts of the sketch at most (0.27%), with the probability 1 - ``DELTA``."""
DELTA: Final = math.exp(-_ROWS)
"""0.67%."""


def cells_of(name: str, salt: str) -> list[int]:
    """Return the cells of a name, one of each row, by the salt of the log."""
    digest = digest_of(salt, name)
    parts = (int.from_bytes(digest[4 * row : 4 * row + 4]) for row in range(_ROWS))
    return [row * COLUMNS + part % COLUMNS for row, part in enumerate(parts)]


def estimate(least: int, total: int) -> Estimate:
    """Return the count of a name, from the least of its cells and all counts of the sketch."""
    return Estimate(least, min(least, math.ceil(EPSILON * total)))
