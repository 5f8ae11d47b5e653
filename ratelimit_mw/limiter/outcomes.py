"""``OutcomeWatch``: the warning for a rule whose outcomes never count, such as one with the wrong status."""

import logging
import threading
from collections import Counter, defaultdict
from typing import Final

from ..decision import Verdict

_FIRST: Final = 100
_log = logging.getLogger("ratelimit_mw")


class OutcomeWatch:
    """Watches the first responses of each rule with ``count_when`` or ``count_unless``."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._done: set[str] = set()
        self._lock = threading.Lock()

    def note(self, verdict: Verdict) -> None:
        """Note the outcome of a verdict that has ended."""
        receipt = verdict.receipt
        if receipt.status is not None and verdict.allowed:
            limits = {decision.rule: decision.source for decision in verdict.decisions}
            for rule, limit in limits.items():
                if limit.statuses is not None and rule not in self._done:
                    self._note(rule, receipt.status, receipt.counts(limit, receipt.status))

    def _note(self, rule: str, status: int, counts: bool) -> None:
        with self._lock:
            seen = self._seen[rule]
            seen[status] += 1
            if rule in self._done or not (counts or seen.total() == _FIRST):
                return
            self._done.add(rule)
            del self._seen[rule]
        if not counts:
            _log.warning(
                "rule %s: none of its first %d responses counted, so the rule rejects no client."
                " Compare their statuses, most of them %s, with its count_when or count_unless",
                rule,
                _FIRST,
                " and ".join(str(status) for status, _ in seen.most_common(2)),
            )
