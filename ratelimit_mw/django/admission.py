"""All that was decided for one request to Django, by the middleware and by throttles on the way, until it is over."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ..decision import Verdict
from ..http.admission import Pending
from ..http.headers import HeaderWriter, as_text
from ..rules.marks import ViewMarks

__all__ = ["Current", "current_of"]

_ATTRIBUTE: Final = "_ratelimit_mw"


class Current:
    """Stands on Django's request while a middleware of ours handles it. ``view`` is what is marked on its way."""

    def __init__(self, request: Any, view: ViewMarks, writer: HeaderWriter) -> None:
        self.request = request
        self.view = view
        self.throttled = False
        """Whether a throttle has rejected it: that answer is the framework's, and not made here."""
        self.pending: list[Pending] = []
        self._django = request.django
        self._writer = writer
        if current_of(self._django) is None:
            self._django.ratelimit = Verdict()
        setattr(self._django, _ATTRIBUTE, self)

    def add(self, pending: Pending) -> None:
        """One more decision. What the request shows are all of them together."""
        self.pending.append(pending)
        self._django.ratelimit = self._together()

    @property
    def holds(self) -> bool:
        """Whether some slot is to be given back."""
        return any(pending.plan.has_slots for pending in self.pending)

    def add_headers(self, response: Any) -> None:
        """Ours replace what the application has set under these names."""
        if not self.pending:
            return
        fields = self.pending[0].fields
        if len(self.pending) > 1:
            fields = as_text(self._writer.headers(self._together()))
        for name, value in fields:
            response.headers[name] = value
        if self.throttled:
            response.headers.setdefault("Cache-Control", "no-store")

    def over(self, status: int | None) -> None:
        """Settle what the outcome decides; None: nobody knows how the request ended."""
        self._hand_on_the_cost()
        for pending in self.pending:
            pending.over(status)

    async def aover(self, status: int | None) -> None:
        """``over`` on a loop; nobody who cancels the request keeps it from being settled."""
        if any(pending.waits for pending in self.pending):
            await asyncio.shield(self._aover(status))
        else:
            self.over(status)

    async def _aover(self, status: int | None) -> None:
        self._hand_on_the_cost()
        for pending in self.pending:
            await pending.aover(status)

    def _together(self) -> Verdict:
        verdicts = [pending.verdict for pending in self.pending]
        if len(verdicts) == 1:
            return verdicts[0]
        decisions = [decision for verdict in verdicts for decision in verdict.decisions]
        return Verdict(decisions, all(verdicts))

    def _hand_on_the_cost(self) -> None:
        """A cost that was stated for all of them is the cost of each."""
        cost = self._django.ratelimit.true_cost
        if cost is not None and len(self.pending) > 1:
            for pending in self.pending:
                pending.verdict.settle(cost)


def current_of(request: Any) -> Current | None:
    """What was decided for a request so far; None where no middleware of ours handles it."""
    return getattr(request, _ATTRIBUTE, None)
