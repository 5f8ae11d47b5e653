"""One request from its first decision to the end of its response."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from ..decision import CombinedVerdict, Verdict
from ..errors import ConfigError, RateLimitExceeded
from ..forksafe import create_lock
from ..rules.costs import HeaderCost
from ..rules.guard import current
from ..rules.marks import Mark, ViewMarks
from ..rules.plan import Plan
from .features import aread, read
from .headers import FIELD_NAMES, Header, TextHeader, as_text
from .rejection import Rejection, build_rejection
from .request import Request
from .rules import DECIDED, HttpRules

_lock = create_lock(sys.modules[__name__], "_lock", threading.Lock)


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


class Admission:
    """Decides a request, writes the headers of its response, and settles it when the response ends.

    ``verdict`` has all decisions so far, or only those of the rejection. ``verdicts`` are the ones to settle. Other
    middleware finds the admission in ``native``, the application its verdict in ``shown[name]``, together with the
    verdicts of outer middleware. Code that runs in the request decides more plans: see ``checks.py``.
    """

    marks: Sequence[Mark] = ()
    """The limits of decorators that are decided: those of the view."""

    status: int | None = None
    """The status of the response, once it has started. From then on a client may choose the number of verdicts, so
    they are settled at once, except for slots."""
    needs_settlement = False
    _checked_rules: frozenset[str] = frozenset()
    _allowed: CombinedVerdict | None = None  # of all verdicts to settle, once there are several
    ends_with_body = False
    """Whether it ends no earlier than the body of the response: it holds slots, or the view may still mark it."""
    counts_outcomes = False
    """Whether the start of the response changes what is consumed, by its status or a header."""
    true_costs: tuple[tuple[str, HeaderCost], ...] = ()
    """The rules whose true cost is in a header of the response."""
    is_open = False
    """Whether it is an accepted WebSocket."""
    _headers: list[Header] | None = None
    is_outer = False
    """Whether a middleware with the same rules is inside, in addition to ``limits.is_outer``."""
    is_streamed = False
    """Whether its response is a stream that is not closed. Checks in it take slots, also after an ``end``."""
    has_ended = False
    """Whether the response has ended. Verdicts from then on are settled at once."""
    _settled = 0  # the number of verdicts that are settled
    _before: tuple[Verdict, ...] = ()  # those of outer middleware with the same rules
    _outer: tuple[Verdict, ...] = ()  # those of all outer middleware
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
        decided = native.get(DECIDED)
        if decided is not None and verdict.allowed and (before := limits.verdicts(native)):
            self._before = (before[-1],)  # it has those of all before it
            self.verdict = CombinedVerdict((*self._before, verdict))
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

    @property
    def shown(self) -> Verdict:
        """The verdict for the application: a rejection, or all verdicts so far."""
        return CombinedVerdict(self._outer, (self.verdict,)) if self._outer and self.verdict.allowed else self.verdict

    def enter(self, marks: ViewMarks | None) -> None:
        """Make this the request of this thread or task, whose view has these marks."""
        if marks is not None:
            self.marks = (*self.marks, *marks.every) if self.marks else marks.every
        current.set(self)

    def close(self, status: int | None) -> None:
        """End the request with its body. Nothing finds it any more, so that the garbage collector gets no cycle."""
        self.is_streamed = False
        self.end(status)
        if self.outer is None:
            self.native.pop(DECIDED, None)
        else:
            self.native[DECIDED] = self.outer

    def add(self, plan: Plan, verdict: Verdict) -> Verdict:
        """Add another verdict. A rejection refunds nothing, because code of the application has run in between."""
        if not verdict.allowed:
            self.verdict = verdict
            return verdict
        self._checked_rules |= {*verdict.rules}
        self._allowed = self._allowed or CombinedVerdict(self._before, self.verdicts)
        for first in self.verdicts[:1]:
            _ = first.receipt  # an end at the same time settles all verdicts, or this one settles itself
        with _lock:  # a request may check in several threads, and end in another one
            is_kept = not self.has_ended and (self.status is None or plan.has_slots)
            verdict.settler = self.limits if is_kept else self.limits.limiter
            if is_kept:
                self.verdicts.append(verdict)
                if plan.needs_settlement:
                    self._hold(plan, verdict)
        self.verdict = self._allowed if is_kept else CombinedVerdict((self._allowed, verdict))
        return verdict

    def has_decided(self, rule: str) -> bool:
        """Return whether this limiter has decided a rule, and has allowed the request."""
        return rule in self._checked_rules or any(rule in verdict for verdict in self.verdicts[:1])

    def check(self, plan: Plan, provided: Mapping[str, Any] | None = None) -> Verdict:
        """Decide another plan in the middle of the request. Raises the rejection as an error of the framework."""
        verdict = self._checked(plan, decide(self.limits, plan, self.now, provided, self.resolve))
        if verdict.delay:
            time.sleep(verdict.delay)
        if verdict.settler is self.limits.limiter and plan.needs_settlement:
            self.limits.limiter.conclude(verdict, self._outcome)
        return verdict

    async def acheck(self, plan: Plan, provided: Mapping[str, Any] | None = None) -> Verdict:
        """Async form of ``check``."""
        verdict = self._checked(plan, await adecide(self.limits, plan, self.now, provided))
        if verdict.delay:
            await asyncio.sleep(verdict.delay)
        if verdict.settler is self.limits.limiter and plan.needs_settlement:
            await self.limits.limiter.aconclude(verdict, self._outcome)
        return verdict

    @property
    def _outcome(self) -> int | None:
        """The status of a response that has started; None for a WebSocket, which has no outcome yet."""
        return None if self.is_open else self.status

    def decide_marks(self, marks: Sequence[Mark]) -> None:
        """Decide the limits of a function that the view calls. Raises the rejection."""
        self.check(self._plan_of(marks))

    async def adecide_marks(self, marks: Sequence[Mark]) -> None:
        """Async form of ``decide_marks``."""
        await self.acheck(self._plan_of(marks))

    def _plan_of(self, marks: Sequence[Mark]) -> Plan:
        marks, self.limits = self.limits.with_called(marks)
        return self.limits.rules.plan_of(marks, self.request.method, self.request.host, None, self.lists)

    def _checked(self, plan: Plan, verdict: Verdict) -> Verdict:
        self.add(plan, verdict)
        self.show()
        if not verdict.allowed:
            raise self.error(verdict)
        return verdict

    @property
    def now(self) -> Request:
        """The request as it is now: code that has run since may have found its user, or read its body."""
        request = self.renew()
        if request is not self.request:
            request.first = self.request
        return request

    def renew(self) -> Request:
        """Return the request anew."""
        return self.request

    def show(self) -> None:
        """Show the application the verdict again."""

    def error(self, verdict: Verdict) -> RateLimitExceeded:
        """Return the error for a rejection, which is a 429 of the framework."""
        return RateLimitExceeded(verdict)

    @staticmethod
    def resolve(value: Any) -> Any:
        """Return the value of a feature, which may come from an async function."""
        if type(value) is not str and inspect.isawaitable(value):
            getattr(value, "close", str)()  # a coroutine that nothing awaits would warn
            raise ConfigError("a function that is not async cannot await a feature of an async function")
        return value

    def _hold(self, plan: Plan, verdict: Verdict) -> None:
        """Hold the slots that a verdict has taken until the end."""
        self.needs_settlement = True
        self.ends_with_body |= plan.ends_with_body
        self.true_costs += plan.true_costs
        self.counts_outcomes |= plan.counts_outcomes or bool(plan.true_costs)
        if plan.has_slots:
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
    def accept(self) -> str:
        """The ``Accept`` header of the request."""
        return ", ".join(self.request.header_lines("accept"))

    @property
    def retry_after(self) -> str | None:
        """The ``Retry-After`` header of a rejection."""
        self._headers = headers = self.headers(self.verdict.status)  # it may have a random part
        return next((value.decode("ascii") for name, value in headers if name == b"retry-after"), None)

    def end(self, status: int | None) -> None:
        """Settle each verdict once. The status is None for an unknown outcome. Later costs are settled at once."""
        if due := self._due():
            self.limits.limiter.conclude(CombinedVerdict(due), status)

    async def aend(self, status: int | None) -> None:
        """Async form of ``end``. It completes when its caller is cancelled."""
        if not self.limits.limiter.waits:
            self.end(status)
        elif due := self._due():
            await self.limits.limiter.aconclude(CombinedVerdict(due), status)

    def _due(self) -> Sequence[Verdict]:
        with _lock:
            self.has_ended |= not self.is_streamed
            due, self._settled = self.verdicts[self._settled :], len(self.verdicts)
        for verdict in due:  # before its receipt is read: no cost that another thread states is lost
            verdict.settler = self.limits.limiter
        return [verdict for verdict in due if self.needs_settlement or verdict.open_receipt is not None]
