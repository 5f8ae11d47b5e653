"""``Reloads``: holds the rules and settings of a limiter, adds the rules of decorators, and reads settings again."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

from ..clock import SECOND, machine, monotonic
from ..errors import ConfigError, RateLimitError
from ..forksafe import create_lock, run_in_child
from ..keys.features import Features
from ..keys.parts import as_counted
from ..rules.marks import Mark
from ..rules.named_rules import checked_rules
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..settings import Settings, loaded_again, parts_of
from ..settings.files import Identities, identity_of, recording
from ..stores.blocking import Call, run_once
from .follower import Follower, Watch
from .observers.observers import import_observers
from .tasks import result_of

_QUIET: Final = 1.0  # seconds without a change before files are read, because a writer may not be done
_FEWER_AFTER: Final = 2  # intervals without a change before something disappears, because a writer may pause
_PATIENCE: Final = 1.0
"""The longest time in seconds that requests wait for settings that changed while their worker was idle."""
_MAX_TRIES: Final = 60
_RESTLESS: Final = "the settings file keeps changing, so it cannot be read"
_FEWER: Final = (
    "the settings have fewer rules, options or values. They take effect once their files have stayed the same for %g s."
    " To apply them at once, call limiter.reload()"
)
_log = logging.getLogger("ratelimit_mw")


class RulesUser(Protocol):
    """A middleware that derives more from the rules of its limiter."""

    def renew(self, rules: RuleSet, settings: Settings) -> Callable[[], None]:
        """Check rules and settings. Return the function that puts them into effect."""

    def as_counted(self, features: Features) -> Features:
        """Return the features of a client as its requests have them."""


class Reloads:
    """The rules of a limiter: those of your code, or those of the settings.

    Attributes:
        settings: The settings.
        rules: The rules, compiled.
        checks: Each is called with new rules before they are used, and raises ``ConfigError`` for a mistake.
        users: The middlewares that use the rules.
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
        self.checks: list[Callable[[RuleSet], object]] = []
        self.users = WeakSet[RulesUser]()
        self.lock = create_lock(self, "lock", threading.RLock)
        self.rules = RuleSet(self._own_rules, **self.settings.of_rule_set)
        origin = self.settings.origin
        self._files = None if origin is None else FileFollower(self, origin.files)
        """Reads the settings again; None for settings that your code has built."""
        self.watch: Watch | None = None

    def follow(self, store: Follower | None) -> None:
        """Begin to look for changes of the settings, and of the overrides in a store."""
        origin = self.settings.origin
        followers = [store, self._files if origin is not None and origin.files else None]
        if followed := [each for each in followers if each is not None]:
            self.watch = Watch(followed)

    def adopt(self, marks: Iterable[Mark], prepare: Callable[[RuleSet], object] = lambda _: None) -> None:
        """Add the rules of decorators. Adapters call it at the start, once they know the views.

        ``prepare`` gets all rules before they are used. If it raises an error, no rule is added.
        """
        with self.lock:
            every = self._marks | dict.fromkeys(sorted(marks, key=lambda mark: mark.order))
            with self.located():
                rules = self._compile(self._own_rules, every, self.settings)
                self.check(rules.require_complete())
                prepare(rules)
            self._marks, self.rules, self._has_adopted = every, rules, True

    def check(self, rules: RuleSet) -> None:
        """Raise ``ConfigError`` for rules that the limiter cannot use, and prepare the others."""
        for check in self.checks:
            check(rules)

    def located(self, *arguments: str, settings: Settings | None = None) -> AbstractContextManager[None]:
        """Prefix a ``ConfigError`` that a block raises about a setting of the file with its file and line.

        ``arguments`` are the settings that arguments replace. The ``settings`` may be those of a reload.
        """
        own = () if self._is_from_settings else ("rules", "limits")
        return (settings or self.settings).located(*own, *arguments)

    def reload(self) -> None:
        """Read the settings again now."""
        if self._files is None:
            raise ConfigError("there are no settings to read again. Build the limiter with Limiter.from_settings(...)")
        self._files.reload()

    def as_counted(self, features: Features) -> Features:
        """Return the features of a client as its requests have them, with the network of an IPv6 address.

        A limiter with rules of your code and without a middleware counts the addresses that you pass.
        """
        users, settings = tuple(self.users), self.settings
        for user in users:
            features = user.as_counted(features)
        if not users and self._is_from_settings and "ip" in features:
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
                self.check(rules.require_complete() if self._has_adopted else rules)
                renewals = [user.renew(rules, settings) for user in tuple(self.users)]
            self._own_rules, self.settings, self.rules = own, settings, rules
            for renewal in renewals:
                renewal()
        if self.watch is not None:
            self.watch.start_over()
        if unchanged:
            it = "it" if len(unchanged) == 1 else "them"
            message = "%s changed: restart to apply %s. All other changes are in effect."
            _log.warning(message, ", ".join(unchanged), it)

    def renew_users(self) -> None:
        """Let the middlewares derive what they need from the rules anew, because the limits of clients have changed."""
        renewals = [user.renew(self.rules, self.settings) for user in tuple(self.users)]
        for renewal in renewals:
            renewal()

    def _compile(self, own: Iterable[Rule], marks: dict[Mark, None], settings: Settings) -> RuleSet:
        return RuleSet(own, marks, before=self.rules.by_name, **settings.of_rule_set)


