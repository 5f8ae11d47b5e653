"""The basic types: ``Hit``, ``Decision``, ``Charge``, ``Correction``, ``Algorithm`` and ``Limit``. No I/O.

A request under one limit is a hit, and its result a decision. A limit is one quota of one rule with its algorithm.
Inside the package, times are whole microseconds (``*_us``). Users read seconds.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from secrets import randbits
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from ..clock import SECOND
from ..errors import ConfigError
from ..quota import Quota, format_duration
from .key_format import checked_kind, prefix_of_rule, without_hash_tag

UNAVAILABLE: Final = "unavailable"
"""Why a limit rejected: the store, or the function of the limits, gave no result."""
BANNED: Final = "banned"
"""Why a limit decided so: the client is banned from the rule."""
SHED: Final = "shed"
"""Why an adaptive limit rejected: the service cannot bear more requests."""
_SLOT_BITS: Final = 50
"""Ids of slots are exact numbers in Lua, and smaller than the times that stores name slots by."""


class Hit(NamedTuple):
    """A request under one limit: its key, and the cost to consume."""

    limit: Limit
    key: str
    cost: int


make_hit: Callable[[tuple[Limit, str, int]], Hit] = partial(tuple.__new__, Hit)
"""Build a ``Hit`` from its three fields. This is faster than calling the class."""


class BeforeHit(Hit):
    """A hit of no cost in front of a hit whose outcome decides whether it counts: the limit without that hit."""

    __slots__ = ()


class SlotCost(int):
    """The cost of a hit on slots. ``slot`` is their id: a client that got no reply can return slots by it."""

    slot: int


def name_slots(hits: Iterable[Hit]) -> list[Hit]:
    """Give the slots that these hits take an id, which no other hit has."""
    return [hit._replace(cost=_slot_cost(hit.cost)) if hit.limit.holds_slots else hit for hit in hits]


def _slot_cost(cost: int) -> SlotCost:
    named = SlotCost(cost)
    named.slot = 1 + randbits(_SLOT_BITS)
    return named


class Tuning(NamedTuple):
    """How a process changes an adaptive limit between ``floor`` and ``ceiling``; microseconds, 0 for none.

    ``by`` is the measure: "time", that of requests in flight, or "demand" or "health" for a rate.
    """

    by: str
    floor: int
    ceiling: int
    period: int
    target: int


class Decision(msgspec.Struct, eq=False, gc=False):  # built in a third of the time of a dataclass
    """The result of one limit for one request.

    After the third hit on "5/minute" under a fixed window, 20 s into the window: ``allowed`` is True, ``limit`` 5,
    ``remaining`` 2, ``reset_after`` 40.0 and ``retry_after`` 0.0.

    Args:
        allowed: Whether this limit allows the request.
        remaining: How much more cost this limit would allow now.
        retry_us: Microseconds until the same cost is allowed: 0 when allowed, None when the cost can never fit.
        reset_us: Microseconds until the limit is fully reset.
        at_us: The time of the hit by the store's clock, in microseconds since 1970.
        delay_us: Microseconds to wait before you continue (leaky-bucket queue).
        hit: The limit, key and cost that were decided. Internal; the store sets it.
        why: The reason for a decision other than the count: ``"unavailable"``, ``"banned"`` or ``"shed"``. Internal.
    """

    allowed: bool
    remaining: int
    retry_us: int | None
    reset_us: int
    at_us: int
    delay_us: int = 0
    hit: tuple[Limit, str, int] = ()  # type: ignore[assignment]
    why: str = ""

    @property
    def source(self) -> Limit:
        """The limit that decided. Internal; use ``rule``, ``quota`` and ``limit``."""
        return self.hit[0]

    @property
    def rule(self) -> str:
        """The name of the rule."""
        return self.hit[0].rule

    @property
    def key(self) -> str:
        """The key that the limit counts under, as the store has it, for ``limiter.clients.reset_key``."""
        return self.hit[1]

    @property
    def client(self) -> str:
        """The part of the key that names the client, without braces, for example ``ip=192.0.2.7``."""
        return without_hash_tag(self.hit[1].removeprefix(self.hit[0].prefix))

    @property
    def quota(self) -> Quota:
        """The quota of the limit, for example ``Quota("5/minute")``."""
        return self.hit[0].quota

    @property
    def limit(self) -> int:
        """The largest cost that can pass at once: the amount of the quota, or the capacity of a bucket.

        Of an adaptive limit it is the amount at the time of the decision.
        """
        return self.hit[0].limit

    @property
    def reason(self) -> str:
        """Why the amount of an adaptive limit has changed last; "" for other limits.

        ``"start"``, ``"grew"``, ``"slow"``, ``"dropped"``, or ``"unused"`` for a rate that fell without demand.
        """
        return self.hit[0].reason

    @property
    def unit(self) -> str:
        """The unit of the limit: ``"requests"``, or the ``unit`` of its rule, such as ``"tokens"``."""
        return self.hit[0].unit

    @property
    def shadow(self) -> bool:
        """True for a rule with ``mode = "shadow"``, which never rejects a request."""
        return self.hit[0].shadow

    @property
    def unavailable(self) -> bool:
        """True when the limit rejected because the store, or the function of the limits, gave no result."""
        return self.why == UNAVAILABLE

    @property
    def banned(self) -> bool:
        """True when the client is banned from the rule."""
        return self.why == BANNED

    @property
    def shed(self) -> bool:
        """True when an adaptive limit rejected the request, because the service cannot bear more of them."""
        return self.why == SHED

    @property
    def local(self) -> bool:
        """True when this process decided on its own because the store was unreachable."""
        return self.hit[0].local or self.unavailable

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same cost is allowed: 0.0 when allowed, None when the cost is larger than the limit."""
        return None if self.retry_us is None else self.retry_us / SECOND

    @property
    def reset_after(self) -> float:
        """Seconds until the limit is fully reset."""
        return self.reset_us / SECOND

    @property
    def delay(self) -> float:
        """Seconds to wait before you continue (leaky-bucket queue), else 0.0."""
        return self.delay_us / SECOND

    @property
    def at(self) -> float:
        """The time of the hit by the store's clock, in seconds since 1970."""
        return self.at_us / SECOND

    def __repr__(self) -> str:
        return (
            f"Decision(rule={self.rule!r}, quota='{self.quota}', allowed={self.allowed}, limit={self.limit},"
            f" remaining={self.remaining}, reset_after={self.reset_after}, retry_after={self.retry_after})"
        )


