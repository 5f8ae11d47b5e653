"""``History``: the part of a ``Limiter`` that reads the outcomes and clients that its processes have recorded."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ..clock import SECOND
from ..errors import ConfigError
from ..settings import Settings
from ..stores.blocking import Call, async_call, blocking_call, run_blocking
from .observers.events import Outcome
from .records import LONGEST, OUTCOMES, SPANS, Span, clients_of, read_sum
from .settlement import Settlement

if TYPE_CHECKING:
    from ..traffic import TrafficLog
    from .observers.observers import Observers
    from .observers.recorder import Recorder

_DAY_S: Final = 86_400.0


class RecordedOutcomes(NamedTuple):
    """The outcomes of requests in a time range.

    Args:
        start: The start of the range, in seconds since 1970.
        end: The end of the range, in seconds since 1970.
        rules: How many requests had each outcome, by the name of the rule. Requests without a rule have an empty name.
    """

    start: float
    end: float
    rules: dict[str, dict[Outcome, int]]


class RejectedClient(NamedTuple):
    """A client and its rejections by one rule.

    Args:
        rule: The name of the rule.
        client: The part of the key that names the client, for example ``ip=192.0.2.7``.
        rejected: How many requests the rule rejected, or would have rejected in shadow mode: at least this number.
        error: How many more they may be.
    """

    rule: str
    client: str
    rejected: int
    error: int


class History(Settlement):
    """Reads what the processes have recorded. ``Limiter`` inherits it."""

    settings: Settings
    recorder: Recorder | None
    observers: Observers
    traffic_log: TrafficLog | None

    def outcomes(self, last: float = _DAY_S) -> RecordedOutcomes:
        """Return how many requests each rule has allowed and rejected, in all processes that share the store.

        The setting ``record`` turns the recording on. The other processes write every five seconds.

        Args:
            last: The time range up to now, in seconds, at most seven days. The start is rounded
                down to a full hour, or to five minutes if the range is at most two hours.

        Returns:
            The numbers, by rule and outcome. Outcomes exclude each other: ``rejected`` does not include ``banned``.

        Raises:
            ConfigError: ``record`` is not set, ``last`` is out of range, or the store keeps no records.
            StoreError: The store is unreachable.

        Example:
            >>> from ratelimit_mw import Limiter, Rule, load_settings
            >>> limiter = Limiter([Rule(name="api", limits="1/minute")], settings=load_settings({"record": "outcomes"}))
            >>> [limiter.hit({"ip": "192.0.2.7"}).allowed for _ in range(3)]
            [True, False, False]
            >>> limiter.outcomes(last=3600).rules
            {'api': {'allowed': 1, 'rejected': 2}}
        """
        return run_blocking(self._sum_outcomes(blocking_call, last))

    async def aoutcomes(self, last: float = _DAY_S) -> RecordedOutcomes:
        """Async form of ``outcomes``."""
        return await self._sum_outcomes(async_call, last)

    def top_clients(self, rule: str | None = None, last: float = _DAY_S, limit: int = 10) -> list[RejectedClient]:
        """Return the clients that were rejected most, by all processes that share the store.

        Clients that a rule in shadow mode would have rejected are among them.

        Args:
            rule: The name of the only rule. Default: all rules.
            last: The time range, as for ``outcomes``.
            limit: The maximum number of clients to return.

        Returns:
            The clients, those with the most rejections first.

        Raises:
            ConfigError: ``record`` is not ``"clients"``, ``last`` is out of range, or the store keeps no records.
            StoreError: The store is unreachable.
        """
        return run_blocking(self._top_clients(blocking_call, rule, last, limit))

    async def atop_clients(
        self, rule: str | None = None, last: float = _DAY_S, limit: int = 10
    ) -> list[RejectedClient]:
        """Async form of ``top_clients``."""
        return await self._top_clients(async_call, rule, last, limit)

    def close(self) -> None:
        """Write what is recorded, return unused leases, and close the store. A second call changes nothing."""
        self.observers.write_counts()
        if self.recorder is not None:
            self.recorder.close()
            self.observers.start_over()
        if self.traffic_log is not None:
            self.traffic_log.close_or_log()
        super().close()

    async def aclose(self) -> None:
        """Async form of ``close``. It waits for the corrections that are being sent."""
        await asyncio.to_thread(self.observers.write_counts)  # an exporter may wait for its server
        if self.recorder is not None:
            await self.recorder.aclose()
            self.observers.start_over()
        if self.traffic_log is not None:
            await asyncio.to_thread(self.traffic_log.close_or_log)
        await super().aclose()

    async def _write_recorded(self, call: Call, what: str, last: float) -> None:
        """Write what is recorded here; ``ConfigError`` if this is not recorded, or not for such a time range."""
        if self.recorder is None or self.settings.record not in (what, "clients"):
            text = f'{what} are not recorded. Set record = "{what}" in your settings, and restart your application'
            raise ConfigError(text)
        if not 0 < last <= LONGEST:
            raise ConfigError(f"expected a time range of more than 0 and at most {LONGEST:.0f} seconds; got {last!r}")
        await call(self, "start")
        await call(self.recorder, "flush")

    async def _sum_outcomes(self, call: Call, last: float) -> RecordedOutcomes:
        await self._write_recorded(call, OUTCOMES, last)
        return await self._read_outcomes(call, last)

    async def _read_outcomes(self, call: Call, last: float) -> RecordedOutcomes:
        start, end, span = self._range(last)
        counts = (await read_sum(call, self.store, OUTCOMES, span, start, end)).counts
        rules: defaultdict[str, dict[Outcome, int]] = defaultdict(dict)
        for text in sorted(counts):
            outcome, _, rule = text.partition(" ")
            rules[rule][outcome] = counts[text]  # type: ignore[index]
        return RecordedOutcomes(start / SECOND, end / SECOND, dict(rules))

    async def _top_clients(self, call: Call, rule: str | None, last: float, limit: int) -> list[RejectedClient]:
        await self._write_recorded(call, "clients", last)
        start, end, span = self._range(last)
        rejected = {rule: math.inf} if rule is not None else _rejections((await self._read_outcomes(call, last)).rules)
        found: list[RejectedClient] = []
        for name in sorted(rejected, key=lambda name: -rejected[name]):
            if len(found) == limit and rejected[name] < found[-1].rejected:
                break  # no client of the other rules has as many
            clients = await read_sum(call, self.store, clients_of(name), span, start, end)
            found += [RejectedClient(name, text, number, clients.error) for text, number in clients.counts.items()]
            found = sorted(found, key=lambda each: (-each.rejected, each.rule, each.client))[:limit]
        return found

    def _range(self, last: float) -> tuple[int, int, Span]:
        """Return the start and the end of a time range, and the span of its records."""
        now = self._time()
        span = next(span for span in SPANS if last * SECOND <= span.kept)
        return int(now - last * SECOND) // span.width * span.width, now, span


def _rejections(rules: Mapping[str, Mapping[Outcome, int]]) -> dict[str, float]:
    """Return how many requests each rule has rejected, or would have rejected. A rule without any is left out."""
    totals = {name: sum(outcomes.values()) - outcomes.get("allowed", 0) for name, outcomes in rules.items() if name}
    return {name: total for name, total in totals.items() if total}
