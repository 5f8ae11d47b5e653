"""``Reloads``: the part of a ``Limiter`` that holds its rules, adds those of decorators, and reads settings again."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from weakref import WeakSet

from ..errors import ConfigError
from ..forksafe import create_lock
from ..rules.marks import Mark
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet, checked_rules
from ..settings import Settings, loaded_again
from .observers.observers import import_observers
from .reloader import Reloader
from .resets import RulesUser
from .settlement import Settlement
from .watch import Watch, Watches

_log = logging.getLogger("ratelimit_mw")


class Reloads(Settlement):
    """Holds rules. ``Limiter`` inherits it."""

    _check: Callable[[RuleSet], None]
    _with_overrides: Callable[[RuleSet], RuleSet]
    reloader: Reloader | None = None
    """Reads the settings again; None for settings that your code has built."""
    watch: Watches | None = None
    """Looks for changes of the settings and of overrides, when a request finds it due; None where nothing changes."""

    def __init__(self, rules: Iterable[Rule] | None, settings: Settings | None) -> None:
        super().__init__()
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
        self.users = WeakSet[RulesUser]()
        """The middlewares that use the rules."""
        self.adopting = create_lock(self, "adopting", threading.RLock)
        """Held while rules are added or replaced."""
        self.rules = RuleSet(self._own_rules, **self.settings.of_rule_set)

    def adopt(self, marks: Iterable[Mark], prepare: Callable[[RuleSet], object] = lambda _: None) -> None:
        """Add the rules of decorators. Adapters call it at the start, once they know the views.

        Args:
            marks: The rules that decorators declare. A mark that was added before changes nothing.
            prepare: Called with all rules before they are used. If it raises an error, no rule is added.

        Raises:
            ConfigError: Two rules have one name, or ``overrides`` names a rule that does not exist.
        """
        with self.adopting:
            every = self._marks | dict.fromkeys(sorted(marks, key=lambda mark: mark.order))
            with self.located():
                rules = self._compile(self._own_rules, every, self.settings)
                self._check(rules.require_complete())
                rules = self._with_overrides(rules)
                prepare(rules)
            self._marks, self.rules, self._has_adopted = every, rules, True

    def located(self, *arguments: str, settings: Settings | None = None) -> AbstractContextManager[None]:
        """Prefix a ``ConfigError`` that a block raises about a setting of the file with its file and line.

        Args:
            arguments: The settings that arguments replace.
            settings: The settings that are about to replace those of the limiter.

        Returns:
            The context manager.
        """
        own = () if self._is_from_settings else ("rules", "limits")
        return (settings or self.settings).located(*own, *arguments)

    def reload(self) -> None:
        """Read the settings again, and use them from the next request on. Requests that have begun keep theirs.

        The rules of decorators stay, and the ``overrides`` of the settings are applied to them anew. All limiters of
        this process with the same settings file are reloaded. A change of the store, of ``on_store_error`` or of the
        secret needs a restart. Such a change is logged, and all other changes take effect.

        Raises:
            ConfigError: The settings have a mistake, or the limiter has no settings. The earlier ones stay in effect.
        """
        if self.reloader is None:
            raise ConfigError("there are no settings to read again. Build the limiter with Limiter.from_settings(...)")
        self.reloader.reload()

    async def areload(self) -> None:
        """Async form of ``reload``."""
        await asyncio.to_thread(self.reload)

    def watch_of(self, settings: Settings) -> Watches | None:
        """Return what looks for changes of these settings, and of overrides in the store; None where nothing changes.

        Args:
            settings: The settings of this limiter.
        """
        watched = self._watched(settings)
        return Watches(watched) if watched else None

    def _watched(self, settings: Settings) -> list[Watch]:
        has_files = settings.origin is not None and settings.origin.files
        return [self.reloader] if self.reloader is not None and has_files and settings.reload_interval else []

    def load_again(self) -> tuple[Settings, Collection[str]]:
        """Read the settings again, and change nothing; ``Reloader`` uses it.

        Returns:
            The settings, and the names of those that keep their earlier values until a restart.

        Raises:
            ConfigError: The settings have a mistake.
        """
        settings, unchanged = loaded_again(self.settings)
        with settings.located():  # a start with these settings would find it, too
            import_observers(unchanged.get("observers", ()))
        return settings, unchanged

    def renew(self, settings: Settings, unchanged: Collection[str]) -> Callable[[], None]:
        """Build and check all that depends on settings that were loaded again; ``Reloader`` uses it.

        Args:
            settings: The settings.
            unchanged: The names of the settings that keep their earlier values until a restart.

        Returns:
            The function that puts them into effect.

        Raises:
            ConfigError: The settings have a mistake.
        """
        own = checked_rules(settings.rules) if self._is_from_settings else self._own_rules
        with self.located(settings=settings):
            rules = self._compile(own, self._marks, settings)
            self._check(rules.require_complete() if self._has_adopted else rules)
            rules = self._with_overrides(rules)
            renewals = [user.renew(rules, settings) for user in tuple(self.users)]

        def use() -> None:
            self._own_rules, self.settings, self.rules = own, settings, rules
            self.watch = self.watch_of(settings)
            for renewal in renewals:
                renewal()
            if unchanged:
                it = "it" if len(unchanged) == 1 else "them"
                message = "%s changed: restart to apply %s. All other changes are in effect."
                _log.warning(message, ", ".join(unchanged), it)

        return use

    def _compile(self, own: Iterable[Rule], marks: dict[Mark, None], settings: Settings) -> RuleSet:
        return RuleSet(own, marks, before=self.rules.by_name, **settings.of_rule_set)