class FileFollower(Follower):
    """Reads the settings of a limiter again after a change of their files.

    A request only compares the identity of the files, once per ``reload_interval``. A thread of its own reads and
    checks files that have changed.
    """

    def __init__(self, reloads: Reloads, files: Identities) -> None:
        self._reloads = reloads
        self._known = files
        self._logged = ""
        """The mistake, or the warning, that the log has of the files as they are."""
        self._seen_at = monotonic()
        self._again_at = math.inf
        """When to look again at files that had changed too recently."""
        self._tries = 0
        """The number of looks in a row that found such files."""
        self._awaited: tuple[Future[None] | None, float] = None, 0.0
        """The thread that requests have waited for, and the time until which they do."""
        self._changed: tuple[Identities, float] = {}, 0.0
        """The identities of the changed files, and when they were first found."""
        self._start_over()
        run_in_child(self, FileFollower._start_over)

    def _start_over(self) -> None:
        self._reading = threading.Lock()  # no fork waits for it, because a file may take long

    @property
    def interval(self) -> float:
        return self._reloads.settings.reload_interval / SECOND or math.inf

    @property
    def due_at(self) -> float:
        return min(super().due_at, self._again_at)

    async def look(self, call: Call, waits: bool) -> None:
        """Compare the identity of the files, and start a thread if it has changed. It reads no file itself."""
        now = self._begun_at = monotonic()
        if not self._must_read():
            return
        reading = run_once(self, self._follow)
        if waits:
            if reading is not self._awaited[0]:
                self._awaited = reading, now + _PATIENCE
            with suppress(OSError):  # it is late, or the machine has no thread left
                await result_of(call, reading, self._awaited[1] - now)
            self._seen_at = max(self._seen_at, now)

    def reload(self) -> None:
        """Read the settings again now. Raises ``ConfigError`` for mistakes; the earlier settings then stay."""
        for _ in range(_MAX_TRIES):
            if not (pause := self._read(is_manual=True)):
                return
            time.sleep(pause)
        raise ConfigError(_RESTLESS)

    def _must_read(self) -> bool:
        """Return whether the files have changed, and then have stayed the same for a while."""
        now, identities = monotonic(), _identities_now(self._known)
        pause = 0.0 if identities == self._known else self._quiet - self._age(identities)
        if identities != self._known and pause <= 0:
            return True
        self._note(now, pause)
        return False

    def _follow(self) -> None:
        """Read the settings again. Log a mistake once."""
        now, pause = monotonic(), 0.0
        try:
            pause = self._read(is_manual=False)
            if not pause:
                _log.info("the settings were read again, and are in effect")
        except Exception as error:
            if str(error) != self._logged:
                self._logged = str(error)
                trace = None if isinstance(error, RateLimitError) else error
                _log.error("%s (the earlier settings stay in effect)", error, exc_info=trace)
        self._note(now, pause)

    def _note(self, now: float, pause: float) -> None:
        """Note a look, and the seconds until changed files may be read. Log files that never rest, now and then."""
        self._seen_at, self._again_at = now, now + pause if pause else math.inf
        self._tries = self._tries % _MAX_TRIES + 1 if pause else 0
        if self._tries == _MAX_TRIES:
            _log.error("%s (the earlier settings stay in effect)", _RESTLESS)

    @property
    def _quiet(self) -> float:
        return min(_QUIET, self.interval)

    def _age(self, identities: Identities) -> float:
        """Return the seconds since the last change: since it was found, or longer, by the times of the files."""
        now = monotonic()
        if self._changed[0] != identities:
            self._changed = identities, now
        times = [max(each.modified_ns, each.changed_ns) for each in identities.values() if each is not None]
        of_files = machine.time_ns() / 1e9 - max(times) / 1e9 if len(times) == len(identities) else 0.0
        return max(now - self._changed[1], of_files)

    def _read(self, is_manual: bool) -> float:
        """Read the settings, check them, and put them into effect. Return 0, or the seconds until another try."""
        with self._reading:
            try:
                with recording() as files:
                    settings, unchanged = loaded_again(self._reloads.settings)
                    with settings.located():  # a start with these settings would find it, too
                        import_observers(unchanged.get("observers", ()))
                if _identities_now(files) != files:
                    return self._quiet
                if not is_manual and (pause := self._wait_for_writer(settings)) > 0:
                    return pause
                self._reloads.replace(settings, unchanged)
            except Exception:
                if _identities_now(files) != files:  # it read a file that was being written
                    return self._quiet
                self._known = _identities_now((*self._known, *files))
                raise
            self._logged = ""
            # This comes last: a request that finds no change does not wait for this thread.
            self._known = files
            return 0.0

    def _wait_for_writer(self, later: Settings) -> float:
        """Return how long settings wait that have fewer parts, because their writer may pause."""
        if parts_of(later) >= parts_of(self._reloads.settings):
            return 0.0
        pause = _FEWER_AFTER * self.interval - self._age(_identities_now(self._known))
        if pause > 0 and self._logged != _FEWER:
            self._logged = _FEWER
            _log.warning(_FEWER, _FEWER_AFTER * self.interval)
        return pause


def _identities_now(paths: Iterable[Path]) -> Identities:
    return {path: identity_of(path) for path in paths}
