"""A verdict as response headers: ``X-RateLimit-*``, the IETF draft's ``RateLimit`` fields, ``Retry-After``.

What never changes is encoded when first needed. Names and parameters stand in one place: the draft still moves.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from typing import Any, Final, TypeVar

from ..algorithms.limit import Limit
from ..clock import SECOND
from ..decision import Decision, Verdict

__all__ = ["Header", "HeaderWriter", "TextHeader", "as_text", "with_headers"]

Header = tuple[bytes, bytes]
TextHeader = tuple[str, str]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

# Field names and parameters as of draft-ietf-httpapi-ratelimit-headers-11.
_POLICY_FIELD: Final = b"ratelimit-policy"
_LIMIT_FIELD: Final = b"ratelimit"
_POLICY_ITEM: Final = '"{name}";q={quota}'
_POLICY_WINDOW: Final = ";w={window}"
_POLICY_IN_FLIGHT: Final = ';qu="concurrent-requests"'
_LIMIT_ITEM: Final = '"{name}";r='
_NUMBER: Final = b"%d"
_LIMIT_VALUES: Final = b"%d;t=%d"

_X_LIMIT: Final = b"x-ratelimit-limit"
_X_REMAINING: Final = b"x-ratelimit-remaining"
_X_RESET: Final = b"x-ratelimit-reset"
_RETRY_AFTER: Final = b"retry-after"

_SPELLED: Final = {
    _POLICY_FIELD: "RateLimit-Policy",
    _LIMIT_FIELD: "RateLimit",
    _X_LIMIT: "X-RateLimit-Limit",
    _X_REMAINING: "X-RateLimit-Remaining",
    _X_RESET: "X-RateLimit-Reset",
    _RETRY_AFTER: "Retry-After",
}

_KEPT: Final = 10_000
_MOST: Final = 10**15 - 1  # the largest number of a structured field: 31 million years, as seconds


class _Fixed:
    """What never changes in the headers of one limit."""

    __slots__ = ("alone", "item", "x_limit")

    def __init__(self, limit: Limit) -> None:
        self.x_limit = (_X_LIMIT, b"%d" % limit.limit)
        self.item = _LIMIT_ITEM.format(name=_escaped(limit.policy)).encode("ascii")
        self.alone = (_POLICY_FIELD, _policy_item(limit).encode("ascii"))


class HeaderWriter:
    """Writes the families asked for. ``reset`` is "delta" (seconds from now) or "epoch"; ``jitter_us`` only adds."""

    def __init__(
        self, families: Iterable[str] = ("x-ratelimit", "ratelimit"), reset: str = "delta", jitter_us: int = 0
    ) -> None:
        families = tuple(families)
        self._x = "x-ratelimit" in families
        self._draft = "ratelimit" in families
        self._epoch = reset == "epoch"
        self._jitter = jitter_us // SECOND
        self._fixed: dict[Limit, _Fixed] = {}
        self._policies: dict[tuple[Limit, ...], Header] = {}
        x_names = (_X_LIMIT, _X_REMAINING, _X_RESET) if self._x else ()
        self.names = frozenset((*x_names, *((_POLICY_FIELD, _LIMIT_FIELD) if self._draft else ())))

    def headers(self, verdict: Verdict) -> list[Header]:
        """The headers of one response; none when no rule that shows itself looked at the request."""
        decisions = verdict.decisions
        lone = len(decisions) == 1
        if not lone or decisions[0].source.shadow:
            decisions = [decision for decision in decisions if not decision.source.shadow]
            if not decisions:
                return []
        if not verdict.allowed:
            return self._rejected(decisions, [decision for decision in decisions if not decision.allowed])
        shown = decisions[0] if lone else min(decisions, key=_remaining)
        fixed = self._fixed.get(shown.source) or self._fix(shown.source)
        reset = -(-shown.reset_us // SECOND) or 1
        if reset > _MOST:
            reset = _MOST
        found = self._x_headers(shown, fixed, reset) if self._x else []
        if self._draft:
            found.append(fixed.alone if lone else self._policy(decisions))
            found.append((_LIMIT_FIELD, fixed.item + _LIMIT_VALUES % (shown.remaining, reset)))
        return found

    def _rejected(self, decisions: Sequence[Decision], rejecting: Sequence[Decision]) -> list[Header]:
        longest = max(rejecting, key=_wait)
        wait = self._spread(_told(longest))
        fixed = self._fix(longest.source)
        found = self._x_headers(longest, fixed, _seconds(longest.reset_us)) if self._x else []
        if self._draft:
            found.append(self._policy(decisions))
            items = [self._rejected_item(one, wait if one is longest else _told(one)) for one in rejecting]
            found.append((_LIMIT_FIELD, b", ".join(items)))
        if wait is not None:
            found.append((_RETRY_AFTER, _NUMBER % wait))
        return found

    def _spread(self, wait: int | None) -> int | None:
        """A wait with its jitter, if it has any."""
        if wait is None or not self._jitter:
            return wait
        return min(wait + random.randint(0, self._jitter), _MOST)  # noqa: S311 - it spreads, hides nothing

    def _rejected_item(self, decision: Decision, wait: int | None) -> bytes:
        item = self._fix(decision.source).item
        if wait is None:
            return item + _NUMBER % decision.remaining
        return item + _LIMIT_VALUES % (decision.remaining, wait)

    def _x_headers(self, shown: Decision, fixed: _Fixed, reset: int) -> list[Header]:
        if self._epoch:
            reset = -(-(shown.at_us + shown.reset_us) // SECOND)
        return [fixed.x_limit, (_X_REMAINING, _NUMBER % shown.remaining), (_X_RESET, _NUMBER % reset)]

    def _fix(self, limit: Limit) -> _Fixed:
        return self._fixed.get(limit) or _kept(self._fixed, limit, _Fixed(limit))

    def _policy(self, decisions: Sequence[Decision]) -> Header:
        limits = tuple(decision.source for decision in decisions)
        found = self._policies.get(limits)
        if found is None:
            found = (_POLICY_FIELD, ", ".join(map(_policy_item, limits)).encode("ascii"))
            _kept(self._policies, limits, found)
        return found


def as_text(headers: Iterable[Header]) -> list[TextHeader]:
    """Headers of ours in the spelling of the standards, where the protocol (ASGI) does not ask for lower case."""
    return [(_SPELLED[name], value.decode("ascii")) for name, value in headers]


def with_headers(message: MutableMapping[str, Any], added: list[Header], names: Collection[bytes]) -> dict[str, Any]:
    """An ASGI message with a new header list: ``added`` replace what the application set under ``names``."""
    given: Iterable[Header] = message.get("headers") or ()
    kept = []
    for header in given:
        if header[0].lower() not in names:
            kept.append(header)  # noqa: PERF401 - on a short list, half the time of a comprehension
    kept += added
    return {**message, "headers": kept}


def _kept(table: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    """Remember, within a bound: limits come and go when settings are read again."""
    if len(table) >= _KEPT:
        table.clear()
    table[key] = value
    return value


def _remaining(decision: Decision) -> int:
    return decision.remaining


def _wait(decision: Decision) -> float:
    return float("inf") if decision.retry_us is None else decision.retry_us


def _told(rejecting: Decision) -> int | None:
    """The wait in whole seconds; None where it does not help."""
    return None if rejecting.retry_us is None else _seconds(rejecting.retry_us)


def _seconds(us: int) -> int:
    """Whole seconds, rounded up, at least 1: never earlier than the moment meant."""
    return min(-(-us // SECOND), _MOST) or 1


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _policy_item(limit: Limit) -> str:
    item = _POLICY_ITEM.format(name=_escaped(limit.policy), quota=limit.quota.amount)
    if limit.quota.concurrent:
        return item + _POLICY_IN_FLIGHT
    seconds, rest = divmod(limit.quota.period_us, SECOND)
    # The draft has no parts of a second; a window that has some is left out.
    return item if rest else item + _POLICY_WINDOW.format(window=seconds)
