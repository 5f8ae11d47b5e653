"""The steps of a call, without I/O: the caller carries them out, blocking or awaiting.

An attempt reads all keys, decides, and writes all keys in one round trip. Where another client was faster, the attempt
is undone and the call is decided again while there is time. After that it is rejected: a store that replies has not
failed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from secrets import token_hex
from typing import Final, NamedTuple, TypeVar

from ...algorithms.window_log import RejectionCountingLog, SlidingWindowLog, TieredWindow
from ...clock import Clock
from ...decision import Decision, Hit, decide_all
from ...errors import StoreError
from ...quota import MAX_PERIOD
from ...receipt import Charge, Correction
from .client.protocol import STORED, KeyCommands, KeyReply, ProtocolError, command, write
from .client.servers import Rendezvous
from .keys import Expiry, KeyNames
from .record import LogRecord, Record, Write
from .tier_record import TieredRecord

T = TypeVar("T")

LOGS: Final = (SlidingWindowLog, RejectionCountingLog)

_DECIDING: Final = 0.7  # The part of the time budget for attempts. The rest undoes the last one.
_CORRECTING: Final = 0.9  # Corrections have nothing to undo.
_MAX_FORGOTTEN: Final = 500  # keys per round trip
_MAX_PAUSE: Final = 0.0005  # Seconds. After a longer pause the loser loses again to the clients that do not wait.
_RETRY: Final = 100_000  # Microseconds: the retry time of a call that lost all of its races.
_PING_SIZE: Final = 40  # bytes, as in a common state
_log = logging.getLogger("ratelimit_mw")


class Backoff(NamedTuple):
    """Wait before the next attempt. A thread waits for its turn at ``tokens`` first, at most until ``until``."""

    tokens: Sequence[bytes]
    until: float


Steps = Generator[list[KeyCommands] | Backoff, list[KeyReply], T]


class StepContext(NamedTuple):
    """The parts of the store that the steps need. ``due`` and ``timeout`` are in seconds of ``time.monotonic``."""

    rendezvous: Rendezvous
    names: KeyNames
    clock: Clock
    generations: MutableMapping[bytes, bytes]
    due: float
    timeout: float

    def record(self, hit: Hit | Correction, token: bytes, now: int) -> Record:
        kind = type(hit.limit.algorithm)
        arguments = hit.limit, self.rendezvous.server_of(token), self.names, token, now
        if kind is TieredWindow:
            return TieredRecord(*arguments, self.generations)
        return LogRecord(*arguments) if kind in LOGS else Record(*arguments)

    def races(self, part: float) -> Races:
        return Races(self.due - (1 - part) * self.timeout)

    def call(self, hits: Sequence[Hit], explicit_now: int | None) -> RacingCall:
        return RacingCall(
            hits, [self.names.token(hit.key) for hit in hits], explicit_now, self.races(_DECIDING), self.due
        )


class Races:
    """The lost races of a call. Another attempt is made while it can end before ``last``."""

    __slots__ = ("_longest", "last", "lost")

    def __init__(self, last: float) -> None:
        self.last = last
        self.lost = 0
        self._longest = 0.0

    def lose(self, seconds: float) -> None:
        """Note a lost race that took ``seconds``. The next one may take as long."""
        self.lost += 1
        self._longest = max(self._longest, seconds)

    @property
    def has_time(self) -> bool:
        return time.monotonic() + self._longest < self.last


class RacingCall:
    """The hits of one request, their races, and their decisions: final ones when ``is_done``.

    ``due`` is the end of its time budget. ``finished`` ends its wait in a batch.
    """

    __slots__ = ("decisions", "due", "error", "explicit_now", "finished", "hits", "is_done", "races", "tokens")

    finished: asyncio.Future[None]

    def __init__(
        self, hits: Sequence[Hit], tokens: Sequence[bytes], explicit_now: int | None, races: Races, due: float
    ) -> None:
        self.due = due
        self.hits = hits
        self.tokens = tokens
        self.explicit_now = explicit_now
        self.races = races
        self.decisions: list[Decision] = []
        self.error: StoreError | None = None
        self.is_done = False

    def fail(self, error: Exception) -> None:
        """End the call, unless it is done. A timeout after a lost race is no error, because the server did reply."""
        if not self.is_done and not (self.races.lost and isinstance(error.__cause__ or error, TimeoutError)):
            self.error, self.is_done = as_store_error(error), True

    def result(self) -> list[Decision]:
        """Return the final decisions, or the rejection of a call that lost all of its races."""
        if not self.is_done and not self.races.lost:
            self.fail(TimeoutError())
        if self.error is not None:
            raise self.error
        if self.is_done or any(not d.allowed and not d.source.shadow for d in self.decisions):
            return self.decisions
        return [_lost_decision(decision) for decision in self.decisions]


def as_store_error(error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    if isinstance(error, TimeoutError):
        return StoreError("Memcached did not reply within the time budget")
    verb = " replied" if isinstance(error, ProtocolError) else ""
    kind = "" if isinstance(error, (OSError, ProtocolError)) else f"{type(error).__name__}: "
    return StoreError(f"Memcached{verb}: {kind}{error}")


def _lost_decision(decision: Decision) -> Decision:
    if not decision.allowed:
        return decision
    lost = Decision(False, 0, _RETRY, max(_RETRY, decision.reset_us), decision.at_us)
    lost.hit = decision.hit
    return lost


# -- deciding ----------------------------------------------------------------------------------------------


def decide(call: RacingCall, consume: bool, context: StepContext) -> Steps[list[Decision]]:
    """Decide a call, and consume its hits when all are allowed."""

    def once() -> Steps[bool]:
        yield from attempt([call], context, consume)
        return call.is_done

    yield from _retry(once, call.tokens, call.races)
    return call.result()


def _retry(once: Callable[[], Steps[bool]], tokens: Sequence[bytes], races: Races) -> Steps[bool]:
    """Repeat ``once`` until it is True. False when no further attempt fits into the time of ``races``."""
    while True:
        began = time.monotonic()
        try:
            if (yield from once()):
                return True
        except TimeoutError:
            if not races.lost:
                raise
            return False
        races.lose(time.monotonic() - began)
        if races.has_time:
            yield Backoff(tokens if races.lost == 1 else (), races.last)
        if not races.has_time:
            return False


def pause() -> float:
    """Return seconds, at random so that racing clients do not meet again."""
    return random.uniform(0, _MAX_PAUSE)  # noqa: S311 - it is no secret


def attempt(calls: Sequence[RacingCall], context: StepContext, consume: bool = True) -> Steps[None]:
    """Try to decide several calls together, as if they came one after the other. A call that is not done lost a race.

    All keys are read once and written once. Calls that were given different times are decided at the latest one.
    """
    times = [call.explicit_now for call in calls if call.explicit_now is not None]
    now = max(times) if times else context.clock()
    hits = {token: hit for call in calls for token, hit in zip(call.tokens, call.hits, strict=True)}
    records = {token: context.record(hit, token, now) for token, hit in hits.items()}
    decided, writes = yield from _decide(calls, records, now)
    lost = (yield from _write(writes, records, Expiry(bool(times)))) if consume and writes else {}
    undone: list[Correction] = []
    for call, decisions in decided:
        call.decisions = decisions
        call.is_done = lost.keys().isdisjoint(call.tokens)
        if not call.is_done:
            own = [each for token in call.tokens if lost.get(token, True) for each in writes.get(token, ())]
            undone += [_undo(each) for each in own if each.call is call]
    if undone:
        yield from correct(undone, now if times else None, context, is_undo=True)


def _undo(write: Write) -> Correction:
    decision = write.decision
    limit, key, cost = decision.hit
    return Correction(limit, key, cost, Charge(decision.at_us, cost, decision.delay_us))


_Decided = tuple[list[tuple[RacingCall, list[Decision]]], dict[bytes, list[Write]]]


def _decide(calls: Sequence[RacingCall], records: dict[bytes, Record], now: int) -> Steps[_Decided]:
    """Read what the decisions need. A value that is no state fails the calls for its key, and no other calls."""
    while wanted := [(record, names) for record in records.values() if (names := record.missing())]:
        for broken, error in (yield from _load(wanted)):
            del records[broken.token]
            for call in calls:
                if broken.token in call.tokens:
                    call.fail(error)
    calls = [call for call in calls if call.error is None]
    while True:
        decided, writes = _decide_all(calls, records, now)
        wanted = _ambiguous(decided, writes, records)
        if not wanted:
            return decided, writes
        for _, error in (yield from _load(wanted)):
            raise error


def _ambiguous(
    decided: Sequence[tuple[RacingCall, list[Decision]]],
    writes: Mapping[bytes, list[Write]],
    records: Mapping[bytes, Record],
) -> list[tuple[Record, Sequence[bytes]]]:
    """Return the names to read before the times of rejections and peeks are exact."""
    inexact: dict[bytes, list[Decision]] = {}
    for call, decisions in decided:
        for token, decision in zip(call.tokens, decisions, strict=True):
            if records[token].has_counters and (not decision.allowed or token not in writes):
                inexact.setdefault(token, []).append(decision)
    wanted = [(records[token], records[token].ambiguous(decisions)) for token, decisions in inexact.items()]
    return [(record, names) for record, names in wanted if names]


def _load(wanted: Sequence[tuple[Record, Sequence[bytes]]]) -> Steps[list[tuple[Record, ProtocolError]]]:
    """Read names of several records; return the records whose value is no state."""
    errors = []
    replies = yield [KeyCommands(record.server, names=names) for record, names in wanted]
    for (record, _), reply in zip(wanted, replies, strict=True):
        try:
            record.load(reply.values)
        except ProtocolError as error:
            errors.append((record, error))
    return errors


def _decide_all(calls: Sequence[RacingCall], records: Mapping[bytes, Record], now: int) -> _Decided:
    """Decide the calls in their order, each over the states that the calls before it leave."""
    states = {token: record.state for token, record in records.items()}
    decided, writes = [], dict[bytes, list[Write]]()
    for call in calls:
        decisions, changed = decide_all(call.hits, [states[token] for token in call.tokens], now)
        decided.append((call, decisions))
        for hit, state in changed:
            index = call.hits.index(hit)
            token = call.tokens[index]
            states[token] = state
            writes.setdefault(token, []).append(Write(call, decisions[index], state))
    return decided, writes


def _write(
    writes: Mapping[bytes, list[Write]], records: Mapping[bytes, Record], expiry: Expiry
) -> Steps[dict[bytes, bool]]:
    """Write all keys. Return the keys whose race was lost, and whether their writes count all the same.

    A queue is written after the other keys: nothing can refund a place with another request behind it.
    """
    queues = [token for token, group in writes.items() if group[0].decision.hit[0].algorithm.delays]
    lost: dict[bytes, bool] = {}
    for wave in ([token for token in writes if token not in queues], *([token] for token in queues)):
        if lost:
            lost |= dict.fromkeys(wave, False)
        elif wave:
            replies = yield [records[token].consume(writes[token], expiry) for token in wave]
            for token, reply in zip(wave, replies, strict=True):
                if not records[token].succeeded(reply):
                    lost[token] = records[token].has_counters
    return lost


# -- corrections -------------------------------------------------------------------------------------------


def correct(
    changes: Sequence[Correction], explicit_now: int | None, context: StepContext, is_undo: bool = False
) -> Steps[list[int]]:
    """Refund or charge, key by key, in the order of the changes. ``is_undo``: the call has lost a race before."""
    expiry, races, now = Expiry(explicit_now is not None), context.races(_CORRECTING), 0
    races.lost = int(is_undo)
    due: dict[bytes, list[Correction]] = {}
    for change in changes:
        due.setdefault(context.names.token(change.key), []).append(change)

    def once() -> Steps[bool]:
        nonlocal due, now
        now = context.clock() if explicit_now is None else explicit_now
        records = {token: context.record(group[0], token, now) for token, group in due.items()}
        while wanted := [(records[token], names) for token in due if (names := records[token].missing_for(due[token]))]:
            for _, error in (yield from _load(wanted)):
                raise error
        commands = {token: each for token in due if (each := records[token].correct(due[token], expiry))}
        replies = (yield list(commands.values())) if commands else []
        due = {
            token: due[token]
            for token, reply in zip(commands, replies, strict=True)
            if not records[token].has_counters and not records[token].succeeded(reply)
        }
        return not due

    if not (yield from _retry(once, (), races)):
        _log.warning("Memcached: other clients changed %d keys all the time. Their refunds are left out", len(due))
    return [now] * len(changes)


def forget(keys: Iterable[str], context: StepContext) -> Steps[None]:
    """Reset keys. A tiered window has too many counters to name them, so it gets a new generation of counters."""
    names, expiry = context.names, Expiry(explicit=False)
    commands = []
    for key in keys:
        token = names.token(key)
        reset = command(b"delete", names.state(token))
        if _is_tiered(key):
            reset = write(b"set", names.generation(token), token_hex(4).encode(), expiry(2 * MAX_PERIOD))
        commands.append(KeyCommands(context.rendezvous.server_of(token), (reset,)))
    for start in range(0, len(commands), _MAX_FORGOTTEN):
        yield commands[start : start + _MAX_FORGOTTEN]


def _is_tiered(key: str) -> bool:
    """Whether the limit of a key is a tiered window. The third part of its prefix is the name and the variant."""
    parts = key.split("|", 3)
    return len(parts) == 4 and parts[2].startswith(f"{TieredWindow.name}.")


def ping(context: StepContext) -> Steps[None]:
    """Write to each server, as much as a state. A server without room for it replies to all other commands."""
    payload = write(b"set", context.names.ping(), bytes(_PING_SIZE), 1)
    for (line,), _ in (yield [KeyCommands(server, (payload,)) for server in context.rendezvous.servers]):
        if line != STORED:
            raise ProtocolError(f"expected STORED, got {line[:40]!r}")
