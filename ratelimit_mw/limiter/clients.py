"""``Clients``: the operations on single clients, as ``limiter.clients``.

Each method has an async twin, whose name starts with ``a``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from ..algorithms.fixed_window import FixedWindow
from ..clock import SECOND
from ..decision import (
    BANNED,
    FORMAT,
    BanLimit,
    Correction,
    Decision,
    Hit,
    Limit,
    prefix_of,
    prefix_of_rule,
    rule_of,
    show_bans,
    with_added_hits,
    without_hash_tag,
)
from ..errors import ConfigError, StateError, StoreError, error_path
from ..keys.features import Features
from ..quota import Quota, parse_duration
from ..rules.compiled import CompiledRule
from ..rules.lookup import UNLIMITED
from ..rules.overrides import ClientOverride, ban_of
from ..rules.rule import parse_limits
from ..runtime.blocking import Call, twins
from ..stores import Store
from ..stores.url import redacted_url
from .adaptive_limits import AdaptiveLimits
from .clocks import Clocks
from .overrides import Overrides
from .reloads import Reloads
from .remote.store import RequestStore

_BARS: Final = 4
"""The minimum number of | in a key, all of them before the client."""
_KEY: Final = "1|login|sliding-window-log|1m|{ip=192.0.2.7}"
_MAX_PAGE: Final = 100
"""A page ends after this number of decisions."""
_MAX_CALLS: Final = 10
"""The maximum number of calls of the store that list keys for one page."""
_MAX_AT_ONCE: Final = 100
"""The maximum number of keys that one call of the store decides."""

Only = Callable[[str], bool] | None


class KeyStates(NamedTuple):
    """The decisions on some keys of a store.

    Args:
        decisions: A decision on the next request under each key. Nothing is consumed.
        cursor: The cursor of the next page, None after the last page.
    """

    decisions: list[Decision]
    cursor: str | None


class Clients:
    """Shows the clients of a limiter, resets and bans them, and gives them limits of their own.

    Args:
        store: The store.
        request_store: The store as requests use it.
        clocks: The times of the limiter.
        reloads: The rules of the limiter.
        overrides: The overrides of the limiter.
        adaptive: The adaptive limits of this process.
    """

    def __init__(
        self,
        store: Store,
        request_store: RequestStore,
        clocks: Clocks,
        reloads: Reloads,
        overrides: Overrides,
        adaptive: AdaptiveLimits,
    ) -> None:
        self._store, self._request_store, self._clocks = store, request_store, clocks
        self._reloads, self._overrides, self._adaptive = reloads, overrides, adaptive

    async def _inspect(
        self,
        call: Call,
        rule: str | None = None,
        features: Features | None = None,
        cursor: str = "",
        rejected: bool = False,
        only: Only = None,
    ) -> KeyStates:
        """Show how much remains for each client in the store, a page at a time. Consume nothing.

        The store reads at most 10,000 keys for a page, so a page may be empty before the last page. If the limits of a
        rule differ by client, such as by plan, a listed key is decided by the lowest limit that it may have. Limits
        from a function are known only for a client whose features you pass. Adaptive limits are those of this process.

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
            >>> for decision in limiter.clients.inspect(rejected=True).decisions:
            ...     print(decision.rule, decision.client)
            ...     limiter.clients.reset_key(decision.key)
            api ip=192.0.2.7
        """
        await call(self._request_store, "start")
        if features is None:
            return await self._list(call, rule, cursor, rejected, only)
        if rule is None:
            raise ConfigError("features name a client of one rule. Name the rule, too", "rule")
        compiled, counted = self._reloads.rules.named(rule), self._reloads.as_counted(features)
        compiled.require_client(counted)
        key, limits = await compiled.limits_of_client(call, counted, self._clocks.time)
        hits = [Hit(limit, limit.prefix + key + self._clocks.key_suffix(), 0) for limit in limits or ()]
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
        await call(self._request_store, "start")
        return await self._decide_counted(call, self._same_client(key), False)

    inspect_key, ainspect_key = twins(_inspect_key)

    async def _reset_key(self, call: Call, key: str) -> None:
        """Reset the counts under a key of the store, by all limits of its rule, and lift its ban.

        Args:
            key: The key, as the store has it: ``decision.key`` of ``inspect``.

        Raises:
            ConfigError: The key belongs to no rule.
            StoreError: The store is unreachable.
        """
        await call(self._request_store, "forget", self._same_client(key))

    reset_key, areset_key = twins(_reset_key)

    async def _ban(
        self, call: Call, rule: str | None, features: Features, duration: float | str | None = None
    ) -> float:
        """Ban a client now, from one rule or from all. The ban replaces an active one, and makes later bans no longer.

        A ban from all rules is active in all workers that share the store within ``reload_interval``.

        Args:
            rule: The name of the rule, which must have the option ``ban``. None bans the client from all rules: all its
                requests are rejected with 403, unless it is on the allow list.
            features: The features of the key of the rule, for example ``{"ip": "192.0.2.7"}``. From all rules, one or
                more of ``ip`` and the features that rules use.
            duration: The length of the ban, in seconds or as text such as ``"7d"``. Default: ``for`` of the rule's ban.
                A ban from all rules has no end by default.

        Returns:
            The end of the ban, in seconds since 1970 by the clock of the store; infinity for none.

        Raises:
            ConfigError: There is no such rule, it has no ban, or a feature of its key is missing. Many clients share
                it, or the client is on the allow list or has the override ``"unlimited"``, so no ban applies to it.
            StoreError: The store is unreachable, or has no room for the ban.

        Example:
            >>> from ratelimit_mw import Limiter, Rule
            >>> terms = {"after": 10, "within": "10m", "for": "1h"}
            >>> limiter = Limiter([Rule(name="api", limits="9/minute", ban=terms)])
            >>> end = limiter.clients.ban("api", {"ip": "192.0.2.7"}, "1d")
            >>> limiter.hit({"ip": "192.0.2.7"}).banned
            True
            >>> [decision.client for decision in limiter.clients.bans().decisions]
            ['ip=192.0.2.7']
            >>> limiter.clients.unban("api", {"ip": "192.0.2.7"})
            True
        """
        if rule is None:
            ban = self._ban_from_all(features, duration)
            await self._overrides.change(call, "", ban.key, ban)
            return math.inf if ban.until is None else ban.until
        await call(self._request_store, "start")
        us, hit, correction = self._new_ban(rule, features, duration)
        (at,) = await call(self._request_store, "correct", [correction], self._clocks.now())
        (decision,) = await self._apply(call, [hit])
        if decision.allowed and decision.at_us < at + us:
            causes = "the store is nearly full, or another process has just lifted the ban"
            raise StoreError(f"the ban is not in {redacted_url(self._store)}: {causes}")
        return (at + us) / SECOND  # type: ignore[no-any-return]

    ban, aban = twins(_ban)

    async def _unban(self, call: Call, rule: str | None, features: Features) -> bool:
        """Lift the ban of a client from a rule, and forget its rejections and earlier bans. Its counts stay.

        Args:
            rule: The name of the rule, which must have the option ``ban``. None lifts the ban from all rules.
            features: The features of its key.

        Returns:
            Whether the client was banned.

        Raises:
            ConfigError: There is no such rule, it has no ban, or a feature of its key is missing.
            StoreError: The store is unreachable.
        """
        if rule is None:
            return await self._overrides.change(call, "", self._ban_from_all(features, None).key)
        await call(self._request_store, "start")
        hit = Hit(*self._ban_key(*self._client(rule, features)), 1)
        (decision,) = await self._apply(call, [hit])
        await call(self._request_store, "forget", [hit.key])
        return not decision.allowed

    unban, aunban = twins(_unban)

    async def _bans(self, call: Call, rule: str | None = None, cursor: str = "") -> KeyStates:
        """Show the clients that are banned now, a page at a time.

        Args:
            rule: The name of the only rule to show.
            cursor: The ``cursor`` of the page before. Default: the first page.

        Returns:
            A decision on each banned client. Its ``retry_after`` is the end of the ban. That of a ban from all rules
            has the rule ``""``, and is on the first page. A page may be empty before the last page.

        Raises:
            ConfigError: There is no such rule, or the store cannot list its keys.
            StoreError: The store is unreachable.
        """
        prefixes = {rule.ban.prefix for rule in self._reloads.rules.rules if rule.ban is not None}
        from_all = [] if rule is not None or cursor else await self._overrides.bans(call)
        found = list(map(self._decision_of, from_all))
        if rule is None and not prefixes:
            return KeyStates(found, None)
        page = await self._inspect(call, rule, None, cursor, True, lambda key: prefix_of(key) in prefixes)
        return page._replace(decisions=[*found, *page.decisions])

    bans, abans = twins(_bans)

    async def _override(
        self, call: Call, rule: str, features: Features, limits: Any, duration: float | str | None = None
    ) -> ClientOverride:
        """Change the limits of one client: these replace all limits that the rule has for it.

        All workers that share the store apply the change within ``reload_interval``. The client keeps its counts if
        the period and the algorithm stay the same. An earlier override of the client is replaced.

        Args:
            rule: The name of the rule.
            features: The features of its key, for example ``{"user": "acme"}``.
            limits: The limits as for ``Rule``, such as ``"1000/minute"``, or ``"unlimited"``.
            duration: The length of the override, in seconds or as text such as ``"7d"``. By default it has no end.

        Returns:
            The override.

        Raises:
            ConfigError: There is no such rule, a feature of its key is missing, the rule cannot have the limits, or
                the store keeps no records.
            StoreError: The store is unreachable. Without a reply of the store, the change may be in effect.

        Example:
            >>> from ratelimit_mw import Limiter, Rule
            >>> limiter = Limiter([Rule(name="api", key=["user"], limits="1/minute")])
            >>> limiter.clients.override("api", {"user": "acme"}, "1000/minute", duration=7 * 86_400).client
            'user=acme'
            >>> limiter.hit({"user": "acme"}).decisions[0].remaining
            999
        """
        override = self._new_override(rule, features, limits, duration)
        await self._overrides.change(call, override.rule, override.key, override)
        return override

    override, aoverride = twins(_override)

    async def _remove_override(self, call: Call, rule: str, features: Features) -> bool:
        """Remove the override of a client, so that it has the limits of the rule again.

        Args:
            rule: The name of the rule.
            features: The features of its key.

        Returns:
            Whether there was an override.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
            StoreError: The store is unreachable.
        """
        compiled, key = self._client(rule, features)
        return await self._overrides.change(call, compiled.name, key)

    remove_override, aremove_override = twins(_remove_override)

    overrides, aoverrides = twins(Overrides.overrides, "_overrides")
    clear_overrides, aclear_overrides = twins(Overrides.clear_overrides, "_overrides")

    def _ban_from_all(self, features: Features, duration: float | str | None) -> ClientOverride:
        features, rules = self._reloads.as_counted(features), self._reloads.rules
        span = _span_of(duration, "a ban without an end")
        until = None if span is None else self._clocks.time() + span
        with error_path("features"):
            ban = ban_of(features, rules.names_of_clients, rules.secret, until)
        if rules.own_lists.allows(features):
            raise ConfigError("the client is on the allow list, so a ban has no effect")
        return ban

    def _decision_of(self, ban: ClientOverride) -> Decision:
        """Return a ban from all rules as a decision of a limit that has no rule."""
        now, limit = self._clocks.time(), Limit("", 0, Quota.exact(1, SECOND), FixedWindow)
        left = None if ban.until_us is None else ban.until_us - now
        hit = Hit(limit, limit.prefix + ban.key, 1)
        return Decision(False, 0, left, left or 0, now, 0, hit, BANNED)

    def _client(self, name: str, features: Features) -> tuple[CompiledRule, str]:
        """Return a rule, and the part of its keys that names a client."""
        rule = self._reloads.rules.named(name)
        return rule, rule.client_key(self._reloads.as_counted(features))

    def _same_client(self, key: str) -> list[str]:
        """Return a key, and the keys of the same client under the other limits of its rule."""
        name, client = rule_of(key), key[len(prefix_of(key)) :]
        if not name or key.count("|") < _BARS:
            example = f"as inspect() and GET /v1/keys show it, such as {_KEY!r}"
            raise ConfigError(f"expected a key {example}; got {key[:200]!r}", "key")
        limits = self._reloads.rules.named(name).all_limits()
        return list(dict.fromkeys([key, *(limit.prefix + client for limit in limits)]))

    async def _list(self, call: Call, rule: str | None, cursor: str, rejected: bool, only: Only) -> KeyStates:
        prefix = f"{FORMAT}|" if rule is None else prefix_of_rule(self._reloads.rules.named(rule).name)
        found: dict[str, Decision] = {}  # a banned client is on two pages: with its limits, and with its ban
        for _ in range(_MAX_CALLS):
            keys, following = await call(self._store, "list_keys", prefix, cursor)
            if not cursor:
                own = (key for key, tuning in self._adaptive.states() if tuning.by == "time")
                keys = [*(key for key in own if key.startswith(prefix)), *keys]
            found |= {each.key: each for each in await self._decide_counted(call, keys, rejected, only)}
            cursor = following
            if following is None or len(found) >= _MAX_PAGE:
                break
        return KeyStates(list(found.values()), cursor)

    async def _decide_counted(
        self, call: Call, keys: Iterable[str], rejected: bool, only: Only = None
    ) -> list[Decision]:
        """Decide the next request of each key by its override or the lowest limit, without expired keys."""
        limits = self._lowest_limits()
        hits = [Hit(limit, key, 0) for key in filter(only, keys) if (limit := self._limit_of(key, limits))]
        bans = [Hit(ban, ban.key_of(hit.limit, hit.key), 0) for hit in hits if (ban := hit.limit.ban)]
        every = {hit.key: hit for hit in (*bans, *hits)}
        decisions = await self._decide_next(call, list(every.values()), rejected)
        return [decision for decision in decisions if decision.reset_us or decision.source.sheds]

    def _lowest_limits(self) -> dict[str, Limit]:
        """Return a limit for the keys of each prefix: the lowest one that applies now."""
        limits = (limit for rule in self._reloads.rules.rules for limit in rule.all_limits(self._clocks.time()))
        return {limit.prefix: limit for limit in sorted(limits, key=lambda limit: limit.limit, reverse=True)}

    def _limit_of(self, key: str, lowest: dict[str, Limit]) -> Limit | None:
        """Return the limit of a listed key: that of the client's override, else the lowest one."""
        prefix, suffix = prefix_of(key), self._clocks.key_suffix()
        if not key.endswith(suffix):
            return None  # a count from outside the test
        rule, client = self._reloads.rules.by_name.get(rule_of(key)), key.removeprefix(prefix).removesuffix(suffix)
        other = rule.overrides.find(client) if rule and rule.overrides else None
        found = lowest.get(prefix)
        if not other or isinstance(found, BanLimit):
            return None if other == () else found
        return next((limit for limit in other if limit.prefix == prefix), None)

    async def _decide_next(self, call: Call, hits: Sequence[Hit], rejected: bool) -> list[Decision]:
        """Decide the next request of each key. ``remaining`` is the current amount, before the cost of that request."""
        states = await self._peek(call, hits)
        costs = {name: rule.fixed_cost or 1 for name, rule in self._reloads.rules.by_name.items()}
        full = [decision for decision in states if decision.remaining < costs[decision.rule]]
        rejections = await self._peek(call, [Hit(each.source, each.key, costs[each.rule]) for each in full])
        decided = {each.hit[:2]: each for each in (*([] if rejected else states), *rejections)}
        return show_bans(list(decided.values()))

    async def _peek(self, call: Call, hits: Sequence[Hit]) -> list[Decision]:
        """Decide hits, without the keys whose state cannot be decoded."""
        decisions: list[Decision] = []
        while hits:
            some, hits = hits[:_MAX_AT_ONCE], hits[_MAX_AT_ONCE:]
            try:
                decisions += await self._apply(call, some)
            except StateError as error:
                readable = [hit for hit in some if hit.key not in error.keys]
                if len(readable) == len(some):
                    raise
                hits = [*readable, *hits]
        return decisions

    async def _apply(self, call: Call, hits: Sequence[Hit]) -> list[Decision]:
        """Return what the store decides now. Consume nothing."""
        now = self._clocks.now()
        here, others = self._adaptive.look(hits, is_here=False)
        return [*here.decisions, *(await call(self._store, "apply", others, now, False) if others else ())]

    def _new_ban(self, name: str, features: Features, duration: float | str | None) -> tuple[int, Hit, Correction]:
        rule, client = self._client(name, features)
        ban, key = self._ban_key(rule, client)
        if rule.overrides is not None and rule.overrides.find(client) == ():
            hint = "Remove it first, with remove_override() or the command `override remove`"
            raise ConfigError(f"the client has the override {UNLIMITED!r}, so rule {rule.name!r} cannot ban it. {hint}")
        if not rule.key.names_client(client):
            shared = without_hash_tag(client)
            raise ConfigError(f"many clients share the key {shared!r}, so rule {rule.name!r} never bans them")
        if self._reloads.rules.lists.allows(features):
            raise ConfigError(f"the client is on the allow list, so rule {rule.name!r} never bans it")
        us = _span_of(duration, "the length of the rule's ban") or ban.terms.first
        return us, Hit(ban, key, 1), Correction(ban.lasting(us), key, ban.limit, None)

    def _ban_key(self, rule: CompiledRule, client: str) -> tuple[BanLimit, str]:
        if rule.ban is None:
            hint = 'Add ban = {after = 10, within = "10m", for = "1h"} to it, or add the client to lists.deny'
            raise ConfigError(f"rule {rule.name!r} has no ban option, so a ban would have no effect. {hint}")
        return rule.ban, f"{rule.ban.prefix}{client}{self._clocks.key_suffix()}"

    def _new_override(self, name: str, features: Features, limits: Any, duration: float | str | None) -> ClientOverride:
        rule, key = self._client(name, features)
        with error_path("limits"):
            text = limits.strip().lower() if isinstance(limits, str) else ""
            if text != UNLIMITED:
                text = "; ".join(map(str, parse_limits(rule.source, limits)))
            rule.parse(text)
        span = _span_of(duration, "an override without an end")
        return ClientOverride(rule.name, key, text, None if span is None else self._clocks.time() + span)


def _span_of(duration: float | str | None, otherwise: str) -> int | None:
    """Return a duration in microseconds; None without one, which means something else."""
    with error_path("duration"):
        span = None if duration is None else parse_duration(duration)
        if span == 0:
            raise ConfigError(f"expected more than 0. Leave the argument out for {otherwise}")
    return span
