"""``Summary``: counts of texts in bounded memory, of which the largest stay. Pure, no I/O."""

from __future__ import annotations

from typing import Self

import msgspec


class Summary(msgspec.Struct, array_like=True, eq=False):
    """Counts of texts, at most twice ``size`` of them (the algorithm of Misra and Gries).

    A text occurred at least as often as its count, and at most ``error`` times more. A text that is not in ``counts``
    occurred at most ``error`` times. The error is at most the sum of all counts, divided by ``size`` + 1.
    """

    counts: dict[str, int] = {}
    error: int = 0
    tokens: list[int] = []
    """Random numbers of the last writers of a record. They show a writer that got no reply whether it has written."""

    def add(self, text: str, number: int, size: int) -> None:
        """Count a text."""
        self.counts[text] = self.counts.get(text, 0) + number
        if len(self.counts) > 2 * size:
            self.shrink(size)

    def merge(self, other: Summary, size: int) -> Self:
        """Add the counts of another summary, keep the largest ``size``, and return this summary."""
        for text, number in other.counts.items():
            self.counts[text] = self.counts.get(text, 0) + number
        self.error += other.error
        self.shrink(size)
        return self

    def shrink(self, size: int) -> None:
        """Keep the largest counts. Each loses the same amount, which is added to the error."""
        if len(self.counts) > size:
            taken = sorted(self.counts.values(), reverse=True)[size]
            self.counts = {text: number - taken for text, number in self.counts.items() if number > taken}
            self.error += taken
