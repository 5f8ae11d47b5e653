"""A request under one limit (``Hit``), and the result of that limit (``Decision``). Pure, no I/O.

Inside the package, times are whole microseconds (``*_us``). Users read seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from secrets import randbits
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import msgspec

from ..clock import SECOND

if TYPE_CHECKING:
    from ..algorithms.limit import Limit
    from ..quota import Quota
else:
    Limit = Any  # ``inspect.signature`` evaluates the annotations of a struct

_SLOT_BITS: Final = 50
"""Ids of slots are exact numbers in Lua, and smaller than the times that stores name slots by."""


def without_hash_tag(client: str) -> str:
    """Return the part of a key that names the client without the hash tag of a Redis Cluster.

    A tag that is no part of the client has a ``&`` behind it.

    >>> without_hash_tag("path=6:/login&{ip=192.0.2.7}"), without_hash_tag("{29fa045b}&path=/login")
    ('path=6:/login&ip=192.0.2.7', 'path=/login')
    """
    outside, _, inside = client.partition("{")
    tag, _, rest = inside.partition("}")
    return outside + (rest[1:] if rest.startswith("&") else tag)


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
    """

    allowed: bool
    remaining: int
    retry_us: int | None
    reset_us: int
    at_us: int
    delay_us: int = 0
    hit: tuple[Limit, str, int] = ()  # type: ignore[assignment]

    unavailable: ClassVar[bool] = False
    """True when the limit rejected because the store, or the function of the limits, gave no result."""
    banned: ClassVar[bool] = False
    """True when the client is banned from the rule."""

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
        """The largest cost that can pass at once: the amount of the quota, or the capacity of a bucket."""
        return self.hit[0].limit

    @property
    def unit(self) -> str:
        """The unit of the limit: ``"requests"``, or the ``unit`` of its rule, such as ``"tokens"``."""
        return self.hit[0].unit

    @property
    def shadow(self) -> bool:
        """True for a rule with ``mode = "shadow"``, which never rejects a request."""
        return self.hit[0].shadow

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


class Denial(Decision):
    """The rejection of a limit without a result of the store (``on_store_error = "deny"``) or of its function."""

    unavailable = True


def build_denial(hit: tuple[Limit, str, int], now: int) -> Denial:
    """Return the rejection of a hit, with a retry after a second."""
    denial = Denial(False, 0, SECOND, SECOND, now)
    denial.hit = hit
    return denial


class Banned(Decision):
    """The decision of a limit of a rule from which the client is banned."""

    banned = True


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


def count_hits(hits: Sequence[Hit]) -> int:
    """Return the number of hits, without those of ``BeforeHit`` and those on bans."""
    return sum(type(hit) is not BeforeHit and not hit.limit.is_ban for hit in hits)


class SlotCost(int):
    """The cost of a hit on slots. ``slot`` is their id: a client that got no reply can return slots by it."""

    slot: int


def name_slots(hits: Iterable[Hit]) -> list[Hit]:
    """Give the slots that these hits take an id, which no other hit has."""
    return [hit._replace(cost=_slot_cost(hit.cost)) if hit.limit.quota.concurrent else hit for hit in hits]


def _slot_cost(cost: int) -> SlotCost:
    named = SlotCost(cost)
    named.slot = 1 + randbits(_SLOT_BITS)
    return named
