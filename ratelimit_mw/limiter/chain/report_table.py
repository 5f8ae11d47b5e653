"""``ReportTable``: the consumption of busy keys that this process reports to the store later. It makes no calls.

A key has an account: the amount that remained in the last reply of the store, minus the later consumption of this
process. The account alone decides each hit, and the sum of many hits goes to the store later. Other processes may have
consumed the same amount. Together they exceed a limit by at most the unreported sums of all processes but one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ...clock import SECOND
from ...decision import Decision, EstimatedRejection, Hit
from ...receipt import Charge, Correction
from .last_decision import refunded
from .lease_table import MAX_KEYS, SeenKeys

if TYPE_CHECKING:
    from ...algorithms.limit import Limit

REPORT_EVERY: Final = SECOND // 10
_MAX_AGE: Final = 2 * REPORT_EVERY
"""The age up to which an account decides hits. After that, a request reports first."""
_LONGEST: Final = _MAX_AGE + REPORT_EVERY
"""The same age while a report is under way, so that not every request reports."""


class Account:
    """One key: the last decision of the store, and the consumption of this process since then."""

    __slots__ = (
        "counted_at",
        "decision",
        "fresh_until",
        "is_used",
        "is_void",
        "key",
        "known_at",
        "limit",
        "rejected",
        "replies",
        "rest",
        "sent",
        "unsent",
    )
    decision: Decision

    def __init__(self, limit: Limit, key: str) -> None:
        self.limit, self.key = limit, key
        self.unsent = 0  # Negative when more was refunded than consumed.
        self.sent = 0  # Without a reply.
        self.replies = 0  # Of the store, so far.
        self.rest = 0
        self.known_at = self.fresh_until = 0  # No decision of the store is known.
        self.counted_at = 0  # The time at which the store last counted a cost. A refund uses it.
        self.rejected = 0  # The least cost that was rejected here since the last report.
        self.is_used = False  # Since the last report.
        self.is_void = False  # After a reset, the store no longer counts the consumption before.

    def serve(self, hit: tuple[Limit, str, int], now: int) -> Decision | None:
        """Consume the cost of a hit, or reject it. None when the account shows no recent state of the store."""
        if not self.known_at <= now < self.fresh_until or hit[0] is not self.limit:  # the clock may go back
            return None
        self.is_used = True
        if hit[2] > self.rest and hit[2]:
            return self._reject(hit, now - self.known_at)
        self.unsent += hit[2]
        self.rest -= hit[2]
        return self.look(hit, now)

    def look(self, hit: tuple[Limit, str, int], now: int) -> Decision:
        """Return the decision on a hit for the current state of the account."""
        counted, passed = self.decision, now - self.known_at
        reset = counted.reset_us - passed
        decision = Decision(True, max(0, self.rest), 0, max(0, reset), counted.at_us + passed)
        decision.hit = hit
        return decision

    def _reject(self, hit: tuple[Limit, str, int], passed: int) -> Decision:
        """Reject until the next report at least. The wait assumes that all consumption is recent."""
        cost = hit[2]
        self.rejected = min(cost, self.rejected or cost)
        limit, at, rest = self.limit, self.decision.at_us, max(0, self.rest)
        state = limit.algorithm.charge(None, at, limit.limit - rest)
        estimate = limit.decide(state, at + passed, cost)[1]
        retry = None if estimate.retry_us is None else max(estimate.retry_us, REPORT_EVERY)
        rejection = EstimatedRejection(False, rest, retry, max(estimate.reset_us, retry or 0), at + passed)
        rejection.hit = hit
        return rejection

    def add(self, cost: int) -> None:
        """Count a cost that the store does not know yet; a refund is negative."""
        self.unsent += cost
        self.rest -= cost

    def correct(self, change: Correction, now: int) -> int:
        """Make a correction here. Return its time by the clock of the store."""
        at = self.decision.at_us + now - self.known_at
        cost, consumed = change.cost, change.consumed
        if consumed is not None:
            self.counted_at = max(self.counted_at, consumed.at_us)  # the store may have counted it directly
        self.add(cost if consumed is None else -refunded(self.limit, consumed, cost, at))
        return at

    def must_report(self, limit: Limit, now: int) -> bool:
        """Whether a hit of this limit must wait for a report: the account is too old, or counts for another limit."""
        if limit is not self.limit:
            return self.unsent > 0
        return bool(self.fresh_until) and not self.known_at <= now < self.fresh_until

    def send(self, cost: int) -> None:
        """Note that a cost is on its way to the store. The account stays in use a little longer."""
        self.sent += cost
        self.fresh_until = self.fresh_until and max(self.fresh_until, self.known_at + _LONGEST)

    def take(self) -> int:
        """Return the sum to report now. It is negative for a key that is no longer busy and has a refund.

        A refund waits for the reply to the last sum, which contains the time that the refund needs.
        """
        cost = self.unsent if self.unsent > 0 or not (self.is_used or self.sent) else 0
        self.unsent, self.is_used = self.unsent - cost, False
        self.send(cost)
        return cost

    def settle(self, cost: int, decision: Decision, is_counted: bool, now: int, replies: int) -> None:
        """Note the decision of the store after a cost that was sent when the account had this number of replies.

        Calls that are under way together arrive in any order, and the clock of the store may go back. So after another
        reply during the call, the lower rest of both holds.
        """
        shown = decision.remaining
        if replies != self.replies:
            shown = min(shown, self.rest + self.unsent + self.sent)
        self.sent -= cost
        self.replies += 1
        if is_counted:
            self.counted_at = max(self.counted_at, decision.at_us)
        self.decision, self.known_at, self.fresh_until = decision, now, now + _MAX_AGE
        self.rest = shown - self.unsent - self.sent

    def keep(self, cost: int) -> None:
        """Keep a sum whose report failed for the next report."""
        self.sent, self.unsent = self.sent - cost, self.unsent + cost
        self.fresh_until = self.known_at + _MAX_AGE

    def correction(self, cost: int) -> Correction:
        """Build the charge of a sum that no longer fits the limit, or the refund of a negative sum."""
        consumed = None if cost > 0 else Charge(self.counted_at, -cost)
        return Correction(self.limit, self.key, abs(cost), consumed)


class ReportTable:
    """The accounts of this process, by key. Bounded. The caller holds a lock."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self._seen = SeenKeys()

    def late(self, hits: Iterable[Hit], now: int) -> list[Account]:
        """Return the accounts of hits that must be reported before they can be used."""
        found = ((self.accounts.get(hit[1]), hit[0]) for hit in hits)
        late = (account for account, limit in found if account is not None and account.must_report(limit, now))
        return list(dict.fromkeys(late))

    def ask(self, hit: Hit, now: int) -> Account | None:
        """Return the account that a hit of a busy key opens, or joins before the first reply. The store decides it."""
        account = self.accounts.get(hit.key)
        if account is None:
            if not self._seen.is_busy(hit.key, now, _MAX_AGE) or len(self.accounts) >= MAX_KEYS:
                return None
            account = self.accounts[hit.key] = Account(hit.limit, hit.key)
        if account.limit is not hit.limit:
            return None
        account.rest -= hit.cost
        account.send(hit.cost)
        return account

    def learn(
        self, account: Account, cost: int, replies: int, decision: Decision | None, is_counted: bool, now: int
    ) -> None:
        """Note the store's decision on a hit that was asked for; None if unknown. A rejection opens no account."""
        if decision is not None and decision.allowed:
            account.settle(cost, decision, is_counted, now, replies)
            account.is_used = True
            return
        account.sent, account.rest = account.sent - cost, account.rest + cost
        if not (account.sent or account.fresh_until):
            self._drop(account)

    def reopen(self, account: Account) -> Account:
        """Return the account that takes a change of this one. An account that was dropped since comes back."""
        current = self.accounts.get(account.key)
        if account.is_void:
            return account
        if current is None or not current.fresh_until:
            current = self.accounts[account.key] = account
        current.counted_at = max(current.counted_at, account.counted_at)
        return current

    def due(self, now: int) -> list[Account]:
        """Return the accounts to report. Drop those that are idle, and those whose sum is older than its period."""
        accounts = [account for account in self.accounts.values() if account.fresh_until]
        for account in accounts:
            is_idle = not (account.is_used or account.unsent or account.sent)
            if is_idle or now - account.known_at > max(_MAX_AGE, account.limit.quota.period_us):
                self._drop(account)
        return [account for account in accounts if account.key in self.accounts]

    def drop_exhausted(self, account: Account) -> None:
        """Drop an account that has too little for the next request: the store then decides it, with the exact wait."""
        if account.rest < account.rejected and not (account.unsent or account.sent):
            self._drop(account)
        account.rejected = 0

    def forget(self, keys: Iterable[str]) -> None:
        """Drop accounts without a report: after a reset the store no longer counts what they have consumed."""
        for key in keys:
            if account := self.accounts.pop(key, None):
                account.is_void = True

    def _drop(self, account: Account) -> None:
        if self.accounts.get(account.key) is account:
            del self.accounts[account.key]


