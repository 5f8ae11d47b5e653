"""One request from its first decision to the end of its response."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from ..decision import CombinedVerdict, RateLimitExceeded, Verdict, combine_verdicts
from ..limiter.adaptive_limits import NO_TIME
from ..rules.marks import Mark
from ..rules.plan import Plan
from ..runtime.blocking import Call, blocking_call, is_on_event_loop, twins
from ..runtime.forksafe import create_lock
from .headers import FIELD_NAMES, Header
from .limits import HttpLimits
from .rejection import PreparedRejection
from .request import Request

ADMISSION: Final = "ratelimit_mw.admission"
"""The key of the ASGI scope or WSGI environ that holds the innermost admission of the request so far."""
lock = create_lock(sys.modules[__name__], "lock", threading.Lock)
"""Held while verdicts are added, and while those to settle are taken."""


class Admission:
    """Decides a request, writes the headers of its response, and settles it when the response ends.

    A second middleware of the same limiter has an admission for its view of the request. That one adds its decisions
    to ``first``, which owns the response and the end. The innermost admission is in ``native``.
    """

    verdict_key = "ratelimit"
    """The name under which the application finds the verdict."""
    verdict: Verdict
    """All decisions so far, or only those of the last rejection."""
    verdicts: list[Verdict]
    """The verdicts to settle."""
    marks: Sequence[Mark] = ()
    """The limits of decorators that are decided: those of the view."""
    first: Admission | None
    """The admission of the outermost middleware of this limiter; None if it is this one."""
    outer: Admission | None
    """The admission of the next middleware outside, of this limiter or another one."""
    combined: CombinedVerdict | None
    """All verdicts to settle as one, once the request was decided again."""
    rejections: list[Verdict] | None = None
    """The rejections that the event of the request has, once there are any."""
    status: int | None = None
    """The status of the response, once it has started. From then on a client may choose the number of verdicts, so
    they are settled at once, except for slots."""
    has_ended = False
    """Whether the response has ended. Verdicts from then on are settled at once."""
    is_open = False
    """Whether it is an accepted WebSocket."""
    is_streamed = False
    """Whether its response is a stream that is not closed. Checks in it take slots, even after an ``end``."""
    needs_settlement = False
    ends_with_body = False
    """Whether it ends no earlier than the body of the response: it holds slots, or the view may still mark it."""
    has_slots = False
    """Whether it holds slots, until the response is sent."""
    counts_outcomes = False
    """Whether the status of the response changes what is consumed."""
    _prepared: PreparedRejection | None = None  # The response to a rejection, whose headers may have a random part.
    _settled = 0  # The number of settled verdicts.
    _reported = -1  # The number of verdicts that events have, -1 before the first event.
    _late_rejection: Verdict | None = None  # It has its own event.

    def __init__(
        self,
        limits: HttpLimits,
        request: Request,
        plan: Plan,
        verdict: Verdict,
        native: MutableMapping[str, Any],
        state: MutableMapping[str, Any],
    ) -> None:
        self.limits = limits
        self.request = request
        if (marks := request.to.marks) is not None:
            self.marks = marks.all_marks
        self.lists = plan.lists
        """The allow and deny lists, for the path of the request."""
        self.native = native
        """The ASGI scope or the WSGI environ."""
        self.verdict = verdict
        # Responses read these faster here than on the class.
        self.counts_outcomes, self._prepared, self.combined = False, None, None
        self.outer = outer = native.get(ADMISSION)
        same = outer and outer.of_limiter(limits)
        self.first = same and (same.first or same)
        native[ADMISSION] = self
        if self.first is not None:
            self._join(self.first, plan, verdict)
        elif verdict.allowed:
            self.verdicts = [verdict]
            verdict.settlement, verdict.settles_at_end = limits.settlement, True
            if plan.needs_settlement:
                self._hold(plan, verdict, limits)
        else:
            self.verdicts = []
            self.rejections = [verdict]
        self._state = state
        state[self.verdict_key] = self.verdict

    def _join(self, first: Admission, plan: Plan, verdict: Verdict) -> None:
        """Add a decision to the first admission, whose middleware may not know the route."""
        if first.request.to.endpoint is None:
            first.request.to = self.request.to
        self.verdict, self.verdicts = first.verdict, first.verdicts
        if verdict.decisions or not verdict.allowed:
            self.add(plan, verdict)

    # -- decisions -------------------------------------------------------------------------------------------------

    def add(self, plan: Plan, verdict: Verdict) -> None:
        """Add another verdict. A rejection refunds nothing, because code of the application has run in between."""
        first = self.first or self
        if not verdict.allowed:
            self.verdict = first.verdict = verdict
            first._note_rejection(verdict)
            return
        # From here on, an end at the same time takes the lock.
        first.combined = first.combined or combine_verdicts(first.verdicts)
        with lock:  # a request may check in several threads, and end in another one
            is_kept = not first.has_ended and (first.status is None or plan.has_slots)
            verdict.settlement, verdict.settles_at_end = self.limits.settlement, is_kept
            if is_kept:
                first.verdicts.append(verdict)
                if plan.needs_settlement:
                    first._hold(plan, verdict, self.limits)
        self.verdict = first.verdict = first.combined if is_kept else combine_verdicts((first.combined, verdict))

    def _hold(self, plan: Plan, verdict: Verdict, limits: HttpLimits) -> None:
        self.needs_settlement = True
        self.ends_with_body |= plan.ends_with_body
        self.counts_outcomes |= plan.counts_outcomes or plan.follows_responses
        if plan.has_slots:
            self.has_slots = True
            limits.limiter.slots.hold(verdict, limits.rules)

    def _note_rejection(self, verdict: Verdict) -> None:
        """Keep a rejection for the event of the request. After the start of the response it has its own event."""
        if self.has_ended or self.status is not None:
            self._late_rejection = verdict
            self.report_now(verdict)
        else:
            self.rejections = self.rejections or []
            self.rejections.append(verdict)

    def of_limiter(self, limits: HttpLimits) -> Admission | None:
        """Return the innermost admission with the limiter of these limits. Those of other limiters may be inside."""
        if self.limits.limiter is limits.limiter:
            return self
        return self.outer and self.outer.of_limiter(limits)

    async def _decide(self, call: Call, plan: Plan, provided: Mapping[str, Any] | None = None) -> Verdict:
        """Decide another plan in the middle of the request, show the verdict, and wait in a queue."""
        if plan.delays and call is blocking_call:
            self._require_thread(plan)
        verdict: Verdict = await call(self.limits, "decide", plan, self.current_request, provided)
        self.add(plan, verdict)
        self._state[self.verdict_key] = self.verdict
        if verdict.delay:
            if call is blocking_call:
                self._require_thread(plan)  # a function may have returned a limit with a queue
                time.sleep(verdict.delay)
            else:
                await asyncio.sleep(verdict.delay)
        if verdict.settlement is not None and not verdict.settles_at_end:
            status = None if self.is_open else (self.first or self).status  # an open WebSocket has no outcome yet
            await call(self.limits.limiter, "conclude", verdict, status)
            self.report_now(verdict)
        return verdict

    decide, adecide = twins(_decide)

    def _require_thread(self, plan: Plan) -> None:
        """Raise ``ConfigError`` on the event loop of a server, where a wait would stop all requests."""
        if "type" in self.native and is_on_event_loop():  # under WSGI an async view has a loop of its own
            problem = "a queue cannot wait in a function without async that runs on the event loop"
            fix = "Await acheck(...) instead of check"
            raise plan.rules[0].error(f"{problem}. {fix}")

    @property
    def current_request(self) -> Request:
        """The request as it is now: code that has run since may have found its user, or read its body."""
        request = self.build_current_request()
        if request is not self.request:
            request.original = self.request
        return request

    def build_current_request(self) -> Request:
        """Return the request with what the framework has added to it since the decision."""
        raise NotImplementedError

    def error(self, verdict: Verdict) -> RateLimitExceeded:
        """Return the error for a rejection, which is a 429 of the framework."""
        return RateLimitExceeded(verdict)

    # -- the response ----------------------------------------------------------------------------------------------

    def start_response(self, status: int) -> list[Header]:
        """Note that the response starts with this status, and return its rate limit headers: those of ``first``."""
        self.status = status
        if self.first is not None:
            self.first.verdict = self.verdict
            return []
        if self.limits.is_announced:
            verdicts = [*self.verdicts, *(self.rejections or ())]
            self.limits.limiter.observers.announce(verdicts, self.verdict, *self._where)
        verdict = self.verdict
        if self.counts_outcomes:
            if not verdict.allowed and status == verdict.status:  # this package responds, not the service
                for each in self.verdicts:
                    each.note_response(NO_TIME)
            verdict.note_response(status)
            verdict = verdict.after(status)
        return self.limits.writer.headers(verdict) if self._prepared is None else self._prepared.limit_headers

    def note_error(self, error: BaseException) -> None:
        """Note an error of the application: the service has dropped a request that timed out."""
        if isinstance(error, TimeoutError):
            self.verdict.note_response(504)

    def keeps_headers(self, headers: Iterable[tuple[str | bytes, object]] | None) -> bool:
        """Return whether a response keeps the rate limit headers that it has: the rejection of another limiter."""
        if self.status != 429 or not self.verdict.allowed:
            return False
        return not FIELD_NAMES.isdisjoint(_names(headers))

    def may_be_stored(self, headers: Iterable[tuple[str | bytes, object]] | None) -> bool:
        """Return whether caches may keep a response, which is your own to a rejection."""
        return not self.verdict.allowed and (self.status or 0) >= 400 and b"cache-control" not in _names(headers)

    def rejection(self) -> PreparedRejection:
        """Return the response of this package to a rejection."""
        first = self.first or self
        first._prepared = self._prepared = first.limits.rejections.find(self.verdict, self.request.accept)
        return first._prepared

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self, status: int | None) -> None:
        """End the request with its body. Nothing refers to it then, so the garbage collector gets no cycle."""
        self.is_streamed = False
        self.end(status)
        if self.outer is None:
            self.native.pop(ADMISSION, None)
        else:
            self.native[ADMISSION] = self.outer

    def end(self, status: int | None) -> None:
        """Settle each verdict once, and send the event. The status is None for an unknown outcome.

        An application that fails before its response has 500, which servers then send. Later costs are settled at once.
        """
        if due := self.take_due():
            self.limits.limiter.conclude(combine_verdicts(due), status)
        if self.limits.is_observed:
            self.observe()

    async def aend(self, status: int | None) -> None:
        """Async form of ``end``. It completes when its caller is cancelled."""
        await self.settle(self.take_due(), status)

    async def settle(self, due: Sequence[Verdict], status: int | None) -> None:
        """Settle the verdicts that are due, and send the event."""
        try:
            if due:
                await self.limits.limiter.aconclude(combine_verdicts(due), status)
        finally:
            if self.limits.is_observed:
                self.observe()

    def take_due(self) -> Sequence[Verdict]:
        """Note that the request ends, and take the verdicts that are still to settle, nearly always none."""
        if self.first is not None:
            return ()
        if not (self.needs_settlement or self.is_streamed or self._settled):
            for verdict in self.verdicts:  # nearly always one, without a receipt
                verdict.settles_at_end = False
            self.has_ended = True
            if self.combined is None and (not self.verdicts or self.verdicts[0].open_receipt is None):
                self._settled = len(self.verdicts)
                return ()
        with lock:
            self.has_ended |= not self.is_streamed
            due, self._settled = self.verdicts[self._settled :], len(self.verdicts)
        for verdict in due:  # before its receipt is read: no cost that another thread states is lost
            verdict.settles_at_end = False
        return [verdict for verdict in due if self.needs_settlement or verdict.open_receipt is not None]

    def skip_event(self) -> None:
        """Send no event for this request, unless a rule has decided it. Pages about the events are no events."""
        first = self.first or self
        if not first.verdict.decisions:
            first._reported = len(first.verdicts)

    def observe(self) -> None:
        """Call the observers with the event of all decisions that have none yet."""
        if self.first is not None:
            return
        observers, where = self.limits.limiter.observers, self._where
        decided = self.verdicts or self.rejections
        if self._reported < 0 and self.combined is None and decided and decided[0] is self.verdict:
            self._reported, self.rejections = len(self.verdicts), None  # nothing else was decided
            observers.report((self.verdict,), None, *where)
            return
        with lock:
            start, self._reported = self._reported, len(self.verdicts)
            rejections, self.rejections = self.rejections or [], None
        if verdicts := [*self.verdicts[max(start, 0) :], *rejections]:
            final = Verdict() if self.verdict is self._late_rejection else self.verdict
            observers.report(verdicts, final, *where, is_again=start >= 0)

    def report_now(self, verdict: Verdict) -> None:
        """Send the event of one verdict that is settled."""
        if self.limits.is_observed:
            self.limits.limiter.observers.report((verdict,), None, *self._where, is_again=True)

    @property
    def _where(self) -> tuple[str | None, str]:
        """The endpoint and the method of the request, for its event."""
        return self.request.to.endpoint, self.request.method


def _names(headers: Iterable[tuple[str | bytes, object]] | None) -> set[bytes]:
    """Return the names of headers in lower case."""
    names = (name if isinstance(name, bytes) else name.encode("latin-1", "replace") for name, _ in headers or ())
    return {name.lower() for name in names}


def undecided(plan: Plan, limits: HttpLimits, native: Mapping[str, Any], before_user: bool) -> Plan:
    """Return the rest of a plan that outer middleware of the same limiter has not decided.

    The lists are checked again, because the user may be known only now. A middleware before the user leaves some rules
    to the inner one.
    """
    innermost: Admission | None = native.get(ADMISSION)
    outer = innermost and innermost.of_limiter(limits)
    names = set(limits.left_to_inner if before_user else ())
    names.update(rule for verdict in (outer.verdicts if outer else ()) for rule in verdict.rules)
    return limits.plan_without(plan, frozenset(names)) if names else plan
