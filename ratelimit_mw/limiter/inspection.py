"""``Inspection``: the part of a ``Limiter`` that shows the keys of its store, with what is left under each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ..algorithms.limit import FORMAT, Limit, prefix_of, prefix_of_rule, rule_of
from ..decision import Decision, Hit, show_bans, with_added_hits
from ..errors import ConfigError, StateError
from ..keys.features import Features
from ..rules import lookup
from ..stores.blocking import Call, twins
from .resets import Resets

_MOST: Final = 100
"""A page ends after this number of decisions."""
_MOST_CALLS: Final = 10
"""The maximum number of calls of the store that list keys for one page."""
_AT_ONCE: Final = 100
"""The maximum number of keys that one call of the store decides."""


_Only = Callable[[str], bool] | None


class KeyStates(NamedTuple):
    """The decisions on some keys of a store.

    Args:
        decisions: A decision on the next request under each key. Nothing is consumed.
        cursor: The cursor of the next page, None after the last page.
    """

    decisions: list[Decision]
    cursor: str | None


class Inspection(Resets):
    """Shows keys. ``Limiter`` inherits it."""

    async def _inspect(
        self,
        call: Call,
        rule: str | None = None,
        features: Features | None = None,
        cursor: str = "",
        rejected: bool = False,
        only: _Only = None,
    ) -> KeyStates:
        """Show how much remains for each client in the store, a page at a time. Consume nothing.

        The store reads at most 10,000 keys for a page, so a page may be empty before the last page. If the limits of a
        rule differ by client, such as by plan, a listed key is decided by the lowest limit that it may have. Limits
        from a function are known only for a client whose features you pass.

        Args:
            rule: The name of the only rule to show.
            features: The features of the only client to show, for example ``{"ip": "192.0.2.7"}``. Every store can show
                one key of one rule.
            cursor: The ``cursor`` of the page before. Default: the first page.
            rejected: Show only clients whose next request would be rejected.
            only: Called with each key that is listed. If it returns False, the key is not read and not shown.

        Returns:
            The decisions, and the cursor of the next page.

        Raises:
            ConfigError: There is no such rule, a feature of its key is missing, or the store cannot list its keys.
            StoreError: The store is unreachable.

        Example:
            >>> from ratelimit_mw import Limiter, Rule
            >>> limiter = Limiter([Rule(name="api", limits="1/minute")])
            >>> limiter.hit({"ip": "192.0.2.7"}).allowed
            True
            >>> for decision in limiter.inspect(rejected=True).decisions:
            ...     print(decision.rule, decision.client)
            ...     limiter.reset_key(decision.key)
            api ip=192.0.2.7
        """
        await call(self, "start")
        if features is None:
            return await self._list(call, rule, cursor, rejected, only)
        if rule is None:
            raise ConfigError("features name a client of one rule. Name the rule, too", "rule")
        hits = await call(lookup, "run", partial(self.rules.hits, rule, self._as_counted(features)), self._time)
        return KeyStates(await self._decide_next(call, with_added_hits(hits, consume=False), rejected), None)

    inspect, ainspect = twins(_inspect)

    async def _inspect_key(self, call: Call, key: str) -> list[Decision]:
        """Show how much remains under a key of the store, by all limits of its rule. Consume nothing.

        Args:
            key: The key, as the store has it: ``decision.key``.

        Returns:
            The decisions on the keys that ``reset_key`` would forget. A key without counts has none.

        Raises:
            ConfigError: The key belongs to no rule.
            StoreError: The store is unreachable.
        """
        await call(self, "start")
        return await self._decide_counted(call, self._same_client(key), False)

    inspect_key, ainspect_key = twins(_inspect_key)

    async def _list(self, call: Call, rule: str | None, cursor: str, rejected: bool, only: _Only) -> KeyStates:
        prefix = f"{FORMAT}|" if rule is None else prefix_of_rule(self.rules.named(rule).name)
        found: list[Decision] = []
        for _ in range(_MOST_CALLS):
            keys, following = await call(self.store, "list_keys", prefix, cursor)
            found += await self._decide_counted(call, keys, rejected, only)
            if following is None or len(found) >= _MOST:
                return KeyStates(found, following)
            cursor = following
        return KeyStates(found, cursor)

    async def _decide_counted(
        self, call: Call, keys: Iterable[str], rejected: bool, only: _Only = None
    ) -> list[Decision]:
        """Decide the next request of each key by its override or the lowest limit, without expired keys."""
        limits = self._lowest_limits()

        def hits_of(keys: Iterable[str]) -> dict[str, Hit]:
            wanted = filter(only, keys) if only else keys
            return {key: Hit(limit, key, 0) for key in wanted if (limit := self._limit_of(key, limits))}

        hits = await self._with_bans(call, hits_of(keys), hits_of)
        return [decision for decision in await self._decide_next(call, hits, rejected) if decision.reset_us]

    async def _with_bans(
        self, call: Call, hits: dict[str, Hit], hits_of: Callable[[Iterable[str]], dict[str, Hit]]
    ) -> list[Hit]:
        """Return hits with those on the bans of their clients. A page need not have all keys of a client.

        A ban without its limits is left out if they are on another page, which then shows it.
        """
        apart = {hit.key: self._same_client(hit.key) for hit in hits.values() if hit.limit.is_ban}
        others = hits_of(key for keys in apart.values() for key in keys if key not in hits)
        counted = {each.key for each in await self._peek(call, list(others.values())) if each.reset_us}
        kept = [hit for hit in hits.values() if counted.isdisjoint(apart.get(hit.key, ()))]
        bans = [Hit(ban, ban.key_of(hit.limit, hit.key), 0) for hit in kept if (ban := hit.limit.ban)]
        return list({hit.key: hit for hit in (*bans, *kept)}.values())

    def _lowest_limits(self) -> dict[str, Limit]:
        """Return a limit for the keys of each prefix: the lowest one that applies now."""
        limits = (limit for rule in self.rules.rules for limit in rule.all_limits(self._time()))
        return {limit.prefix: limit for limit in sorted(limits, key=lambda limit: limit.limit, reverse=True)}

    def _limit_of(self, key: str, lowest: dict[str, Limit]) -> Limit | None:
        """Return the limit of a listed key: that of the client's override, else the lowest one."""
        prefix, rule = prefix_of(key), self.rules.by_name.get(rule_of(key))
        other = rule.overrides.find(key.removeprefix(prefix)) if rule and rule.overrides else None
        found = lowest.get(prefix)
        if not other or (found and found.is_ban):
            return None if other == () else found
        return next((limit for limit in other if limit.prefix == prefix), None)

    async def _decide_next(self, call: Call, hits: Sequence[Hit], rejected: bool) -> list[Decision]:
        """Decide the next request of each key. ``remaining`` is the current amount, before the cost of that request."""
        states = await self._peek(call, hits)
        costs = {name: rule.least_cost for name, rule in self.rules.by_name.items()}
        full = [decision for decision in states if decision.remaining < costs[decision.rule]]
        rejections = await self._peek(call, [Hit(each.source, each.key, costs[each.rule]) for each in full])
        decided = {each.hit[:2]: each for each in (*([] if rejected else states), *rejections)}
        return show_bans(list(decided.values()))

    async def _peek(self, call: Call, hits: Sequence[Hit]) -> list[Decision]:
        decisions: list[Decision] = []
        for start in range(0, len(hits), _AT_ONCE):
            decisions += await self._peek_once(call, hits[start : start + _AT_ONCE])
        return decisions

    async def _peek_once(self, call: Call, hits: Sequence[Hit]) -> list[Decision]:
        """Decide hits at one instant, without the keys whose state cannot be decoded."""
        try:
            return await call(self.store, "apply", hits, self._now(), False)  # type: ignore[no-any-return]
        except StateError as error:
            readable = [hit for hit in hits if hit.key not in error.keys]
            if len(readable) == len(hits):
                raise
            return await self._peek(call, readable)
