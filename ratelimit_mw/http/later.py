"""``LaterDecisions``: the half of an ``Admission`` that decides more plans, while code of the application runs."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from ..decision import CombinedVerdict, Verdict, combine_verdicts
from ..errors import ConfigError, RateLimitExceeded
from ..forksafe import create_lock
from ..limiter.slots.queues import is_on_event_loop
from ..rules.plan import Plan
from .request import Request
from .rules import HttpRules

if TYPE_CHECKING:
    from ..rules.access_lists import AccessLists

lock = create_lock(sys.modules[__name__], "lock", threading.Lock)
"""Held while verdicts are added, and while those to settle are taken."""


class LaterDecisions:
    """Decides a plan in the middle of a request. ``Admission`` inherits it."""

    limits: HttpRules
    native: MutableMapping[str, Any]
    """The ASGI scope or the WSGI environ."""
    request: Request
    lists: AccessLists | None
    verdict: Verdict
    verdicts: list[Verdict]
    rejections: list[Verdict] | None = None
    """The rejections that the event of the request has, once there are any."""
    status: int | None = None
    """The status of the response, once it has started. From then on a client may choose the number of verdicts, so
    they are settled at once, except for slots."""
    has_ended = False
    """Whether the response has ended. Verdicts from then on are settled at once."""
    is_open = False
    """Whether it is an accepted WebSocket."""
    resolve: Callable[[Any], Any] | None = None
    """Returns the value of a feature that an async function provides, where a view that is not async may need it."""
    _late_rejection: Verdict | None = None  # which has its own event
    _before: tuple[Verdict, ...] = ()  # those of outer middleware with the same rules
    _checked_rules: frozenset[str] = frozenset()
    _allowed: CombinedVerdict | None = None  # of all verdicts to settle, once there are several

    @abstractmethod
    def _decide(self, plan: Plan, provided: Mapping[str, Any] | None) -> Verdict:
        """Decide a plan for the request as it is now."""

    @abstractmethod
    async def _adecide(self, plan: Plan, provided: Mapping[str, Any] | None) -> Verdict:
        """Async form of ``_decide``."""

    @abstractmethod
    def _hold(self, plan: Plan, verdict: Verdict) -> None:
        """Hold the slots that a verdict has taken until the end."""

    def add(self, plan: Plan, verdict: Verdict) -> Verdict:
        """Add another verdict. A rejection refunds nothing, because code of the application has run in between."""
        if not verdict.allowed:
            self.verdict = verdict
            self.note_rejection(verdict)
            return verdict
        self._checked_rules |= {*verdict.rules}
        self._allowed = self._allowed or combine_verdicts(self._before, self.verdicts)
        for first in self.verdicts[:1]:
            _ = first.receipt  # an end at the same time settles all verdicts, or this one settles itself
        with lock:  # a request may check in several threads, and end in another one
            is_kept = not self.has_ended and (self.status is None or plan.has_slots)
            verdict.settler = self.limits if is_kept else self.limits.limiter
            if is_kept:
                self.verdicts.append(verdict)
                if plan.needs_settlement:
                    self._hold(plan, verdict)
        self.verdict = self._allowed if is_kept else combine_verdicts((self._allowed, verdict))
        return verdict

    def has_decided(self, rule: str) -> bool:
        """Return whether this limiter has decided a rule, and has allowed the request."""
        return rule in self._checked_rules or any(rule in verdict for verdict in self.verdicts[:1])

    def check(self, plan: Plan, provided: Mapping[str, Any] | None = None) -> Verdict:
        """Decide another plan in the middle of the request. Raises the rejection as an error of the framework."""
        if plan.delays:
            self._require_thread(plan)
        verdict = self._decide(plan, provided)
        self.keep(plan, verdict)
        if not verdict.allowed:
            raise self.error(verdict)
        return verdict

    def keep(self, plan: Plan, verdict: Verdict) -> None:
        """Add a verdict, show it to the application, and wait in its queue."""
        self.add(plan, verdict)
        self.show()
        if verdict.delay:
            self._require_thread(plan)  # a function may have returned a limit with a queue
            time.sleep(verdict.delay)
        if verdict.settler is self.limits.limiter:
            if plan.needs_settlement:
                self.limits.limiter.conclude(verdict, self._outcome)
            self.report_now(verdict)

    def _require_thread(self, plan: Plan) -> None:
        """Raise ``ConfigError`` on the event loop of a server, where a wait would stop all requests."""
        if "type" in self.native and is_on_event_loop():  # under WSGI an async view has a loop of its own
            problem = "a queue cannot wait in a function without async that runs on the event loop"
            fix = "Await acheck(...) instead of check"
            raise ConfigError(f"{problem}. {fix}", of=f"rule {plan.rules[0].name!r}")

    async def acheck(self, plan: Plan, provided: Mapping[str, Any] | None = None) -> Verdict:
        """Async form of ``check``."""
        verdict = await self._adecide(plan, provided)
        self.add(plan, verdict)
        self.show()
        if not verdict.allowed:
            raise self.error(verdict)
        if verdict.delay:
            await asyncio.sleep(verdict.delay)
        if verdict.settler is self.limits.limiter:
            if plan.needs_settlement:
                await self.limits.limiter.aconclude(verdict, self._outcome)
            self.report_now(verdict)
        return verdict

    def note_rejection(self, verdict: Verdict) -> None:
        """Keep a rejection for the event of the request. After the start of the response it has its own event."""
        if self.has_ended or self.status is not None:
            self._late_rejection = verdict
            self.report_now(verdict)
        else:
            self.rejections = self.rejections or []
            self.rejections.append(verdict)

    def report_now(self, verdict: Verdict) -> None:
        """Send the event of one verdict that is settled."""
        if self.limits.is_observed:
            self.limits.limiter.observers.report_one(verdict)

    @property
    def _outcome(self) -> int | None:
        """The status of a response that has started; None for a WebSocket, which has no outcome yet."""
        return None if self.is_open else self.status

    @property
    def now(self) -> Request:
        """The request as it is now: code that has run since may have found its user, or read its body."""
        request = self.renew()
        if request is not self.request:
            request.first = self.request
        return request

    def renew(self) -> Request:
        """Return the request anew."""
        raise NotImplementedError

    def show(self) -> None:
        """Show the application the verdict again."""

    def error(self, verdict: Verdict) -> RateLimitExceeded:
        """Return the error for a rejection, which is a 429 of the framework."""
        return RateLimitExceeded(verdict)