def build_denial(hit: tuple[Limit, str, int], now: int) -> Decision:
    """Return the rejection without a result of the store or of a function. It has a retry after a second."""
    return Decision(False, 0, SECOND, SECOND, now, 0, hit, UNAVAILABLE)


class Charge(NamedTuple):
    """The cost that a hit consumed.

    Args:
        at_us: The time of the hit by the store's clock, in microseconds since 1970; of slots, their id.
        cost: The cost.
        delay_us: The delay of the decision, in microseconds.
    """

    at_us: int
    cost: int
    delay_us: int = 0


class Correction(NamedTuple):
    """A change after the decision: return ``cost`` of ``consumed``, or charge ``cost``, even beyond the limit."""

    limit: Limit
    key: str
    cost: int
    consumed: Charge | None  # None for a charge

    @classmethod
    def refund(cls, decision: Decision) -> Correction:
        """Build the refund of everything that the hit of a decision has consumed."""
        charge = charge_of(decision)
        return cls(*decision.hit[:2], charge.cost, charge)

    @classmethod
    def return_slots(cls, limit: Limit, key: str, cost: SlotCost) -> Correction:
        """Build the return of the slots that a hit may have taken."""
        return cls(limit, key, int(cost), Charge(cost.slot, int(cost)))

    def apply_to(self, state: Any, now: int) -> Any:
        """Return the state of the key after this correction."""
        if self.consumed is None:
            return self.limit.algorithm.charge(state, now, self.cost)
        return self.limit.algorithm.refund(state, now, self.consumed, self.cost)


def charge_of(decision: Decision) -> Charge:
    """Return the charge of a hit. The charge of named slots has their id instead of the time."""
    cost = decision.hit[2]
    return Charge(getattr(cost, "slot", decision.at_us), int(cost), decision.delay_us)


