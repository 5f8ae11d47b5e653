"""The steps of a call, without I/O: the caller carries them out, blocking or awaiting.

An attempt reads all keys, decides, and writes all keys in one round trip. Where another client was faster, the attempt
is undone and the call is decided again while there is time. After that it is rejected: a store that replies has not
failed.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from secrets import token_hex
from typing import Final, NamedTuple, TypeVar

from ...algorithms.limit import Limit
from ...algorithms.window_log import RejectionCountingLog, SlidingWindowLog, TieredWindow
from ...clock import Clock
from ...decision import Charge, Correction, Decision, Hit
from ...quota import MAX_PERIOD
from ..base import decide_all
from .client.protocol import STORED, KeyCommands, KeyReply, ProtocolError, command, write
from .client.servers import Rendezvous
from .keys import Expiry, KeyNames
from .record import LogRecord, PackedRecord, Record, Write
from .tier_record import TieredRecord

__all__ = [
    "LOGS",
    "KeyLock",
    "RacingCall",
    "Races",
    "Sleep",
    "Step",
    "StepContext",
    "Steps",
    "attempt",
    "correct",
    "decide",
    "forget",
    "pause",
    "ping",
]

T = TypeVar("T")

LOGS: Final = (SlidingWindowLog, RejectionCountingLog)

_DECIDING: Final = 0.7  # the part of the time budget in which lost races are run again; the rest undoes the last one
_CORRECTING: Final = 0.9  # corrections have nothing to undo
_MAX_FORGOTTEN: Final = 500  # keys per round trip
_MAX_PAUSE: Final = 0.0005  # seconds; with longer pauses the loser loses again to the clients that do not wait
_RETRY: Final = 100_000  # microseconds: the retry time of a call that lost all of its races
_PING_SIZE: Final = 40  # bytes, as in a common state
_log = logging.getLogger("ratelimit_mw")


class Sleep(NamedTuple):
    """Wait, so that racing clients do not meet again."""

    seconds: float


class KeyLock(NamedTuple):
    """Wait until no other thread holds one of these keys, at most until ``until``. The lock lasts for the call."""

    tokens: Sequence[bytes]
    until: float


Step = list[KeyCommands] | Sleep | KeyLock
Steps = Generator[Step, list[KeyReply], T]


class StepContext(NamedTuple):
    """The parts of the store that the steps need. ``due`` and ``timeout`` are in seconds of ``time.monotonic``."""

    rendezvous: Rendezvous
    names: KeyNames
    clock: Clock
    generations: MutableMapping[bytes, bytes]
    due: float
    timeout: float

    def record(self, limit: Limit, token: bytes, now: int) -> Record:
        kind, server = type(limit.algorithm), self.rendezvous.server_of(token)
        if kind is TieredWindow:
            return TieredRecord(limit, token, server, self.names, now, self.generations)
        return (LogRecord if kind in LOGS else PackedRecord)(limit, token, server, self.names, now)

    def races(self, part: float, lost: int = 0) -> Races:
        return Races(self.due - (1 - part) * self.timeout, lost)

    def call(self, hits: Sequence[Hit], explicit_now: int | None) -> RacingCall:
        tokens = [self.names.token(hit.key) for hit in hits]
        return RacingCall(hits, tokens, explicit_now, self.races(_DECIDING))


class Races:
    """The lost races of a call. Another attempt is made while it can end before ``last``."""

    __slots__ = ("_longest", "last", "lost")

    def __init__(self, last: float, lost: int = 0) -> None:
        self.last = last
        self.lost = lost
        self._longest = 0.0

    def lose(self, seconds: float) -> None:
        """Note a lost race that took ``seconds``. The next one may take as long."""
        self.lost += 1
        self._longest = max(self._longest, seconds)

    @property
    def has_time(self) -> bool:
        return time.monotonic() + self._longest < self.last


class RacingCall:
    """The hits of one request, their races, and their decisions: final ones when ``is_done``."""

    __slots__ = ("decisions", "error", "explicit_now", "hits", "is_done", "races", "tokens")

    def __init__(self, hits: Sequence[Hit], tokens: Sequence[bytes], explicit_now: int | None, races: Races) -> None:
        self.hits = hits
        self.tokens = tokens
        self.explicit_now = explicit_now
        self.races = races
        self.decisions: list[Decision] = []
        self.error: Exception | None = None
        self.is_done = False

    def fail(self, error: Exception) -> None:
        """End the call with an error, unless it is done."""
        if not self.is_done:
            self.error, self.is_done = error, True

    def result(self) -> list[Decision]:
        """Return the final decisions, or the rejection of a call that lost all of its races.

        A server that replied as far as a lost race is not an unreachable one, so a timeout is no error then.
        """
        if self.error is not None and not (self.races.lost and isinstance(self.error, TimeoutError)):
            raise self.error
        if self.is_done and self.error is None:
            return self.decisions
        if not self.races.lost:
            raise TimeoutError
        if any(not d.allowed and not d.source.shadow for d in self.decisions):
            return self.decisions
        return [_lost_decision(decision) for decision in self.decisions]


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

    def wait() -> Step:
        return KeyLock(call.tokens, call.races.last) if call.races.lost == 1 else pause()

    yield from _retry(once, wait, call.races)
    return call.result()


def _retry(once: Callable[[], Steps[bool]], wait: Callable[[], Step], races: Races) -> Steps[bool]:
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
            yield wait()
        if not races.has_time:
            return False


def pause() -> Sleep:
    return Sleep(random.uniform(0, _MAX_PAUSE))  # noqa: S311 - the pause separates racing clients, it is no secret


class Outcome(NamedTuple):
    """The decisions of a call and their writes, in force when no other client was faster."""

    call: RacingCall
    decisions: list[Decision]
    writes: list[Write]


def attempt(calls: Sequence[RacingCall], context: StepContext, consume: bool = True) -> Steps[None]:
    """Try to decide several calls together, as if they came one after the other. A call that is not done lost a race.

    All keys are read once and written once. Calls that were given different times are decided at the latest one.
    """
    times = [call.explicit_now for call in calls if call.explicit_now is not None]
    now = max(times) if times else context.clock()
    limits = {token: hit.limit for call in calls for token, hit in zip(call.tokens, call.hits, strict=True)}
    records = {token: context.record(limit, token, now) for token, limit in limits.items()}
    outcomes = yield from _decide(calls, records, now)
    lost: Mapping[bytes, bool] = {}
    if consume:
        lost = yield from _write(outcomes, Expiry(bool(times)))
    undone: list[Correction] = []
    for call, decisions, writes in outcomes:
        call.decisions = decisions
        call.is_done = not lost or lost.keys().isdisjoint(call.tokens)
        if not call.is_done:
            undone += [_undo(write) for write in writes if lost.get(write.record.token, True)]
    if undone:
        yield from correct(undone, now if times else None, context, lost=1)


def _decide(calls: Sequence[RacingCall], records: dict[bytes, Record], now: int) -> Steps[list[Outcome]]:
    """Read what the decisions need. A value that is no state fails the calls for its key, and no other calls."""
    while wanted := [(record, names) for record in records.values() if (names := record.missing())]:
        for token, error in (yield from _load(wanted)).items():
            del records[token]
            for call in calls:
                if token in call.tokens:
                    call.fail(error)
    while True:
        outcomes = _outcomes([call for call in calls if call.error is None], records, now)
        wanted = _ambiguous(outcomes, records)
        if not wanted:
            return outcomes
        for error in (yield from _load(wanted)).values():
            raise error


def _load(wanted: Sequence[tuple[Record, Sequence[bytes]]]) -> Steps[dict[bytes, ProtocolError]]:
    """Read names of several records; return the error of each record whose value is no state."""
    errors = {}
    replies = yield [KeyCommands(record.server, names=names) for record, names in wanted]
    for (record, _), reply in zip(wanted, replies, strict=True):
        try:
            record.load(reply.values)
        except ProtocolError as error:
            errors[record.token] = error
    return errors


def _outcomes(calls: Sequence[RacingCall], records: Mapping[bytes, Record], now: int) -> list[Outcome]:
    """Decide the calls in their order, each over the states that the calls before it leave."""
    states = {token: record.state for token, record in records.items()}
    outcomes = []
    for call in calls:
        decisions, changed = decide_all(call.hits, [states[token] for token in call.tokens], now)
        writes = []
        if changed:
            state_of = {id(hit): state for hit, state in changed}
            for token, hit, decision in zip(call.tokens, call.hits, decisions, strict=True):
                if id(hit) in state_of:
                    states[token] = state_of[id(hit)]
                    writes.append(Write(records[token], hit, decision, states[token]))
        outcomes.append(Outcome(call, decisions, writes))
    return outcomes


def _ambiguous(outcomes: Sequence[Outcome], records: Mapping[bytes, Record]) -> list[tuple[Record, Sequence[bytes]]]:
    """Return the names to read before rejections and peeks are exact."""
    decisions: dict[bytes, list[Decision]] = {}
    for call, decided, writes in outcomes:
        written = {write.record.token for write in writes}
        for token, decision in zip(call.tokens, decided, strict=True):
            if token not in written or not decision.allowed:
                decisions.setdefault(token, []).append(decision)
    wanted = [(records[token], records[token].ambiguous(group)) for token, group in decisions.items()]
    return [(record, names) for record, names in wanted if names]


def _write(outcomes: Sequence[Outcome], expiry: Expiry) -> Steps[dict[bytes, bool]]:
    """Write all keys. Return the keys whose race was lost, and whether their writes count all the same."""
    writes: dict[bytes, list[Write]] = {}
    for outcome in outcomes:
        for each in outcome.writes:
            writes.setdefault(each.record.token, []).append(each)
    lost: dict[bytes, bool] = {}
    for wave in _waves(list(writes.values())):
        if lost:
            lost |= dict.fromkeys((group[0].record.token for group in wave), False)
            continue
        replies = yield [group[0].record.consume(group, expiry) for group in wave]
        records = [group[0].record for group in wave]
        for record, reply in zip(records, replies, strict=True):
            if not record.succeeded(reply):
                lost[record.token] = record.counts_failed
    return lost


def _waves(groups: Sequence[list[Write]]) -> list[list[list[Write]]]:
    """Write all keys at once, except queues: a place cannot be given back once another request is behind it."""
    queues = [[group] for group in groups if group[0].hit.limit.algorithm.delays]
    others = [group for group in groups if not group[0].hit.limit.algorithm.delays]
    return [others, *queues] if others else list(queues)


def _undo(write: Write) -> Correction:
    (limit, key, cost), decision = write.hit, write.decision
    return Correction(limit, key, cost, Charge(decision.at_us, cost, decision.delay_us))


# -- corrections -------------------------------------------------------------------------------------------


def correct(
    changes: Sequence[Correction], explicit_now: int | None, context: StepContext, lost: int = 0
) -> Steps[list[int]]:
    """Refund or charge, key by key, in the order of the changes. ``lost``: the races that the call has lost before."""
    expiry, now = Expiry(explicit_now is not None), 0
    due: dict[str, list[Correction]] = {}
    for change in changes:
        due.setdefault(change.key, []).append(change)

    def once() -> Steps[bool]:
        nonlocal due, now
        now = context.clock() if explicit_now is None else explicit_now
        tokens = {key: context.names.token(key) for key in due}
        records = {key: context.record(due[key][0].limit, tokens[key], now) for key in due}
        while wanted := [(record, names) for key, record in records.items() if (names := record.missing_for(due[key]))]:
            for error in (yield from _load(wanted)).values():
                raise error
        commands = {key: each for key, record in records.items() if (each := record.correct(due[key], expiry))}
        replies = (yield list(commands.values())) if commands else []
        due = {key: due[key] for key, reply in zip(commands, replies, strict=True) if not records[key].corrected(reply)}
        return not due

    if not (yield from _retry(once, pause, context.races(_CORRECTING, lost))):
        _log.warning(
            "Memcached: %d keys were changed by other clients for the whole time budget, so their refunds and charges"
            " are left out",
            len(due),
        )
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


def ping(context: StepContext) -> Steps[None]:
    """Write to each server, as much as a state. A server without room for it replies to all other commands."""
    payload = write(b"set", context.names.ping(), bytes(_PING_SIZE), 1)
    for (line,), _ in (yield [KeyCommands(server, (payload,)) for server in context.rendezvous.servers]):
        if line != STORED:
            raise ProtocolError(f"expected STORED, got {line[:40]!r}")


def _is_tiered(key: str) -> bool:
    """Whether the limit of a key is a tiered window. The third part of its prefix is the name and the variant."""
    parts = key.split("|", 3)
    return len(parts) == 4 and parts[2].startswith(f"{TieredWindow.name}.")
