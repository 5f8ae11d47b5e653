"""``Resets``: the part of a ``Limiter`` that forgets the counts of a key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakSet

from ..algorithms.limit import prefix_of
from ..decision import Verdict
from ..errors import ConfigError, StoreError
from ..keys.features import Features
from ..keys.parts import as_counted
from ..rules import lookup
from ..rules.compiled import CompiledRule
from ..rules.lookup import Found, LimitsCall
from ..rules.ruleset import RuleSet
from ..settings import Settings
from ..stores.blocking import Call, async_call, blocking_call, run_blocking, twins
from ..testmode import testmode
from .settlement import Settlement

_log = logging.getLogger("ratelimit_mw")


Undo = Sequence[Callable[[], None]]


class RulesUser(Protocol):
    """A middleware that derives more from the rules of its limiter."""

    def renew(self, rules: RuleSet, settings: Settings) -> Callable[[], None]:
        """Check rules and settings. Return the function that puts them into effect."""

    def as_counted(self, features: Features) -> Features:
        """Return the features of a client as its requests have them."""


class Resets(Settlement):
    """Forgets keys. ``Limiter`` inherits it."""

    users: WeakSet[RulesUser]
    settings: Settings
    _is_from_settings: bool

    def forget(self, verdict: Verdict, rule: str) -> None:
        """Set the counts under the key of one rule of a verdict to zero, those of the verdict included.

        A key with an invalid feature stays: many clients share it, so one of them could reset the counts of the others.

        Args:
            verdict: A verdict of this limiter.
            rule: The name of the rule.
        """
        keys = _own(verdict.receipt.keys(rule), self.rules.by_name.get(rule))
        undo = _drop(verdict, rule, keys)

        def forget_here() -> None:
            run_blocking(self._forget_keys(blocking_call, keys, rule, verdict, undo))

        if self._must_not_wait():
            task = self._start(self._forget_keys(async_call, keys, rule, verdict, undo))
            # An async view of Flask, or of Django under WSGI, has a loop of its own, which cancels tasks at its end.
            task.add_done_callback(lambda task: forget_here() if task.cancelled() else None)
        else:
            forget_here()

    async def _forget_key(
        self, call: Call, verdict: Verdict, rule: str, features: Features, rules: RuleSet | None = None
    ) -> None:
        """Forget all that is counted under a key; adapters call it. An unreachable store is logged.

        As with ``forget``, a key with an invalid feature stays.

        Args:
            verdict: The verdict of the current request, which may have consumed under the same key.
            rule: The name of the rule.
            features: The features of the key.
            rules: The rules of the request. Default: the current rules.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
        """
        found = await call(lookup, "run", partial(self._keys, rules, rule, features), self._time)
        keys = _own(found, (rules or self.rules).named(rule))
        await self._forget_keys(call, keys, rule, verdict, _drop(verdict, rule, keys))

    forget_key, aforget_key = twins(_forget_key)

    async def _reset(self, call: Call, rule: str, features: Features) -> None:
        """Reset the counts of one client under a rule, and lift its ban.

        Args:
            rule: The name of the rule.
            features: The features of its key, for example ``{"ip": "192.0.2.7"}``.

        Raises:
            ConfigError: There is no such rule, or a feature of its key is missing.
            StoreError: The store is unreachable.
        """
        find = partial(self._keys, None, rule, self._as_counted(features))
        await call(self._counts, "forget", await call(lookup, "run", find, self._time))

    reset, areset = twins(_reset)

    def _as_counted(self, features: Features) -> Features:
        """Return the features of a client as its requests have them, with the network of an IPv6 address.

        A limiter with rules of your code and without a middleware counts the addresses that you pass.
        """
        users, settings = tuple(self.users), self.settings
        for user in users:
            features = user.as_counted(features)
        if not users and self._is_from_settings and "ip" in features:
            ip = as_counted({"ip": features["ip"]}, settings.ipv6_prefix, settings.nat64_prefixes)
            features = {**features, **ip}
        return features

    def _with_network(self, features: Features) -> Features:
        """Return the features of a request with ``ip`` in the form that ``ban`` has. Other text stays as it is."""
        ip = features.get("ip")
        if ip is None or (type(ip) is str and ":" not in ip):
            return features
        try:
            return {**features, **self._as_counted({"ip": ip})}
        except ConfigError:
            return features

    def _keys(self, rules: RuleSet | None, name: str, features: Features, found: Found) -> list[str] | LimitsCall:
        suffix = testmode.key_suffix if self._clock is None else ""
        keys = (rules or self.rules).keys(name, features, found)
        return keys if isinstance(keys, LimitsCall) else [key + suffix for key in keys]

    async def _forget_keys(self, call: Call, keys: Sequence[str], rule: str, verdict: Verdict, undo: Undo) -> None:
        try:
            await call(self._counts, "forget", keys)
        except StoreError as error:
            _log.warning("rule %s: the store could not reset a key (%s)", rule, error)  # the view continues
            for each in undo:
                each()
            if any(part.receipt.has_ended for part in verdict.parts):  # its refunds are due
                await self._correct(call, verdict)


def _own(keys: list[str], rule: CompiledRule | None) -> list[str]:
    """Return the keys that belong to one client. ``rule`` is None for one that a reload has removed."""
    return [key for key in keys if rule is None or not rule.key.has_invalid(key.removeprefix(prefix_of(key)))]


def _drop(verdict: Verdict, rule: str, keys: Sequence[str]) -> Undo:
    """Note that a verdict has consumed nothing under keys that are forgotten. Return the functions that undo it."""
    parts = [p for p in verdict.parts if rule in p and any(decision.hit[1] in keys for decision in p.decisions)]
    return [part.receipt.drop(rule) for part in parts]
