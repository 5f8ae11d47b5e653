"""``HeldSlots`` renews the slots of this process, ends holds that last too long, and returns lost slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ...algorithms.concurrency import SLOT_LIFE
from ...clock import now_us
from ...decision import Hit, SlotCost, Verdict
from ...errors import StoreError
from ...receipt import Correction, PendingCorrection, Receipt
from ...stores.heartbeat import Heartbeat

if TYPE_CHECKING:
    from ...rules.ruleset import RuleSet

_RETRY_EVERY: Final = 0.5  # seconds between two tries to return a slot
_CHECK_EVERY: Final = 1.0  # seconds between two checks for slots that were held too long
_MAX_UNRETURNED: Final = 10_000


class HeldSlots:
    """The slots of the requests that run in this process.

    Args:
        correct: Sends corrections to the store.
        settle: Sends the corrections of a receipt and confirms them, even while the store is unreachable.
    """

    def __init__(
        self,
        correct: Callable[[Sequence[Correction]], object],
        settle: Callable[[Receipt, list[PendingCorrection]], None],
    ) -> None:
        self._correct, self._settle = correct, settle
        self.renewed = Heartbeat(self._renew)
        self.unreturned = Heartbeat(self._return, _RETRY_EVERY)  # slots to return, each with the time when it expires
        texts = "return slots after hold_at_most", "they stay taken until their requests end"
        self.bounded = Heartbeat(self._end_hold, _CHECK_EVERY, *texts)  # slots by rule, each with the end of its hold

    def hold(self, verdict: Verdict, rules: RuleSet) -> None:
        """Renew the slots of a verdict until ``release``, each for at most the ``hold_at_most`` of its rule."""
        names = {decision.rule for decision in verdict.decisions if decision.quota.concurrent}
        if names:
            self.renewed.hold(verdict)
        for name in names & rules.by_name.keys():
            self.bounded.hold((verdict, name, now_us() + rules.by_name[name].source.hold_us))

    def release(self, verdict: Verdict) -> None:
        """Stop renewing the slots of a verdict. The caller returns them."""
        self.renewed.release(verdict)

    def lose(self, hits: Iterable[Hit]) -> None:
        """Return the slots of hits that the store may have counted, or may still count, without a reply."""
        for limit, key, cost in hits:
            if isinstance(cost, SlotCost):
                self._return_later(Correction.return_slots(limit, key, cost), is_late=True)

    def keep(self, corrections: Iterable[Correction]) -> None:
        """Retry to return the slots among the corrections that failed."""
        for correction in corrections:
            if correction.limit.quota.concurrent:
                self._return_later(correction, is_late=False)

    def close(self) -> None:
        """Stop all threads."""
        for heartbeat in (self.renewed, self.unreturned, self.bounded):
            heartbeat.close()

    def _return_later(self, correction: Correction, is_late: bool) -> None:
        if len(self.unreturned) < _MAX_UNRETURNED:
            self.unreturned.hold((correction, now_us() + SLOT_LIFE, is_late))

    def _renew(self, verdict: Verdict) -> None:
        if renewals := verdict.receipt.renewals():
            with suppress(StoreError):  # the circuit breaker logs it
                self._correct(renewals)

    def _end_hold(self, slot: tuple[Verdict, str, int]) -> None:
        """Return the slots of a rule that a request has held for ``hold_at_most``."""
        verdict, rule, ends_at = slot
        receipt = verdict.receipt
        if not receipt.has_ended:
            if now_us() < ends_at:
                return
            self._settle(receipt, receipt.corrections(lambda d: 0 if d.quota.concurrent and d.rule == rule else None))
        self.bounded.release(slot)

    def _return(self, slot: tuple[Correction, int, bool]) -> None:
        correction, expires_at, is_late = slot
        try:
            self._correct([correction])
        except StoreError:
            if now_us() < expires_at:
                return
        else:
            if is_late:  # the store may count the hit after this correction, which has overtaken it
                self.unreturned.hold((correction, expires_at, False))
        self.unreturned.release(slot)
