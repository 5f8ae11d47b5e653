"""One request from its first decision to the end of its response."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from ..decision import Verdict
from ..rules.plan import Plan
from .features import await_features
from .headers import Header, TextHeader, as_text
from .limiter import DECIDED, HttpLimiter
from .rejection import Rejection, build_rejection
from .request import Request


class Admission:
    """Decides a request, writes the headers of its response, and settles it when the response ends.

    ``verdict`` has all decisions so far, or only those of the rejection. ``verdicts`` are the ones to settle.
    """

    verdict = Verdict()
    verdicts: tuple[Verdict, ...] = ()
    status: int | None = None
    """The status of the response, once it has started."""
    has_slots = False
    needs_settlement = False
    _headers: list[Header] | None = None
    _settled_costs: Sequence[int | None] = ()

    def __init__(self, limits: HttpLimiter) -> None:
        self._limits = limits

    def decide(self, plan: Plan, request: Request, features: dict[str, Any] | None = None) -> Verdict:
        """Decide a plan and add its verdict. A rejection refunds everything that the request has consumed."""
        limiter = self._limits.limiter
        if features is None:
            features = self._limits.reader.read(plan, request)
        verdict = limiter.decide(plan, features, None, True, request.framework_request or request)
        if not verdict.allowed:
            for earlier in self.verdicts:
                limiter.refund(earlier)
        self.add(plan, verdict)
        return verdict

    async def adecide(self, plan: Plan, request: Request, provided: Mapping[str, Any] | None = None) -> Verdict:
        """Async form of ``decide``. ``provided`` are features that the caller knows."""
        limiter, reader = self._limits.limiter, self._limits.reader
        features = reader.read(plan, request, provided)
        if reader.may_await or provided:
            await await_features(features)
        native = request.framework_request or request
        if limiter.waits:
            verdict = await limiter.adecide(plan, features, None, True, native)
        else:
            verdict = limiter.decide(plan, features, None, True, native)
        if not verdict.allowed:
            for earlier in self.verdicts:
                await limiter.arefund(earlier)
        self.add(plan, verdict)
        return verdict

    def add(self, plan: Plan, verdict: Verdict) -> None:
        """Add a verdict. The slots that it has taken are held until the end."""
        earlier, self.verdict, self._headers = self.verdicts, verdict, None
        self.verdicts = (verdict,) if verdict.allowed else ()
        if earlier and verdict.allowed:
            self.verdicts = (*earlier, verdict)
            self.verdict = combine(self.verdicts)
        if plan.needs_settlement and verdict.allowed:
            self.needs_settlement = True
            if plan.has_slots:
                self.has_slots = True
                self._limits.limiter.hold(verdict)

    def note_in(self, native: MutableMapping[str, Any]) -> None:
        """Store the verdict for other middleware of this request, in the ASGI scope or WSGI environ."""
        decided = native.get(DECIDED)
        own = {self._limits.limiter: self.verdict}
        native[DECIDED] = own if decided is None else {**decided, **own}

    def show(self, verdict: Verdict) -> None:
        """Use the headers of a rejection that the application has raised."""
        self.verdict = verdict
        self._headers = None

    def headers(self, status: int) -> list[Header]:
        """Return the rate limit headers of the response that starts with this status."""
        self.status = status
        if self._headers is None:  # once, because Retry-After may have a random part
            self._headers = self._limits.writer.headers(self.verdict)
        return self._headers

    def text_headers(self, status: int) -> list[TextHeader]:
        return as_text(self.headers(status))

    def rejection(self, request: Request) -> Rejection:
        """Return the package's own response to a rejection, without the rate limit headers."""
        headers = self.headers(self.status or self.verdict.status or 429)
        waits = [value.decode("ascii") for name, value in headers if name == b"retry-after"]
        accept = ", ".join(request.header_lines("accept"))
        return build_rejection(self.verdict, accept, waits[0] if waits else None)

    def end(self, status: int | None) -> None:
        """Settle everything once, and again for a cost stated since. The status is None for an unknown outcome."""
        for verdict in self._due():
            self._limits.limiter.conclude(verdict, status)

    async def aend(self, status: int | None) -> None:
        """Async form of ``end``. It completes when its caller is cancelled."""
        due = self._due()
        if due and self._limits.limiter.waits:
            await asyncio.shield(self._aconclude(due, status))
            return
        for verdict in due:
            self._limits.limiter.conclude(verdict, status)

    async def _aconclude(self, verdicts: Sequence[Verdict], status: int | None) -> None:
        for verdict in verdicts:
            await self._limits.limiter.aconclude(verdict, status)

    def _due(self) -> Sequence[Verdict]:
        costs = tuple(verdict.true_cost for verdict in self.verdicts)
        if costs == self._settled_costs:
            return ()
        self._settled_costs = costs
        return [verdict for verdict in self.verdicts if self.needs_settlement or verdict.true_cost is not None]


def combine(verdicts: Sequence[Verdict]) -> Verdict:
    """Return one verdict with all decisions."""
    return Verdict([decision for verdict in verdicts for decision in verdict.decisions], all(verdicts))
