"""A verdict as response headers: ``X-RateLimit-*``, the IETF draft's ``RateLimit`` fields, ``Retry-After``.

What never changes is encoded when first needed. Names and parameters stand in one place: the draft still moves.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from ..clock import SECOND
from ..decision import Decision, Verdict
from ..limit import Limit

__all__ = ["HeaderWriter"]

Header = tuple[bytes, bytes]

# Field names and parameters as of draft-ietf-httpapi-ratelimit-headers-11.
_POLICY_FIELD: Final = b"ratelimit-policy"
_LIMIT_FIELD: Final = b"ratelimit"
_POLICY_ITEM: Final = '"{name}";q={quota}'
_POLICY_WINDOW: Final = ";w={window}"
_LIMIT_ITEM: Final = b'"%b";r=%d'
_LIMIT_TIME: Final = b";t=%d"

_X_LIMIT: Final = b"x-ratelimit-limit"
_X_REMAINING: Final = b"x-ratelimit-remaining"
_X_RESET: Final = b"x-ratelimit-reset"
_RETRY_AFTER: Final = b"retry-after"

_POLICIES_KEPT: Final = 10_000


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
        self._names: dict[Limit, bytes] = {}
        self._policies: dict[tuple[Limit, ...], bytes] = {}
        self.names = frozenset(
            (
                *((_X_LIMIT, _X_REMAINING, _X_RESET) if self._x else ()),
                *((_POLICY_FIELD, _LIMIT_FIELD) if self._draft else ()),
            )
        )

    def headers(self, verdict: Verdict) -> list[Header]:
        """The headers of one response; none when no rule that shows itself looked at the request."""
        decisions = verdict.decisions
        if len(decisions) != 1 or decisions[0].bound.shadow:
            decisions = [decision for decision in decisions if not decision.bound.shadow]
        if not decisions:
            return []
        if not verdict.allowed:
            return self._refused(decisions, [d for d in decisions if not d.allowed])
        shown = decisions[0] if len(decisions) == 1 else min(decisions, key=_remaining)
        found = self._x_headers(shown) if self._x else []
        if self._draft:
            found.append((_POLICY_FIELD, self._policy(decisions)))
            found.append((_LIMIT_FIELD, self._item(shown, shown.reset_us)))
        return found

    def _refused(self, decisions: Sequence[Decision], refusing: Sequence[Decision]) -> list[Header]:
        longest = max(refusing, key=_wait)
        found = self._x_headers(longest) if self._x else []
        if self._draft:
            found.append((_POLICY_FIELD, self._policy(decisions)))
            found.append((_LIMIT_FIELD, b", ".join(self._item(d, d.retry_us) for d in refusing)))
        if longest.retry_us is not None:
            jitter = random.randint(0, self._jitter) if self._jitter else 0  # noqa: S311 - spreads retries, hides nothing
            found.append((_RETRY_AFTER, b"%d" % (_seconds(longest.retry_us) + jitter)))
        return found

    def _x_headers(self, shown: Decision) -> list[Header]:
        reset = -(-(shown.at_us + shown.reset_us) // SECOND) if self._epoch else _seconds(shown.reset_us)
        return [
            (_X_LIMIT, b"%d" % shown.bound.limit),
            (_X_REMAINING, b"%d" % shown.remaining),
            (_X_RESET, b"%d" % reset),
        ]

    def _item(self, decision: Decision, wait_us: int | None) -> bytes:
        limit = decision.bound
        name = self._names.get(limit)
        if name is None:
            name = _kept(self._names, limit, _escaped(limit.policy).encode("ascii"))
        item = _LIMIT_ITEM % (name, decision.remaining)
        return item if wait_us is None else item + _LIMIT_TIME % _seconds(wait_us)

    def _policy(self, decisions: Sequence[Decision]) -> bytes:
        limits = (decisions[0].bound,) if len(decisions) == 1 else tuple(d.bound for d in decisions)
        policy = self._policies.get(limits)
        return policy or _kept(self._policies, limits, ", ".join(map(_policy_item, limits)).encode("ascii"))


def _kept(table: dict, key: object, value: bytes) -> bytes:  # type: ignore[type-arg]
    if len(table) >= _POLICIES_KEPT:
        table.clear()
    table[key] = value
    return value


def _remaining(decision: Decision) -> int:
    return decision.remaining


def _wait(decision: Decision) -> float:
    return float("inf") if decision.retry_us is None else decision.retry_us


def _seconds(us: int) -> int:
    """Whole seconds, rounded up, at least 1: never earlier than the moment meant."""
    return -(-us // SECOND) or 1


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _policy_item(limit: Limit) -> str:
    item = _POLICY_ITEM.format(name=_escaped(limit.policy), quota=limit.quota.amount)
    seconds, rest = divmod(limit.quota.period_us, SECOND)
    # The draft has no parts of a second; a window that has some is left out.
    return item if rest else item + _POLICY_WINDOW.format(window=seconds)