class Algorithm(ABC):
    """One quota under one algorithm. To add your own, subclass it, set ``name`` and call ``register``.

    Args:
        quota: The quota.

    Attributes:
        name: The name in rules.
        takes_burst: Whether a quota may have a burst.
        delays: Whether decisions have a delay.
        fields: How many numbers a state has, 0 for any. ``load`` checks it.
        amount: The amount of the quota (N in formulas).
        period: The period in microseconds (P in formulas).
        limit: The burst of the quota, or else its amount.

    Raises:
        ConfigError: The quota has a burst, and the algorithm takes none.
    """

    name: ClassVar[str]
    takes_burst: ClassVar[bool] = False
    delays: ClassVar[bool] = False
    fields: ClassVar[int] = 0
    _shared = 0

    def __init__(self, quota: Quota) -> None:
        if quota.burst is not None and not self.takes_burst:
            raise ConfigError(
                f"the algorithm has no burst; got {str(quota)!r}."
                " Remove the burst, or use token-bucket, leaky-bucket or gcra"
            )
        self.amount = quota.amount
        self.period = quota.period_us
        self.limit = self.amount if quota.burst is None else quota.burst

    def shared(self, number: int) -> int:
        """Return a number that is equal to the last one as the same object, for states that share it.

        A number of its own takes 32 bytes in each state in memory.

        Args:
            number: A whole number that many states have in turn, such as the start of a window.
        """
        if (known := self._shared) == number:
            return known
        self._shared = number
        return number

    @property
    @abstractmethod
    def lifetime(self) -> int:
        """Microseconds after its last change until a state is expired."""

    @property
    def variant(self) -> str:
        """The part of every key that separates states of one name that are not compatible."""
        return ""

    @abstractmethod
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        """Decide whether ``cost`` fits.

        Args:
            state: The state of the key.
            now: The time in microseconds.
            cost: The cost, a whole number. A cost of 0 is always allowed and changes nothing.

        Returns:
            The state to keep and the decision. After a rejection the state is the same object.
        """

    @abstractmethod
    def charge(self, state: Any, now: int, cost: int) -> Any:
        """Consume ``cost`` without a decision, even beyond the limit.

        Args:
            state: The state of the key.
            now: The time in microseconds.
            cost: The cost, a whole number.

        Returns:
            The new state.
        """

    @abstractmethod
    def refund(self, state: Any, now: int, consumed: Charge, cost: int) -> Any:
        """Refund a cost where it was counted. A charge from before the state began, such as before a reset, is void.

        Args:
            state: The state of the key.
            now: The time in microseconds.
            consumed: The charge: its time, cost and delay.
            cost: The part of the charge to refund, a whole number.

        Returns:
            The new state, or None if it is fresh.
        """

    def dump(self, state: Any) -> bytes:
        """Encode a state. This method encodes a tuple of whole numbers: ``b"1:2:3"``.

        Args:
            state: A state, never None.

        Returns:
            The bytes that a store keeps.
        """
        text: bytes = (b"%d" + b":%d" * (len(state) - 1)) % tuple(state)
        return text

    def load(self, data: bytes) -> Any:
        """Decode a state.

        Args:
            data: The bytes that a store has kept.

        Returns:
            The state.

        Raises:
            ValueError: ``dump`` cannot have returned these bytes.
        """
        state = tuple(map(int, data.split(b":")))
        if self.fields and len(state) != self.fields:
            raise ValueError(f"expected {self.fields} numbers, got {len(state)}")
        return state


