"""``OutcomeWatch``: the warning for a rule whose outcomes never count, such as one with the wrong status."""

import logging
import threading
from collections import Counter, defaultdict
from typing import Final

from ..algorithms.limit import Limit
from ..decision import Verdict
from ..forksafe import create_lock

_FIRST: Final = 100
_log = logging.getLogger("ratelimit_mw")


class OutcomeWatch:
    """Watches the first responses of each rule with ``count_when`` or ``count_unless``."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._done: set[str] = set()
        self._lock = create_lock(self, "_lock", threading.Lock)

    def note(self, verdict: Verdict) -> None:
        """Note the outcome of a verdict that has ended."""
        receipt = verdict.receipt
        if receipt.status is not None and verdict.allowed:
            limits = {decision.rule: decision.source for decision in verdict.decisions}
            for rule, limit in limits.items():
                if limit.statuses is not None and rule not in self._done:
                    self._note(limit, receipt.status, receipt.counts(limit, receipt.status))

    def _note(self, limit: Limit, status: int, counts: bool) -> None:
        rule = limit.rule
        with self._lock:
            seen = self._seen[rule]
            seen[status] += 1
            if rule in self._done or not (counts or seen.total() == _FIRST):
                return
            self._done.add(rule)
            del self._seen[rule]
        if not counts:
            statuses = " and ".join(str(status) for status, _ in seen.most_common(2))
            compare = f"Most frequent statuses: {statuses}. Compare them with count_when or count_unless"
            _log.warning(
                "rule %s: none of its first %d responses counted, so the rule rejects no client. %s",
                rule,
                _FIRST,
                compare if limit.statuses else f'Mark the requests that count: verdict["{rule}"].count()',
            )
