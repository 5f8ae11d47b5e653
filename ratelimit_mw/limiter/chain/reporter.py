"""``Reporter``: the calls that report the consumption of this process to the store, all keys together.

A thread reports at an interval while there is anything to report. A request does it for its own keys when the thread
is late. A report that fails is kept for the next one.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from ...clock import SECOND, Clock
from ...errors import StateError, StoreError
from ...forksafe import create_lock
from ...receipt import Correction
from ...stores import Store
from ...stores.blocking import Call, async_call, blocking_call, run_blocking
from ...stores.heartbeat import Heartbeat
from .link import ChainLink
from .report_table import REPORT_EVERY, Account, Report, ReportTable

if TYPE_CHECKING:
    from ...decision import Decision

_KEYS_PER_CALL: Final = 500
_PAUSE, _PAUSES = 0.01, 100


class Reporter(ChainLink):
    """Keeps the accounts of reported keys. ``now`` returns the time to pass to the store, or None."""

    def __init__(self, store: Store, clock: Clock, now: Callable[[], int | None]) -> None:
        super().__init__(store)
        self._clock = clock
        self._now = now
        self._lock = create_lock(self, "_lock", threading.Lock, lambda own, _: own._start_over())
        self._start_over()
        task, effect = "report sums", "each request reports its own keys"
        self._beat = Heartbeat(self._report_due, REPORT_EVERY / SECOND, task, effect)

    def _start_over(self) -> None:
        """Drop all accounts. A forked child does so, because the parent reports its own consumption."""
        self._reports = ReportTable()
        self._under_way = 0  # Reports without a reply.

    def report(self, accounts: Sequence[Account]) -> None:
        """Report these accounts now, in one call, and in a second one when the sum of a key exceeds its limit."""
        run_blocking(self._report(blocking_call, accounts))

    async def areport(self, accounts: Sequence[Account]) -> None:
        await self._report(async_call, accounts)

    async def _report(self, call: Call, accounts: Sequence[Account]) -> None:
        for report in self._reports_of(accounts):
            with self._keeping(report):
                decisions = await call(self.store, "apply", report.hits, self._now())
                if corrections := self._learn_report(report, decisions):
                    await call(self.store, "correct", corrections, self._now())
                    self._end_report(report)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return run_blocking(self._correct(blocking_call, changes, now))

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return await self._correct(async_call, changes, now)

    async def _correct(self, call: Call, changes: Sequence[Correction], now: int | None) -> list[int]:
        """Make corrections of accounts, after the store has made the others. Return the times of all."""
        accounts = self._accounts_of(changes)
        others = [change for change in changes if change.key not in accounts]
        times = iter(await call(self.store, "correct", others, now) if others else ())
        at = self._clock()
        with self._lock:
            return [
                self._reopen(accounts[change.key]).correct(change, at) if change.key in accounts else next(times)
                for change in changes
            ]

    def close(self) -> None:
        """Report the rest and close the store. If that report fails, it is lost."""
        for pause in self._until_replied():
            time.sleep(pause)
        with suppress(StoreError):
            self.report(self._last())
        self.store.close()

    async def aclose(self) -> None:
        for pause in self._until_replied():
            await asyncio.sleep(pause)
        with suppress(StoreError):
            await self.areport(self._last())
        await self.store.aclose()

    def forget_here(self, keys: Iterable[str]) -> None:
        with self._lock:
            self._reports.forget(keys)

    def _until_replied(self) -> Iterator[float]:
        """End the thread. Return pauses in seconds until no report is under way. The last one repeats failed sums."""
        self._beat.close()
        return itertools.takewhile(lambda _: self._under_way, itertools.repeat(_PAUSE, _PAUSES))

    def _last(self) -> list[Account]:
        """Return the accounts to report before the store is closed, including those with refunds to send."""
        with self._lock:
            accounts = self._reports.due(self._clock())
            for account in accounts:
                account.is_used = False
        return accounts

    def _report_due(self, table: ReportTable) -> None:
        with self._lock:
            accounts = table.due(self._clock())
            if not table.accounts:
                self._beat.release(table)
        with suppress(StoreError):  # the circuit breaker logs it, and the next report has the same sums
            self.report(accounts)

    def _reports_of(self, accounts: Sequence[Account]) -> Iterator[Report]:
        for start in range(0, len(accounts), _KEYS_PER_CALL):
            with self._lock:
                report = Report(self._reports, accounts[start : start + _KEYS_PER_CALL])
                self._under_way += 1
            yield report

    def _learn_report(self, report: Report, decisions: Sequence[Decision]) -> list[Correction]:
        with self._lock:
            return report.learn(decisions, self._clock())

    def _end_report(self, report: Report) -> None:
        with self._lock:
            report.end(self._clock())

    @contextmanager
    def _keeping(self, report: Report) -> Iterator[None]:
        """Keep the sums of a report that fails or is cancelled. Damaged keys start anew without them."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                report.fail()
                if isinstance(error, StateError):
                    self._reports.forget(error.keys)
            raise
        finally:
            with self._lock:
                self._under_way -= 1

    def _accounts_of(self, changes: Iterable[Correction]) -> dict[str, Account]:
        """Return the accounts that take the corrections of their keys."""
        found = {change.key: self._reports.accounts.get(change.key) for change in changes if change.limit.reports}
        return {key: account for key, account in found.items() if account is not None and account.fresh_until}

    def _reopen(self, account: Account) -> Account:
        """Return the account that takes a change of this one, and report it. The caller holds the lock."""
        self._beat.hold(self._reports)
        return self._reports.reopen(account)
