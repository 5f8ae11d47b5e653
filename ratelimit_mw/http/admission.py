"""One request from its first decision to the end of its response."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from ..decision import Verdict, combine_verdicts
from ..rules.costs import HeaderCost
from ..rules.guard import set_current
from ..rules.marks import Mark, ViewMarks
from ..rules.plan import Plan
from .features import aread, read
from .headers import FIELD_NAMES, Header, TextHeader, as_text
from .later import LaterDecisions, lock
from .rejection import Rejection, build_rejection
from .request import Request
from .rules import DECIDED, HttpRules


def decide(
    limits: HttpRules,
    plan: Plan,
    request: Request,
    provided: Mapping[str, Any] | None = None,
    resolve: Callable[[Any], Any] | None = None,
) -> Verdict:
    """Decide a plan. The arguments are those of ``read``."""
    features = read(limits, plan, request, provided, resolve)
    return limits.limiter.decide(plan, features, None, True, request)


async def adecide(
    limits: HttpRules, plan: Plan, request: Request, provided: Mapping[str, Any] | None = None
) -> Verdict:
    """Async form of ``decide``. Functions of features may be async."""
    features = await aread(limits, plan, request, provided)
    return await limits.limiter.adecide(plan, features, None, True, request)


class Admission(LaterDecisions):
    """Decides a request, writes the headers of its response, and settles it when the response ends.

    ``verdict`` has all decisions so far, or only those of the rejection. ``verdicts`` are the ones to settle. Other
    middleware finds the admission in ``native``, the application its verdict in ``shown[name]``, together with the
    verdicts of outer middleware.
    """

    marks: Sequence[Mark] = ()
    """The limits of decorators that are decided: those of the view."""

    needs_settlement = False
    ends_with_body = False
    """Whether it ends no earlier than the body of the response: it holds slots, or the view may still mark it."""
    has_slots = False
    """Whether it holds slots, until the response is sent."""
    counts_outcomes: bool
    """Whether the start of the response changes what is consumed, by its status or a header."""
    true_costs: tuple[tuple[str, HeaderCost], ...] = ()
    """The rules whose true cost is in a header of the response."""
    _headers: list[Header] | None
    is_outer = False
    """Whether a middleware with the same rules is inside, in addition to ``limits.is_outer``."""
    is_streamed = False
    """Whether its response is a stream that is not closed. Checks in it take slots, even after an ``end``."""
    _settled = 0  # The number of settled verdicts.
    _reported = -1  # The number of verdicts that events have, -1 before the first event.
    _inner: tuple[Sequence[Verdict], Verdict] | None = None  # The verdicts of the inner middleware, and the last one.
    _outer: tuple[Verdict, ...] = ()  # Those of all outer middleware.
    outer: Mapping[Any, Admission] | None = None
    """The admissions of outer middleware, by limiter."""

    def __init__(
        self,
        limits: HttpRules,
        request: Request,
        plan: Plan,
        verdict: Verdict,
        native: MutableMapping[str, Any],
        shown: MutableMapping[str, Any],
        name: str = "ratelimit",
    ) -> None:
        self.limits = limits
        self.request = request
        self.lists = plan.lists
        """The allow and deny lists, for the path of the request."""
        self.verdict = verdict
        self.native = native
        self.counts_outcomes, self._headers = False, None  # responses read them faster here than on the class
        decided = native.get(DECIDED)
        if decided is not None and verdict.allowed and (before := limits.verdicts(native)):
            self._before = (before[-1],)  # it has those of all before it
            self.verdict = combine_verdicts((*self._before, verdict))
            self.counts_outcomes = True
        if decided is None:
            shown[name] = verdict
            native[DECIDED] = {limits.limiter: self}
        else:
            self.outer = decided
            self._outer = tuple(admission.verdict for admission in decided.values())
            shown[name] = self.shown
            native[DECIDED] = {**decided, limits.limiter: self}
        if verdict.allowed:
            self.verdicts = [verdict]
            verdict.settler = limits
            if plan.needs_settlement:
                self._hold(plan, verdict)
        else:
            self.verdicts = []
            self.rejections = [verdict]

    @property
    def shown(self) -> Verdict:
        """The verdict for the application: a rejection, or all verdicts so far."""
        return combine_verdicts(self._outer, (self.verdict,)) if self._outer and self.verdict.allowed else self.verdict

    def enter(self, marks: ViewMarks | None) -> None:
        """Make this the request of this thread or task, whose view has these marks."""
        if marks is not None:
            self.marks = (*self.marks, *marks.every) if self.marks else marks.every
        set_current(self)

    def close(self, status: int | None) -> None:
        """End the request with its body. Nothing refers to it then, so the garbage collector gets no cycle."""
        self.is_streamed = False
        self.end(status)
        if self.outer is None:
            self.native.pop(DECIDED, None)
        else:
            self.native[DECIDED] = self.outer

    def _decide(self, plan: Plan, provided: Mapping[str, Any] | None) -> Verdict:
        return decide(self.limits, plan, self.now, provided, self.resolve)

    async def _adecide(self, plan: Plan, provided: Mapping[str, Any] | None) -> Verdict:
        return await adecide(self.limits, plan, self.now, provided)

    def read(self, plan: Plan, request: Request, provided: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Read the features of a plan, besides those that are provided."""
        return read(self.limits, plan, request, provided, self.resolve)

    async def aread(self, plan: Plan, request: Request, provided: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Async form of ``read``."""
        return await aread(self.limits, plan, request, provided)

    def _hold(self, plan: Plan, verdict: Verdict) -> None:
        self.needs_settlement = True
        self.ends_with_body |= plan.ends_with_body
        self.true_costs += plan.true_costs
        self.counts_outcomes |= plan.counts_outcomes or bool(plan.true_costs)
        if plan.has_slots:
            self.has_slots = True
            self.limits.limiter.hold(verdict, self.limits.rules)

    def keeps_headers(self, headers: Iterable[tuple[str | bytes, object]] | None) -> bool:
        """Return whether a response keeps the rate limit headers that it has.

        They are those of an inner middleware with the same rules, which show the decisions of both, or of a rejection.
        """
        if not (self.status == 429 or self.is_outer or self.limits.is_outer):
            return False
        return self.verdict.allowed and any(name.lower() in FIELD_NAMES for name, _ in headers or ())

    def headers(self, status: int) -> list[Header]:
        """Return the rate limit headers of the response that starts with this status."""
        self.status = status
        verdict = self.verdict.after(status) if self.counts_outcomes else self.verdict
        return self._headers or self.limits.writer.headers(verdict)

    def text_headers(self, status: int) -> list[TextHeader]:
        """Return the headers as text in the title case of the standards."""
        return as_text(self.headers(status))

    def rejection(self) -> Rejection:
        """Return the package's own response to a rejection, without the rate limit headers."""
        return build_rejection(self.verdict, self.accept, self.retry_after)

    @property
    def final_status(self) -> int:
        """The status of the response; that of an error where none has started."""
        return self.status or 500

    @property
    def accept(self) -> str:
        """The ``Accept`` header of the request."""
        return ", ".join(self.request.header_lines("accept"))

    @property
    def retry_after(self) -> str | None:
        """The ``Retry-After`` header of a rejection."""
        self._headers = headers = self.headers(self.verdict.status)  # it may have a random part
        return next((value.decode("ascii") for name, value in headers if name == b"retry-after"), None)

    def end(self, status: int | None) -> None:
        """Settle each verdict once, and send the event. The status is None for an unknown outcome.

        Later costs are settled at once.
        """
        if due := self._due():
            self.limits.limiter.conclude(combine_verdicts(due), status)
        if self.limits.is_observed:
            self.observe()

    async def aend(self, status: int | None) -> None:
        """Async form of ``end``. It completes when its caller is cancelled."""
        try:
            if due := self._due():
                await self.limits.limiter.aconclude(combine_verdicts(due), status)
        finally:
            if self.limits.is_observed:
                self.observe()

    def _due(self) -> Sequence[Verdict]:
        with lock:
            self.has_ended |= not self.is_streamed
            due, self._settled = self.verdicts[self._settled :], len(self.verdicts)
        for verdict in due:  # before its receipt is read: no cost that another thread states is lost
            verdict.settler = self.limits.limiter
        return [verdict for verdict in due if self.needs_settlement or verdict.open_receipt is not None]

    def skip_event(self) -> None:
        """Send no event for this request, unless a rule has decided it. Pages about the events are no events."""
        if not self.verdict.decisions:
            self._reported = len(self.verdicts)

    def observe(self) -> None:
        """Call the observers with the event of all decisions that have none yet."""
        if self._reported < 0 and self.outer is None and self._inner is None:
            is_allowed = self.rejections is None and len(self.verdicts) == 1 and self.verdict.allowed
            if is_allowed or self._take_rejection():  # the short path: nothing else was decided
                self._reported = len(self.verdicts)
                # Not ``verdict`` of an allowed request: it may include checks that have had their own event.
                self.limits.limiter.observers.report_one(
                    self.verdicts[0] if is_allowed else self.verdict, self.request.endpoint
                )
                return
        with lock:
            first, self._reported = self._reported, len(self.verdicts)
            rejections, self.rejections = self.rejections or [], None
        if first >= self._reported and not rejections:
            return
        verdicts = [*self.verdicts[max(first, 0) :], *rejections]
        final = Verdict() if self.verdict is self._late_rejection else self.verdict
        if self._inner is not None:
            verdicts, final = [*verdicts, *self._inner[0]], self._inner[1] if final.allowed else final
        if (outer := self._outer_stage()) is not None:
            earlier = () if outer._inner is None else outer._inner[0]
            outer._inner = ([*earlier, *verdicts], final)
            outer.request.endpoint = outer.request.endpoint or self.request.endpoint
            return
        self.limits.limiter.observers.report(verdicts, final, self.request.endpoint if first < 0 else None)

    def _take_rejection(self) -> bool:
        """Return whether its one verdict is a rejection. Note it."""
        if self.verdicts or self.rejections != [self.verdict]:
            return False
        self.rejections = None
        return True

    def _outer_stage(self) -> Admission | None:
        """Return the admission of an outer middleware with the same rules, which sends one event for both."""
        outer = self.outer.values() if self.outer is not None else ()
        stages = (admission for admission in outer if self.limits.is_same(admission.limits))
        return next((stage for stage in stages if stage.limits.is_observed and stage._reported < 0), None)
