"""``Reloads``: the rules and settings of a limiter now. Decorators add rules, and a reload replaces all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Protocol
from weakref import WeakSet

from ..errors import ConfigError
from ..keys.features import Features
from ..keys.parts import as_counted
from ..rules.marks import Mark
from ..rules.named_rules import checked_rules
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..runtime.forksafe import create_lock
from ..settings import Settings
from .followers.follower import Watch

_log = logging.getLogger("ratelimit_mw")


class LimiterMiddleware(Protocol):
    """A middleware, or the decision service, which derives more from the rules of its limiter."""

    def renew(self, rules: RuleSet, settings: Settings) -> Callable[[], None]:
        """Check rules and settings. Return the function that puts them into effect."""

    def as_counted(self, features: Features) -> Features:
        """Return the features of a client as its requests have them."""


class Reloads:
    """The rules of a limiter: those of your code, or those of the settings.

    Attributes:
        settings: The settings.
        rules: The rules, compiled.
        preparations: Each is called with new rules before they are used, and may raise ``ConfigError`` for a mistake.
        middlewares: Those that use the rules.
        lock: Held while rules are added or replaced.
        watch: Looks for changes when a request finds it due; None where nothing changes.
    """

    def __init__(self, rules: Iterable[Rule] | None, settings: Settings | None) -> None:
        given: object = settings
        if not isinstance(given, Settings | None):
            fix = "Write Limiter.from_settings(...), or pass load_settings(...)"
            raise ConfigError(f"expected Settings; got {type(given).__name__}. {fix}", "settings")
        self.settings = Settings() if settings is None else settings
        own = self.settings.rules if rules is None else rules
        self._is_from_settings = settings is not None and own is settings.rules
        self._own_rules = checked_rules(own)
        self._marks: dict[Mark, None] = {}
        self._has_adopted = False
        self.preparations: list[Callable[[RuleSet], object]] = []
        self.middlewares = WeakSet[LimiterMiddleware]()
        self.lock = create_lock(self, "lock", threading.RLock)
        self.rules = RuleSet(self._own_rules, **self.settings.of_rule_set)
        self.watch: Watch | None = None

    def adopt(self, marks: Iterable[Mark], derive: Callable[[RuleSet], object] = lambda _: None) -> None:
        """Add the rules of decorators. Adapters call it at the start, once they know the views.

        ``derive`` gets all rules before they are used. If it raises an error, no rule is added.
        """
        with self.lock:
            all_marks = self._marks | dict.fromkeys(sorted(marks, key=lambda mark: mark.order))
            with self.located():
                rules = self._compile(self._own_rules, all_marks, self.settings)
                self.prepare(rules.require_complete())
                derive(rules)
            self._marks, self.rules, self._has_adopted = all_marks, rules, True

    def prepare(self, rules: RuleSet) -> None:
        """Prepare rules for the limiter; ``ConfigError`` for those that it cannot use."""
        for prepare in self.preparations:
            prepare(rules)

    def located(self, *arguments: str, settings: Settings | None = None) -> AbstractContextManager[None]:
        """Prefix a ``ConfigError`` that a block raises about a setting of the file with its file and line.

        ``arguments`` are the settings that arguments replace. The ``settings`` may be those of a reload.
        """
        own = () if self._is_from_settings else ("rules", "limits")
        return (settings or self.settings).located(*own, *arguments)

    def as_counted(self, features: Features) -> Features:
        """Return the features of a client as its requests have them, with the network of an IPv6 address.

        A limiter with rules of your code and without a middleware counts the addresses that you pass.
        """
        middlewares, settings = tuple(self.middlewares), self.settings
        for middleware in middlewares:
            features = middleware.as_counted(features)
        if not middlewares and self._is_from_settings and "ip" in features:
            ip = as_counted({"ip": features["ip"]}, settings.ipv6_prefix)
            features = {**features, **ip}
        return features

    def replace(self, settings: Settings, unchanged: Collection[str]) -> None:
        """Check all that depends on settings, and put them into effect; ``FileFollower`` uses it.

        After an error, the earlier settings stay. Those that are ``unchanged`` need a restart.
        """
        own = checked_rules(settings.rules) if self._is_from_settings else self._own_rules
        with self.lock:
            with self.located(settings=settings):
                rules = self._compile(own, self._marks, settings)
                self.prepare(rules.require_complete() if self._has_adopted else rules)
                renewals = [middleware.renew(rules, settings) for middleware in tuple(self.middlewares)]
            self._own_rules, self.settings, self.rules = own, settings, rules
            for put_into_effect in renewals:
                put_into_effect()
        if self.watch is not None:
            self.watch.start_over()
        if unchanged:
            it = "it" if len(unchanged) == 1 else "them"
            message = "%s changed: restart to apply %s. All other changes are in effect."
            _log.warning(message, ", ".join(unchanged), it)

    def update_middlewares(self) -> None:
        """Let the middlewares derive what they need from the rules anew, because the limits of clients have changed."""
        renewals = [middleware.renew(self.rules, self.settings) for middleware in tuple(self.middlewares)]
        for put_into_effect in renewals:
            put_into_effect()

    def _compile(self, own: Iterable[Rule], marks: dict[Mark, None], settings: Settings) -> RuleSet:
        return RuleSet(own, marks, before=self.rules.by_name, **settings.of_rule_set)
