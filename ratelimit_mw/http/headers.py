"""A verdict as response headers: ``X-RateLimit-*``, the IETF draft's ``RateLimit`` fields, ``Retry-After``.

Constant parts are encoded once. Names and parameters are in one table, because the draft still changes.
"""

import math
from collections.abc import Callable, Collection, Iterable, MutableMapping, Sequence
from typing import Any, Final, TypeVar

from ..clock import SECOND
from ..decision import Decision, Limit, Verdict
from ..runtime.forksafe import CHANCE

Header = tuple[Any, Any]
"""A name and a value: text, or bytes for ASGI."""

# Field names and parameters as of draft-ietf-httpapi-ratelimit-headers-11.
_X_NAMES: Final = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
_DRAFT_NAMES: Final = ("RateLimit-Policy", "RateLimit")
_RETRY_AFTER: Final = "Retry-After"
_POLICY_ITEM: Final = '"{name}";q={quota}'
_POLICY_WINDOW: Final = ";w={window}"
_POLICY_UNIT: Final = ';qu="{unit}"'
_CONCURRENT: Final = "concurrent-requests"
_REQUESTS: Final = "requests"  # the default of the draft
_LIMIT_ITEM: Final = '"{name}";r='
_LIMIT_RESET: Final = ";t="

FIELD_NAMES: Final = frozenset(name.lower().encode() for name in (*_X_NAMES, *_DRAFT_NAMES))
"""The names of all rate limit headers but ``Retry-After``, in lower case."""

_MAX_NUMBER: Final = 10**15 - 1  # the largest integer of a structured field: 31 million years, in seconds

_keep: Callable[[str], Any] = str
_encode: Callable[[str], Any] = str.encode

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """Keeps what a function of the key returns. Bounded, because settings are reloaded and clients choose numbers."""

    most = 10_000

    def __init__(self, build: Callable[[K], V]) -> None:
        self._build = build

    def __missing__(self, key: K) -> V:
        if len(self) >= self.most:
            self.clear()
        value = self[key] = self._build(key)
        return value


