"""``Curve`` and ``ClientCount``: the figures that a traffic log returns, beside plain numbers."""

from __future__ import annotations

from typing import NamedTuple

from .estimate import Estimate, error_of


class Curve(NamedTuple):
    """The counts of a time range.

    Args:
        start: The start of the first count, in seconds since 1970.
        step: The length of each count, in seconds.
        counts: The counts. The first one is that from ``start`` to ``start + step``. One with an error is an
            ``Estimate``.
    """

    start: int
    step: int
    counts: list[int]

    @property
    def end(self) -> int:
        """The end of the last count, in seconds since 1970."""
        return self.start + self.step * len(self.counts)

    @property
    def error(self) -> int:
        """The largest error of the counts: 0 if they are exact."""
        return max(map(error_of, self.counts), default=0)


class ClientCount(NamedTuple):
    """A client and its count.

    Args:
        client: The client, as it was recorded.
        total: The number of its records, and the error of this number.
    """

    client: str
    total: Estimate

    @property
    def error(self) -> int:
        """The most by which the total is too low: 0 if it is exact."""
        return self.total.error
