"""``Settlement``: changes verdicts after their decision: refunds, true costs, the end of a request, and resets.

It works out how much each hit must have consumed. The store that counted the hit makes the change.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ..decision import REFUND, PendingCorrection, Receipt, Verdict, prefix_of, settle_now, state_cost
from ..errors import ConfigError, StoreError, suggestion
from ..keys.features import Features
from ..quota import checked_cost
from ..rules.compiled import CompiledRule
from ..rules.ruleset import RuleSet
from ..runtime.blocking import Call, async_call, blocking_call, run_blocking, twins
from .clocks import Clocks
from .reloads import Reloads
from .remote.breaker import NotAskedError
from .remote.store import RequestStore
from .slots import Slots
from .tasks import Tasks, completed

_log = logging.getLogger("ratelimit_mw")
_Corrections = list[tuple[Receipt, list[PendingCorrection]]]


class Settlement:
    """Settles the verdicts of a limiter. Its slots send the corrections."""

    def __init__(self, store: RequestStore, clocks: Clocks, tasks: Tasks, slots: Slots, reloads: Reloads) -> None:
        self._store, self._clocks, self._tasks, self._slots, self._reloads = store, clocks, tasks, slots, reloads

    @property
    def rules(self) -> RuleSet:
        """The rules of the limiter."""
        return self._reloads.rules

    async def refund(self, call: Call, verdict: Verdict) -> None:
        """Refund all of the cost that a verdict consumed. A second call changes nothing.

        Args:
            verdict: A verdict of ``hit``.
        """
        for part in verdict.parts:
            if part.running is not None:
                part.running.leave()
            for rule in part.rules:
                part.receipt.stated[rule] = REFUND
        await self._correct(call, verdict)

    async def settle(self, call: Call, verdict: Verdict, cost: int, rule: str | None = None) -> None:
        """Replace the cost that a verdict consumed with the true cost.

        A lower cost refunds the difference. A higher cost consumes the difference, even beyond the limit. Slots of
        concurrency rules are not changed.

        Args:
            verdict: A verdict of ``hit``.
            cost: The true cost in units of the limits, a whole number from 0 to 10**12.
            rule: The name of the rule to settle. You may leave it out when only one rule applied. A rule that did not
                apply to the request is not changed.

        Raises:
            ConfigError: ``cost`` is out of range, there is no such rule, or several rules applied.
        """
        checked_cost(cost)  # even if no rule applied
        names = self.rules.by_name
        if rule is None:
            rules = list(dict.fromkeys(d.rule for d in verdict.decisions if not d.quota.concurrent))
            if len(rules) > 1:
                fix = f'Name one: settle(verdict, cost, rule="{rules[-1]}")'
                raise ConfigError(f"{len(rules)} rules apply: {', '.join(map(repr, rules))}. {fix}")
            rule = rules[0] if rules else None
        elif rule not in names and rule not in verdict:
            raise ConfigError(f"unknown rule {rule!r}{suggestion(rule, names)}")
        if rule is not None:
            state_cost(verdict.parts, rule, cost)
        await self._correct(call, verdict)

    def settle_stated(self, verdict: Verdict) -> None:
        """Apply the costs that ``verdict[rule].settle`` stated. On an event loop, a task applies them."""
        if self._tasks.must_not_wait:
            self._start(self._record(verdict))
        else:
            run_blocking(self._send(blocking_call, self._record(verdict)))

    async def conclude(self, call: Call, verdict: Verdict, status: int | None) -> None:
        """Return slots, apply the stated cost and undo costs that do not count; adapters call it after the response.

        Args:
            verdict: The verdict of the request.
            status: The HTTP status of the response. None means that the outcome is unknown: the cost stays consumed.
        """
        is_due = False
        for part in verdict.parts:
            if part.running is not None:
                part.running.leave(status)
            if part.open_receipt is not None or any(decision.hit[0].settles for decision in part.decisions):
                self._slots.release(part)
                part.receipt.has_ended, part.receipt.status, is_due = True, status, True
        if is_due:
            await self._correct(call, verdict)

    def forget(self, verdict: Verdict, rule: str) -> None:
        """Set the counts under the key of one rule of a verdict to zero, those of the verdict included.

        A key with an invalid feature stays: many clients share it, so one of them could reset the counts of the others.
        On an event loop, a task does it.
        """
        decisions = [decision for decision in verdict.decisions if decision.rule == rule]
        keys = dict.fromkeys(key for decision in decisions for key in decision.source.keys_of(decision.key))
        dropped = self._drop(verdict, rule, list(keys), self.rules.by_name.get(rule))

        def forget_here() -> None:
            run_blocking(self._forget(blocking_call, rule, dropped))

        if self._tasks.must_not_wait:
            self._tasks.start(self._forget(async_call, rule, dropped), forget_here)
        else:
            forget_here()

    async def _forget_key(self, call: Call, verdict: Verdict, rule: str, features: Features, rules: RuleSet) -> None:
        """Do what ``forget`` does for a key that the current request, which has a verdict, may count under."""
        found = await self._keys(call, rule, features, rules)
        await self._forget(call, rule, self._drop(verdict, rule, found, rules.named(rule)))

    forget_key, aforget_key = twins(_forget_key)

    async def _keys(self, call: Call, rule: str, features: Features, rules: RuleSet) -> list[str]:
        """Return all keys that a rule may count features under."""
        compiled = rules.named(rule)
        key, own = await compiled.limits_of_client(call, features, self._clocks.time)
        limits = compiled.all_limits()  # those of functions are known now, with their periods, which the keys have
        if own is None and not limits:
            raise ConfigError(f"the limits of rule {rule!r} are not known, because their function failed")
        return list(dict.fromkeys(limit.prefix + key + self._clocks.key_suffix() for limit in limits))

    async def reset(self, call: Call, rule: str, features: Features) -> None:
        """Reset the counts of one client under a rule, and lift its ban.

        Args:
            rule: The name of the rule.
            features: The features of its key, for example ``{"ip": "192.0.2.7"}``.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
            StoreError: The store is unreachable.
        """
        counted = self._reloads.as_counted(features)
        self.rules.named(rule).require_client(counted)
        keys = await self._keys(call, rule, counted, self.rules)
        await call(self._store, "forget", keys)

    def _drop(self, verdict: Verdict, rule: str, keys: list[str], compiled: CompiledRule | None) -> list[str]:
        """Note that a verdict has consumed nothing under keys. Return those that belong to one client.

        A reload may have removed the rule.
        """
        if compiled is not None:
            keys = [key for key in keys if not compiled.key.has_invalid(key.removeprefix(prefix_of(key)))]
        for part in verdict.parts:
            if any(decision.hit[1] in keys for decision in part.decisions):
                part.receipt.drop(rule)
        return keys

    async def _forget(self, call: Call, rule: str, keys: list[str]) -> None:
        """Reset keys. A failure is logged, because the view continues: an outage by the circuit breaker, once."""
        try:
            await call(self._store, "forget", keys)
        except NotAskedError:
            pass
        except StoreError as error:
            _log.warning("rule %s: the store could not reset a key (%s)", rule, error)

    async def _correct(self, call: Call, verdict: Verdict) -> None:
        """Send the corrections of a verdict. On an event loop, they are sent even when the caller is cancelled."""
        corrections = self._record(verdict)
        if call is blocking_call or not self._tasks.waits:
            await self._send(blocking_call, corrections)
        elif corrections:
            with suppress(StoreError):  # the event loop has cancelled the task
                await completed(self._start(corrections))

    def _record(self, verdict: Verdict) -> _Corrections:
        """Record the corrections of a verdict, for each part that has any. Other limiters settle their parts."""
        recorded: _Corrections = []
        for part in verdict.parts:
            if part is not verdict and part.settlement not in (None, self):
                settle_now(part)
            elif pending := part.receipt.corrections(part.receipt.due):
                recorded.append((part.receipt, pending))
        return recorded

    def _start(self, corrections: _Corrections) -> asyncio.Future[None]:
        """Send corrections in a task. An event loop that ends cancels it: then the slots are returned later."""

        def keep_slots() -> None:
            for _, pending in corrections:
                self._slots.return_later(pending)

        return self._tasks.start(self._send(async_call, corrections), keep_slots)

    async def _send(self, call: Call, corrections: _Corrections) -> None:
        for receipt, pending in corrections:
            await self._slots.settle(call, receipt, pending)