class Limit:
    """The part of a rule by which a store decides one key.

    ``prefix`` starts every key of this limit. It has rule, algorithm, period and format, because states that differ in
    them are not compatible. It does not have the amount, so the consumed cost is kept when the amount changes.
    ``statuses`` are those of the responses that count, None for all. ``unit`` is what the rule counts. ``values_of``
    returns the values in a key after the prefix, by feature, and ``names_client`` whether one of them is the client's
    own. ``ban`` is the ban of the rule. ``by_class`` has the limit of each class of requests, for a rule with a
    reserve or an adaptive limit. A limit with a ``tuning`` is adaptive: each process changes its amount. If it
    ``sheds``, the process decides it, too. Headers leave out a limit that is ``hidden``. ``status`` is the status of
    its rejections. With ``shares``, new clients may share a state while the store is full. ``build`` makes the
    algorithm of a quota.
    """

    values_of: Callable[[str], Mapping[str, str]] = staticmethod(lambda _: {})
    names_client: Callable[[str], bool] = staticmethod(lambda _: True)
    shares: ClassVar[bool] = True
    status: int = 429
    ban: Limit | None = None
    by_class: Mapping[str, Limit] = MappingProxyType({})
    held = 0
    """The part of the quota that these requests leave to the classes above theirs, and its percent."""
    held_percent = 0
    tuning: Tuning | None = None
    reason = ""
    """Why the amount of an adaptive limit has changed last."""

    def __init__(
        self,
        rule: str,
        number: int,
        quota: Quota,
        build: Callable[[Quota], Algorithm],
        shadow: bool = False,
        statuses: frozenset[int] | None = None,
        on_store_error: str | None = None,
        lease: int = 0,
        unit: str = "requests",
    ) -> None:
        self.rule = self.shown_rule = rule
        self.shadow = shadow
        self.sheds = quota.floor is not None and quota.concurrent
        self.hidden = shadow or self.sheds
        self.statuses = statuses
        self.on_store_error = on_store_error
        self.unit = unit
        self.build = build
        self.local = False
        self.policy = rule if number == 0 else f"{rule}-{number + 1}"
        self._take(quota)
        # The cost that a process leases at once. A lease of one saves no round trip.
        share = self.limit * lease // 100
        self.lease = share if share > 1 and not (quota.concurrent or quota.calendar or quota.floor) else 0

    def _take(self, quota: Quota) -> None:
        self.quota, self.algorithm = quota, self.build(quota)
        self.decide, self.limit = self.algorithm.decide, self.algorithm.limit
        kind = checked_kind(self.algorithm.name, self.algorithm.variant)
        self.prefix = f"{prefix_of_rule(self.rule)}{kind}|{format_duration(quota.period_us)}|"

    @property
    def holds_slots(self) -> bool:
        """Whether a request holds slots in the store."""
        return self.quota.concurrent and not self.sheds

    @property
    def settles(self) -> bool:
        """Whether the end of a request may change what is consumed."""
        return self.statuses is not None or self.holds_slots

    def show_as(self, name: str) -> None:
        """Set the name of the rule that clients see, ``shown_rule``, and with it that of the limit, ``policy``."""
        self.policy = name + self.policy.removeprefix(self.shown_rule)
        self.shown_rule = name

    def leaving(self, percent: int) -> Limit:
        """Return the limit of requests that leave a share of the quota to others. The count is the same.

        At least 1 is left for these requests. The share of an adaptive limit of concurrent requests is rounded up.
        """
        limit, algorithm = copy.copy(self), self.algorithm
        rest = algorithm.limit * (100 - percent)
        limit.limit = rest // 100 or 1 if self.sheds else -(-rest // 100)
        limit.held_percent, limit.held = percent, algorithm.limit - limit.limit
        limit.decide = partial(_decide_leaving, algorithm, limit.held) if limit.held else algorithm.decide
        return limit

    def at(self, amount: int, reason: str) -> Limit:
        """Return an adaptive limit at a moment, and why its amount has changed last. The count is the same."""
        limit = self._with_quota(self.quota.replace(amount=amount, floor=None))
        limit.reason, limit.quota = reason, self.quota if self.sheds else limit.quota  # stores read that of a rate
        return limit

    def local_part(self, parts: int) -> Limit:
        """Return the limit for local counting: one of ``parts`` equal parts of its quota, rounded up."""
        burst = self.quota.burst and -(-self.quota.burst // parts)
        limit = self._with_quota(self.quota.replace(amount=-(-self.quota.amount // parts), burst=burst))
        limit.local, limit.lease = True, 0
        return limit

    def _with_quota(self, quota: Quota) -> Limit:
        limit = copy.copy(self)
        limit._take(quota)
        return limit.leaving(self.held_percent) if self.held_percent else limit

    def __copy__(self) -> Limit:
        twin = object.__new__(type(self))
        twin.__dict__.update(vars(self))
        return twin

    def __getstate__(self) -> dict[str, object]:
        """Pickle the limit without the functions of its key, which cannot be pickled."""
        return {name: value for name, value in vars(self).items() if name not in ("values_of", "names_client")}

    @property
    def text(self) -> str:
        """The quota with its unit, unless that is "requests": "1000 tokens/minute"."""
        text, amount = str(self.quota), str(self.quota.amount)
        is_plain = self.unit == "requests" or self.quota.concurrent or self.quota.floor
        return text if is_plain else f"{amount} {self.unit}{text.removeprefix(amount)}"

    def key_of(self, limit: Limit, key: str) -> str:
        """Return the key of a client, from its key under another limit."""
        return self.prefix + key[len(limit.prefix) :]

    def keys_of(self, key: str) -> list[str]:
        """Return a key of this limit, and the key of the ban of its rule for the same client."""
        return [key] if self.ban is None else [key, self.ban.key_of(self, key)]

    def cap(self, estimate: int) -> int:
        """Return the cost of an estimate, which a client may choose: at most what can pass at once. A slot is one."""
        return 1 if self.quota.concurrent else min(estimate, self.limit, self.quota.floor or self.limit)

    def __repr__(self) -> str:
        return f"Limit({self.rule!r}, '{self.quota}', {self.algorithm.name!r})"


def _decide_leaving(algorithm: Algorithm, held: int, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
    """Decide as the algorithm does, but reject a cost that would leave less than ``held``."""
    kept, decision = algorithm.decide(state, now, cost)
    if cost and not (decision.allowed and decision.remaining >= held):
        kept, decision = state, algorithm.decide(state, now, cost + held)[1]
    decision.remaining = max(0, decision.remaining - held)
    return kept, decision
