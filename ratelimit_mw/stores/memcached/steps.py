"""The steps of a call, without I/O: the caller carries them out, blocking or awaiting.

An attempt reads all keys, decides, and writes all keys in one round trip. Where another client was faster, the attempt
is undone and the call is decided again. A call that loses all races is rejected: a store that replies has not failed.
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final, NamedTuple, TypeVar

from ...algorithms.window_log import TieredWindow
from ...decision import Decision, Hit, SlotCost, decide_all
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
"""Commands to carry out, or the races of a call that waits for its turn, and before another attempt."""


def _retry(once: Callable[[], Steps[bool]], races: Races) -> Steps[bool]:
    """Repeat ``once`` until it is True. False when no further attempt fits into the time of ``races``."""
    if not races.lost:
        try:
            yield races
        except TimeoutError:
            if not races.is_outrun:
                raise
            return False
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
    attempt = partial(_attempt, context, call, consume)
    is_decided = yield from _retry(attempt, call) if hits and consume else attempt()
    return call.result(is_decided)


def _attempt(context: StepContext, call: RacingCall, consume: bool) -> Steps[bool]:
    """Read, decide and write. Return whether no race was lost. The writes of the other keys are then undone."""
    now = context.clock() if call.explicit_now is None else call.explicit_now
    hits = dict(zip(call.tokens, call.hits, strict=True))
    records = _new_records(context, hits, now, call.explicit_now is not None)
    while missing := [(record, record.missing()) for record in records.values() if not record.is_loaded]:
        yield from _load(missing)
    writes = _decide(call, records, now)
    while ambiguous := _ambiguous(call, records, writes):
        yield from _load(ambiguous)
        writes = _decide(call, records, now)
    try:
        lost = (yield from _write(records, writes)) if consume else {}
    except TimeoutError:
        # A call that has lost a race before is only rejected, but the server may count its slots.
        slots = [hit for hit in call.hits if call.lost and isinstance(hit.cost, SlotCost)]
        context.leave([Correction.return_slots(*hit[:2], hit.cost) for hit in slots], call.explicit_now)  # type: ignore[arg-type]
        raise
    if not lost:
        return True
    call.keep_all_but(lost)
    tokens = [token for token in dict.fromkeys(call.tokens) if lost.get(token, True) and token in writes]
    if undone := [Correction.refund(decision) for token in tokens for decision in writes[token].decisions]:
        yield from correct(context, undone, call.explicit_now, is_undo=True)
    return False


class _Write(NamedTuple):
    """The new state of a key, and the decisions that consume from it."""

    state: Any
    decisions: list[Decision]


def _decide(call: RacingCall, records: Mapping[bytes, Record], now: int) -> dict[bytes, _Write]:
    states = [records[token].state for token in call.tokens]
    try:
        call.decisions, changes = decide_all(call.hits, states, now)
    except (ValueError, IndexError, ArithmeticError) as error:
        raise state_error(call.hits, states, now, error) from error
    writes: dict[bytes, _Write] = {}
    for hit, state in changes:
        index = call.hits.index(hit)
        token = call.tokens[index]
        before = writes[token].decisions if token in writes else []
        writes[token] = _Write(state, [*before, call.decisions[index]])
    return writes


def _ambiguous(
    call: RacingCall, records: Mapping[bytes, Record], writes: Mapping[bytes, _Write]
) -> list[tuple[Record, Sequence[bytes]]]:
    inexact: dict[bytes, list[Decision]] = {}
    for token, decision in zip(call.tokens, call.decisions, strict=True):
        if not decision.allowed or token not in writes:
            inexact.setdefault(token, []).append(decision)
    found = [(records[token], records[token].ambiguous(decisions)) for token, decisions in inexact.items()]
    return [(record, names) for record, names in found if names]


def _write(records: Mapping[bytes, Record], writes: Mapping[bytes, _Write]) -> Steps[dict[bytes, bool]]:
    """Write all keys. Return the keys whose race was lost, and whether their writes count all the same."""
    # Queues come last: nothing can refund a place with another request behind it.
    queues = [token for token in writes if records[token].limit.algorithm.delays]
    lost: dict[bytes, bool] = {}
    for wave in ([token for token in writes if token not in queues], *([token] for token in queues)):
        if lost:
            lost |= dict.fromkeys(wave, False)
        elif wave:
            replies = yield [records[token].consume(*writes[token]) for token in wave]
            for token, reply in zip(wave, replies, strict=True):
                if not records[token].succeeded(reply):
                    lost[token] = records[token].has_counters
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
