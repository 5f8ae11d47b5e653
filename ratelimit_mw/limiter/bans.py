"""``Bans``: the part of a ``Limiter`` that bans clients by hand, lifts bans and lists them."""

from __future__ import annotations

from ..algorithms.limit import BanLimit, client_of, prefix_of
from ..clock import SECOND
from ..decision import Hit
from ..errors import ConfigError, StoreError, error_path
from ..keys.features import Features
from ..quota import parse_duration
from ..receipt import Correction
from ..rules.compiled import CompiledRule
from ..rules.lookup import UNLIMITED
from ..stores import redacted_url
from ..stores.blocking import Call, twins
from ..testmode import testmode
from .inspection import Inspection, KeyStates


class Bans(Inspection):
    """Changes and shows bans. ``Limiter`` inherits it."""

    async def _ban(self, call: Call, rule: str, features: Features, duration: float | str | None = None) -> float:
        """Ban a client from a rule now. The ban replaces an active one, and does not make later bans longer.

        Args:
            rule: The name of the rule. It must have the option ``ban``.
            features: The features of its key, for example ``{"ip": "192.0.2.7"}``.
            duration: The length of the ban, in seconds or as text such as ``"7d"``. Default: ``for`` of the rule's ban.

        Returns:
            The end of the ban, in seconds since 1970 by the clock of the store.

        Raises:
            ConfigError: There is no such rule, it has no ban, or a feature of its key is missing. Many clients share
                it, or the client is on the allow list or has the override ``"unlimited"``, so no ban applies to it.
            StoreError: The store is unreachable, or has no room for the ban.

        Example:
            >>> from ratelimit_mw import Limiter, Rule
            >>> terms = {"after": 10, "within": "10m", "for": "1h"}
            >>> limiter = Limiter([Rule(name="api", limits="9/minute", ban=terms)])
            >>> end = limiter.ban("api", {"ip": "192.0.2.7"}, "1d")
            >>> limiter.hit({"ip": "192.0.2.7"}).banned
            True
            >>> [decision.client for decision in limiter.bans().decisions]
            ['ip=192.0.2.7']
            >>> limiter.unban("api", {"ip": "192.0.2.7"})
            True
        """
        await call(self, "start")
        us, hit, correction = self._new_ban(rule, features, duration)
        (at,) = await call(self._counts, "correct", [correction], self._now())
        (decision,) = await call(self.store, "apply", [hit], self._now(), False)
        if decision.allowed and decision.at_us < at + us:
            causes = "the store is nearly full, or another process has just lifted the ban"
            raise StoreError(f"the ban is not in {redacted_url(self.store)}: {causes}")
        return (at + us) / SECOND  # type: ignore[no-any-return]

    ban, aban = twins(_ban)

    async def _unban(self, call: Call, rule: str, features: Features) -> bool:
        """Lift the ban of a client from a rule, and forget its rejections and earlier bans. Its counts stay.

        Args:
            rule: The name of the rule. It must have the option ``ban``.
            features: The features of its key.

        Returns:
            Whether the client was banned.

        Raises:
            ConfigError: There is no such rule, it has no ban, or a feature of its key is missing.
            StoreError: The store is unreachable.
        """
        await call(self, "start")
        hit = Hit(*self._ban_key(*self._client(rule, features)), 1)
        (decision,) = await call(self.store, "apply", [hit], self._now(), False)
        await call(self._counts, "forget", [hit.key])
        return not decision.allowed

    unban, aunban = twins(_unban)

    async def _bans(self, call: Call, rule: str | None = None, cursor: str = "") -> KeyStates:
        """Show the clients that are banned now, a page at a time.

        Args:
            rule: The name of the only rule to show.
            cursor: The ``cursor`` of the page before. Default: the first page.

        Returns:
            A decision on each banned client. Its ``retry_after`` is the end of the ban. A page may be empty before the
            last page.

        Raises:
            ConfigError: There is no such rule, or the store cannot list its keys.
            StoreError: The store is unreachable.
        """
        prefixes = {rule.ban.prefix for rule in self.rules.rules if rule.ban is not None}
        return await self._inspect(call, rule, None, cursor, True, lambda key: prefix_of(key) in prefixes)

    bans, abans = twins(_bans)

    def _new_ban(self, name: str, features: Features, duration: float | str | None) -> tuple[int, Hit, Correction]:
        rule, client = self._client(name, features)
        ban, key = self._ban_key(rule, client)
        if rule.overrides is not None and rule.overrides.find(client) == ():
            hint = "Remove it first, with remove_override() or the command `override remove`"
            raise ConfigError(f"the client has the override {UNLIMITED!r}, so rule {rule.name!r} cannot ban it. {hint}")
        if not rule.key.names_client(client):
            raise ConfigError(f"many clients share the key {client_of(key)!r}, so rule {rule.name!r} never bans them")
        if self.rules.lists.allows(features):
            raise ConfigError(f"the client is on the allow list, so rule {rule.name!r} never bans it")
        with error_path("duration"):
            us = ban.terms.first if duration is None else parse_duration(duration)
            if us == 0:
                raise ConfigError("expected more than 0. Leave the argument out for the length of the rule's ban")
        return us, Hit(ban, key, 1), Correction(ban.lasting(us), key, ban.limit, None)

    def _ban_key(self, rule: CompiledRule, client: str) -> tuple[BanLimit, str]:
        if rule.ban is None:
            hint = 'Add ban = {after = 10, within = "10m", for = "1h"} to it, or add the client to lists.deny'
            raise ConfigError(f"rule {rule.name!r} has no ban option, so a ban would have no effect. {hint}")
        suffix = testmode.key_suffix if self._clock is None else ""
        return rule.ban, f"{rule.ban.prefix}{client}{suffix}"