class HeaderWriter:
    """Writes the headers of a verdict, as text in the title case of the standards. ASGI has them ``encoded``."""

    def __init__(
        self,
        families: Iterable[str] = ("x-ratelimit", "ratelimit"),
        reset: str = "delta",
        jitter_us: int = 0,
        encoded: bool = False,
    ) -> None:
        families, every = tuple(families), (*_X_NAMES, *_DRAFT_NAMES, _RETRY_AFTER)
        form = self._form = _encode if encoded else _keep
        self._number, self._numbered, self._comma = form("%d"), form("%s%d%s"), form(", ")
        names = [form(name.lower() if encoded else name) for name in every]
        self._x_limit, self._x_remaining, self._x_reset, self._policy_field, self._limit_field, self._retry = names
        self._x = "x-ratelimit" in families
        self._draft = "ratelimit" in families
        self._epoch = reset == "epoch"
        self._jitter = jitter_us // SECOND
        self.varies = self._epoch or bool(self._jitter)
        """Whether equal decisions may have different headers."""
        self._parts, self._resets = Memo(self._parts_of), Memo(self._reset_parts)
        self._policies, self._are_shown = Memo(self._policy), Memo(_are_shown)
        written = (*(_X_NAMES if self._x else ()), *(_DRAFT_NAMES if self._draft else ()))
        self.names = frozenset(self._form(name.lower()) for name in written)
        """The names that a response may have, in lower case."""

    def headers(self, verdict: Verdict) -> list[Header]:
        """Return the headers of one response; none when only shadow rules, or no rules, applied."""
        allowed = verdict.allowed
        if allowed and not self.names:
            return []
        decisions = verdict.decisions
        limits: tuple[Limit, ...] | None = None  # of a single decision, the most common case
        if len(decisions) != 1 or decisions[0].hit[0].hidden:
            decisions, limits = self._choose(decisions, allowed)
            if not decisions:
                wait = None if allowed else verdict.retry_after  # of a client that is banned from all rules
                return [] if wait is None else [(self._retry, self._number % (math.ceil(wait) or 1))]
        if not allowed:
            shown = max((decision for decision in decisions if not decision.allowed), key=_wait)
        else:
            shown = decisions[0] if limits is None else _scarcest(decisions)
        x_limit, policy, item, is_timed = self._parts[shown.hit[0]]
        x_reset, reset = self._resets[-(-shown.reset_us // SECOND)]
        remaining = self._number % shown.remaining
        headers = []
        if self._x:
            if self._epoch:
                x_reset = self._x_reset, self._number % -(-(shown.at_us + shown.reset_us) // SECOND)
            headers = [x_limit, (self._x_remaining, remaining), *((x_reset,) if is_timed else ())]
        if self._draft:
            headers.append(policy if limits is None else self._policies[limits])
        if not allowed:
            return headers + self._rejected(decisions, shown)
        if self._draft:
            one = item + remaining if limits is None else self._items(decisions)
            headers.append((self._limit_field, one + reset if is_timed and limits is None else one))
        return headers

    def _choose(self, decisions: Sequence[Decision], allowed: bool) -> tuple[Sequence[Decision], tuple[Limit, ...]]:
        """Return the decisions to show, and their limits."""
        limits = tuple([decision.hit[0] for decision in decisions])
        return (decisions, limits) if allowed and limits and self._are_shown[limits] else _pick(decisions, allowed)

    def _rejected(self, decisions: Sequence[Decision], longest: Decision) -> list[Header]:
        """Return the waits of all decisions that reject, and ``Retry-After`` with the longest of them."""
        wait = _wait_seconds(longest)
        if wait is not None and self._jitter:
            wait = min(wait + CHANCE.randint(0, self._jitter), _MAX_NUMBER)
        headers = [] if wait is None else [(self._retry, self._number % wait)]
        if self._draft:
            rejecting = [decision for decision in decisions if not decision.allowed]
            items = [self._item(one, wait if one is longest else _wait_seconds(one)) for one in rejecting]
            headers.insert(0, (self._limit_field, self._comma.join(items)))
        return headers

    def _items(self, decisions: Iterable[Decision]) -> Any:
        items = []
        parts, resets = self._parts, self._resets
        for decision in decisions:  # ``_item`` without its call
            _, _, item, is_timed = parts[decision.hit[0]]
            reset = resets[-(-decision.reset_us // SECOND)][1] if is_timed else self._form("")
            items.append(self._numbered % (item, decision.remaining, reset))
        return self._comma.join(items)

    def _item(self, decision: Decision, wait: int | None) -> Any:
        """Return a decision with the seconds to wait, or until its reset."""
        _, _, item, is_timed = self._parts[decision.hit[0]]
        item += self._number % decision.remaining
        return item if wait is None or not is_timed else item + self._resets[wait][1]

    def wait_of(self, headers: Sequence[Header]) -> int | None:
        """Return the seconds of ``Retry-After``, which is the last header of a rejection; None without it."""
        return int(headers[-1][1]) if headers and headers[-1][0] == self._retry else None

    def _parts_of(self, limit: Limit) -> tuple[Header, Header, Any, bool]:
        """Return the constant parts in the headers of a limit."""
        item = self._form(_LIMIT_ITEM.format(name=_escaped(limit.policy)))
        is_timed = not limit.quota.concurrent
        return (self._x_limit, self._number % limit.limit), self._policy((limit,)), item, is_timed

    def _reset_parts(self, seconds: int) -> tuple[Header, Any]:
        """Return the parts in the headers of a number of seconds until the reset."""
        text = self._number % min(seconds or 1, _MAX_NUMBER)
        return (self._x_reset, text), self._form(_LIMIT_RESET) + text

    def _policy(self, limits: tuple[Limit, ...]) -> Header:
        return self._policy_field, self._form(", ".join(map(_policy_item, limits)))


def with_headers(message: MutableMapping[str, Any], added: list[Header], names: Collection[bytes]) -> dict[str, Any]:
    """Return an ASGI message with new headers. ``added`` replaces the application's headers of these ``names``."""
    headers = []
    for header in message.get("headers") or ():
        if header[0].lower() not in names:
            headers.append(header)  # noqa: PERF401 - on a short list, half the time of a comprehension
    headers += added
    message = dict(message)
    message["headers"] = headers
    return message


def _pick(decisions: Iterable[Decision], allowed: bool) -> tuple[Sequence[Decision], tuple[Limit, ...]]:
    """Return the decisions to show: for an allowed request one of each limit, which a view may have checked often.

    It is the newest one, of the key with the least left. A concurrency limit shows only where it rejects, or alone.

    Returns:
        The decisions and their limits.
    """
    rates: list[Decision] = []
    slots: list[Decision] = []
    for decision in decisions:
        limit = decision.hit[0]
        if not limit.hidden:
            (slots if limit.quota.concurrent and decision.allowed else rates).append(decision)
    shown = rates or slots
    limits = tuple([decision.hit[0] for decision in shown])
    if not allowed or len({*limits}) == len(limits):
        return shown, limits
    by_key = {decision.hit[:2]: decision for decision in shown}
    by_limit: dict[Limit, Decision] = {}
    for decision in by_key.values():
        by_limit[decision.hit[0]] = _scarcest((by_limit.get(decision.hit[0], decision), decision))
    return list(by_limit.values()), tuple(by_limit)


def _scarcest(decisions: Iterable[Decision]) -> Decision:
    """Return the first decision with the smallest share of its limit left."""
    least = math.inf
    for decision in decisions:
        share = decision.remaining / decision.hit[0].limit
        if share < least:
            least, scarcest = share, decision
    return scarcest


def _wait(decision: Decision) -> float:
    return float("inf") if decision.retry_us is None else decision.retry_us


def _wait_seconds(rejecting: Decision) -> int | None:
    """Return the wait in whole seconds, rounded up, at least 1; None where waiting does not help."""
    return None if rejecting.retry_us is None else min(-(-rejecting.retry_us // SECOND), _MAX_NUMBER) or 1


def _are_shown(limits: tuple[Limit, ...]) -> bool:
    """Return whether an allowed request shows the decisions on these limits as they are: nearly always."""
    return len({*limits}) == len(limits) and not any(limit.hidden or limit.quota.concurrent for limit in limits)


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _policy_item(limit: Limit) -> str:
    item = _POLICY_ITEM.format(name=_escaped(limit.policy), quota=limit.quota.amount)
    if limit.quota.concurrent:
        return item + _POLICY_UNIT.format(unit=_CONCURRENT)
    item += _POLICY_UNIT.format(unit=limit.unit) * (limit.unit != _REQUESTS)
    seconds, rest = divmod(limit.quota.period_us, SECOND)
    # The draft has no fractions of a second and no calendar, so such a window is left out.
    return item if rest or limit.quota.calendar else item + _POLICY_WINDOW.format(window=seconds)
