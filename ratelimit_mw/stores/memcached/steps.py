"""The steps of a call, without I/O: the caller carries them out, blocking or awaiting.

An attempt reads all keys, decides, and writes all keys in one round trip. Where another client was faster, the attempt
is undone and the call is decided again. A call that loses all races is rejected: a store that replies has not failed.
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final, TypeVar

from ...algorithms.window_log import TieredWindow
from ...decision import Decision, Hit, SlotCost, decide_all
from ...errors import StateError
from ...quota import MAX_PERIOD
from ...receipt import Correction
from .client.protocol import (
    EXPIRED,
    STORED,
    KeyCommands,
    KeyReply,
    ProtocolError,
    StoredValue,
    command,
    swap,
    write,
)
from .keys import NEVER, expiry
from .races import Races, RacingCall
from .record import Record, StepContext, load, state_error
from .tier_record import TieredRecord

T = TypeVar("T")

_CORRECTING: Final = 0.9  # Corrections have nothing to undo.
_MAX_FORGOTTEN: Final = 500  # keys per round trip
_RECORDS: Final[dict[type, type[Record]]] = {TieredWindow: TieredRecord}
_TIERED: Final = re.compile(rf"[^|]*\|[^|]*\|{TieredWindow.name}\.")  # the prefix of a key: format, rule, algorithm

Steps = Generator[list[KeyCommands] | Races, list[KeyReply], T]
"""Commands to carry out, or the races of a call that waits before its next attempt."""


def _retry(once: Callable[[], Steps[bool]], races: Races) -> Steps[bool]:
    """Repeat ``once`` until it is True. False when no further attempt fits into the time of ``races``."""
    while True:
        began = races.time()
        try:
            if (yield from once()):
                return True
        except TimeoutError:
            if not races.lost:
                raise
            return False
        races.lose(races.time() - began)
        if races.has_time:
            yield races
        if not races.has_time:
            return False


def _new_records(
    context: StepContext, hits: Mapping[bytes, Hit | Correction], now: int, is_explicit: bool
) -> dict[bytes, Record]:
    kinds = {token: _RECORDS.get(type(hit.limit.algorithm), Record) for token, hit in hits.items()}
    return {token: kinds[token](context, hit.limit, hit.key, token, now, is_explicit) for token, hit in hits.items()}


def _load(missing: Sequence[tuple[Record, Sequence[bytes]]]) -> Steps[None]:
    replies = yield [KeyCommands(record.server, names=names) for record, names in missing]
    for (record, _), reply in zip(missing, replies, strict=True):
        load(record, reply)


def decide(context: StepContext, hits: Sequence[Hit], explicit_now: int | None, consume: bool) -> Steps[list[Decision]]:
    """Decide the hits of a request, and consume them when all are allowed."""
    call = RacingCall(context, hits, explicit_now)
    yield from _retry(partial(attempt, context, [call], consume), call)
    return call.result()


def attempt(context: StepContext, calls: Sequence[RacingCall], consume: bool = True) -> Steps[bool]:
    """Try to decide calls together, at their latest time, one after the other. Return whether no call lost a race."""
    one = _Attempt(calls, context)
    yield from one.read()
    one.decide()
    while ambiguous := one.ambiguous():
        yield from _load(ambiguous)
        one.decide()
    try:
        lost = (yield from one.write()) if consume else {}
    except TimeoutError:
        # A call that has lost a race before is only rejected, but the server may count its slots.
        hits = [hit for call in one.calls if call.lost for hit in call.hits]
        slots = [Correction.return_slots(*hit[:2], hit.cost) for hit in hits if isinstance(hit.cost, SlotCost)]
        context.leave(slots, one.explicit_now)
        raise
    undone: list[Correction] = []
    for call in one.calls:
        call.is_done = lost.keys().isdisjoint(call.tokens)
        if not call.is_done:
            call.keep_all_but(lost)
            tokens = dict.fromkeys(call.tokens)  # two hits may have one key
            own = [each for token in tokens if lost.get(token, True) for each in one.writes.get(token, ())]
            decided = {id(decision) for decision in call.decisions}
            undone += [Correction.refund(each) for each in own if id(each) in decided]
    if undone:
        yield from correct(context, undone, one.explicit_now, is_undo=True)
    return not lost


class _Attempt:
    def __init__(self, calls: Sequence[RacingCall], context: StepContext) -> None:
        self.calls = calls
        self.explicit_now = max([call.explicit_now for call in calls if call.explicit_now is not None], default=None)
        self.now = context.clock() if self.explicit_now is None else self.explicit_now
        hits = {token: hit for call in calls for token, hit in zip(call.tokens, call.hits, strict=True)}
        self.records = _new_records(context, hits, self.now, self.explicit_now is not None)
        self.states: dict[bytes, Any] = {}
        self.writes: dict[bytes, list[Decision]] = {}

    def read(self) -> Steps[None]:
        """Read the states. A value that is no state fails the calls for its key, and no other calls."""
        while missing := [record for record in self.records.values() if not record.is_loaded]:
            replies = yield [KeyCommands(record.server, names=record.missing()) for record in missing]
            for record, reply in zip(missing, replies, strict=True):
                try:
                    load(record, reply)
                except StateError as error:
                    del self.records[record.token]
                    for call in self.calls:
                        if record.token in call.tokens:
                            call.fail(error)
        self.calls = [call for call in self.calls if call.error is None]

    def decide(self) -> None:
        """Decide the calls in their order, each over the states that the calls before it leave."""
        self.states = {token: record.state for token, record in self.records.items()}
        self.writes = {}
        for call in self.calls:
            states = [self.states[token] for token in call.tokens]
            try:
                call.decisions, changes = decide_all(call.hits, states, self.now)
            except (ValueError, ArithmeticError) as error:
                call.fail(state_error(call.hits, states, self.now, error))
                continue
            for hit, state in changes:
                index = call.hits.index(hit)
                token = call.tokens[index]
                self.states[token] = state
                self.writes.setdefault(token, []).append(call.decisions[index])
        self.calls = [call for call in self.calls if call.error is None]

    def ambiguous(self) -> list[tuple[Record, Sequence[bytes]]]:
        inexact: dict[bytes, list[Decision]] = {}
        for call in self.calls:
            for token, decision in zip(call.tokens, call.decisions, strict=True):
                if not decision.allowed or token not in self.writes:
                    inexact.setdefault(token, []).append(decision)
        records = [(self.records[token], decisions) for token, decisions in inexact.items()]
        return [(record, names) for record, decisions in records if (names := record.ambiguous(decisions))]

    def write(self) -> Steps[dict[bytes, bool]]:
        """Write all keys. Return the keys whose race was lost, and whether their writes count all the same."""
        # Queues come last: nothing can refund a place with another request behind it.
        queues = [token for token in self.writes if self.records[token].limit.algorithm.delays]
        lost: dict[bytes, bool] = {}
        for wave in ([token for token in self.writes if token not in queues], *([token] for token in queues)):
            if lost:
                lost |= dict.fromkeys(wave, False)
            elif wave:
                replies = yield [self.records[token].consume(self.states[token], self.writes[token]) for token in wave]
                for token, reply in zip(wave, replies, strict=True):
                    if not self.records[token].succeeded(reply):
                        lost[token] = self.records[token].has_counters
        return lost


def correct(
    context: StepContext, changes: Sequence[Correction], explicit_now: int | None, is_undo: bool = False
) -> Steps[list[int]]:
    """Refund or charge, key by key, in the order of the changes. ``is_undo``: the call has lost a race before."""
    unwritten: dict[bytes, list[Correction]] = {}
    for change in changes:
        unwritten.setdefault(context.names.token(change.key), []).append(change)
    times: dict[bytes, int] = {}

    def once() -> Steps[bool]:
        nonlocal unwritten
        now = context.clock() if explicit_now is None else explicit_now
        times.update(dict.fromkeys(unwritten, now))
        hits = {token: group[0] for token, group in unwritten.items()}
        records = _new_records(context, hits, now, explicit_now is not None)
        while missing := [(one, one.missing(unwritten[one.token])) for one in records.values() if not one.is_loaded]:
            yield from _load(missing)
        groups = unwritten
        writes = {token: each for token in groups if (each := records[token].correct(groups[token]))}
        # Without a reply the server may have made them. Slots have an id, so they alone can be returned twice.
        unwritten = {token: groups[token] for token in writes if groups[token][0].limit.quota.concurrent}
        replies = (yield list(writes.values())) if writes else []
        pairs = zip(writes, replies, strict=True)
        lost = [token for token, reply in pairs if not (records[token].has_counters or records[token].succeeded(reply))]
        unwritten = {token: groups[token] for token in lost}
        return not lost

    def leave() -> None:
        context.leave([change for group in unwritten.values() for change in group], explicit_now)

    try:
        yield from _retry(once, Races(context, _CORRECTING, list(unwritten), lost=int(is_undo)))
    except OSError:  # the corrections whose state was only read are not made
        leave()
        raise
    leave()
    return [times[context.names.token(change.key)] for change in changes]


def forget(context: StepContext, keys: Iterable[str]) -> Steps[None]:
    """Reset keys. A tiered window has too many counters to name them, so it gets a new generation of counters."""
    names, commands = context.names, []
    for key in keys:
        token = names.token(key)
        reset = command(b"delete", names.state(token))
        if _TIERED.match(key):
            reset = write(b"set", names.generation(token), token_hex(4).encode(), expiry(2 * MAX_PERIOD))
        commands.append(KeyCommands(context.rendezvous.server_of(token), (reset,)))
    for start in range(0, len(commands), _MAX_FORGOTTEN):
        yield commands[start : start + _MAX_FORGOTTEN]


def read_record(context: StepContext, key: str) -> Steps[bytes | None]:
    known = yield from _stored(context, key)
    return None if known is None else known.value


def write_record(context: StepContext, key: str, data: bytes | None, before: bytes | None) -> Steps[bool]:
    """Write or delete a record that still is ``before``. It never expires."""
    token = context.names.token(key)
    known = yield from _stored(context, key)
    if (None if known is None else known.value) != before:
        return False
    if data is None and known is None:
        return True
    value, expires = (b"", EXPIRED) if data is None else (data, NEVER)
    changed = swap(context.names.state(token), value, expires, known)
    (reply,) = yield [KeyCommands(context.rendezvous.server_of(token), (changed,))]
    return reply.lines == [STORED]


def _stored(context: StepContext, key: str) -> Steps[StoredValue | None]:
    token = context.names.token(key)
    name = context.names.state(token)
    (reply,) = yield [KeyCommands(context.rendezvous.server_of(token), names=(name,))]
    return reply.values.get(name)


def ping(context: StepContext) -> Steps[None]:
    """Write to each server, as much as a state. A server without room for it replies to all other commands."""
    payload = write(b"set", context.names.ping, bytes(40), 1)
    for (line,), _ in (yield [KeyCommands(server, (payload,)) for server in context.rendezvous.servers]):
        if line != STORED:
            raise ProtocolError(f"expected STORED, got {line[:40]!r}")