class Report:
    """Sums on their way to the store. The caller holds a lock.

    ``hits`` contains all sums. Their limits reject no request, so the store counts each sum that fits. ``learn``
    returns corrections for the other sums, because a sum beyond its limit is counted, too.
    """

    def __init__(self, table: ReportTable, accounts: Iterable[Account]) -> None:
        self._table = table
        self._sums = {account: account.take() for account in accounts}
        self._replies = {account: account.replies for account in self._sums}
        self.hits = [Hit(each.limit.sums, each.key, max(0, cost)) for each, cost in self._sums.items()]
        self._later: dict[Account, Decision] = {}

    def learn(self, decisions: Sequence[Decision], now: int) -> list[Correction]:
        """Settle the sums that are counted. Return the corrections that count the others."""
        for (account, cost), decision in zip(list(self._sums.items()), decisions, strict=True):
            if decision.allowed and cost >= 0:
                self._settle(account, decision, now)
            else:
                decision.remaining = max(0, decision.remaining - max(0, cost))
                self._later[account] = decision
        return [account.correction(self._sums[account]) for account in self._later]

    def end(self, now: int) -> None:
        """Settle the sums that the corrections have counted."""
        for account, decision in self._later.items():
            self._settle(account, decision, now)

    def fail(self) -> None:
        """Keep the sums that are not known to be counted."""
        for account, cost in self._sums.items():
            account.keep(cost)

    def _settle(self, account: Account, decision: Decision, now: int) -> None:
        cost = self._sums.pop(account)
        account.settle(cost, decision, cost > 0, now, self._replies[account])
        self._table.drop_exhausted(account)
