"""Load settings from a file or a dictionary: strict, and with the place of every mistake in the error."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, Unpack, cast

from ..errors import SETTINGS, ConfigError, error_path
from ..keys.key import Secret
from ..rules.access_lists import AccessLists
from ..rules.declaration import decode, options_of
from ..rules.named_rules import Amendment
from ..rules.names import ascii_name
from ..rules.options import RuleDefaults, RuleSettings
from ..rules.places import Location, steps_of
from ..rules.priorities import Priorities
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..stores import Store
from .files import Identities, Origin, read, with_names, with_variables
from .options import HttpOptions, LimiterOptions, SettingsDict, database_file, schema, secret_of
from .rules import LIMITS, check_lists, parse_rules, with_files, with_limits

__all__ = ["SETTING", "HttpOptions", "Settings", "SettingsDict", "SettingsSource", "load_settings", "schema"]

SETTING: Final = "RATELIMIT_MW"
"""The name of our settings in those of a framework."""
LIMITER_OPTIONS: Final = tuple(options_of(LimiterOptions))
"""The arguments of a middleware that its limiter needs."""
_AT_START: Final = tuple(name for name, each in options_of(SettingsDict).items() if each.at_start)
_RULE_SET_SETTINGS: Final = ("amendments", "lists", "secret", "defaults", "enabled", "source", "priorities")


@dataclass(frozen=True, init=False)
class Settings:
    """Checked settings. ``SettingsDict`` declares their meaning and their defaults; arguments are as in a file.

    In the attributes, durations are whole microseconds, and ``body_limit`` is in bytes.

    Raises:
        ConfigError: A setting is unknown or impossible. The message has its path.

    Example:
        >>> Settings(store_timeout="20ms").store_timeout
        20000
    """

    rules: tuple[Rule, ...]
    amendments: Mapping[str, Amendment]
    """The rules that change a decorator's rule, by the name of that rule."""
    defaults: RuleDefaults
    """The options of the rules and decorators that do not set them."""
    priorities: Priorities
    enabled: bool
    store: str | Store = field(repr=False)  # may hold a password
    observers: tuple[str | Callable[[Any], object], ...]
    event_features: tuple[str, ...]
    traffic_log: str | None = field(repr=False)  # may hold a password
    traffic_clients: bool
    trusted_proxies: tuple[str, ...]
    forwarded_header: str
    ipv6_prefix: int
    headers: tuple[str, ...]
    reset: str
    retry_jitter: int
    on_store_error: str
    store_timeout: int
    fleet_size: int | None
    fallback_keys: int
    rejection_cache: int
    reload_interval: int
    exempt: tuple[str, ...]
    lists: AccessLists
    body_limit: int
    body_timeout: int
    region_database: str
    region_header: str
    secret: Secret
    source: str = field(default="", compare=False)
    """The path of the settings file, or "" for a dictionary."""
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """How to load the same settings again; None for settings that your code has built or changed."""

    def __init__(self, **settings: Unpack[SettingsDict]) -> None:
        self.__dict__.update(vars(load_settings(settings).replace()))

    def replace(self, **values: Any) -> "Settings":
        """Return these settings with other values, in the form that the attributes have."""
        return _build({**vars(self), "origin": None, **values})

    @contextmanager
    def located(self, *arguments: str) -> Iterator[None]:
        """Put file and line in front of each ``ConfigError`` of this block about a setting of the file.

        Args:
            arguments: The settings that arguments replace, besides those of the middleware. They are not of the file.

        Returns:
            The context manager.
        """
        try:
            yield
        except ConfigError as error:
            setting = next(iter(steps_of(error.path)), "")
            if self.origin is None or not self.source or error.of or setting not in SettingsDict.__annotations__:
                raise
            if setting in {*arguments, *self.origin.arguments}:
                raise
            raise _locate(error, self.origin.table, self.source) from None

    @property
    def of_rule_set(self) -> dict[str, Any]:
        """The settings that a ``RuleSet`` takes, besides the rules."""
        return {name: getattr(self, name) for name in _RULE_SET_SETTINGS}


SettingsFile = str | PathLike[str] | SettingsDict
SettingsSource = SettingsFile | Settings


def load_settings(source: SettingsFile) -> Settings:
    """Load settings from a file or a dictionary.

    Args:
        source: The path of a ``.toml``, ``.json``, ``.yaml`` or ``pyproject.toml`` file, or a dictionary with the
            same fields. ``${NAME}`` in a text is the value of an environment variable.

    Returns:
        The checked settings. A field that is left out has its default.

    Raises:
        ConfigError: The file is missing, a field is unknown or impossible, or a variable is not set. The message
            starts with file, line and path, such as ``ratelimit.toml:14: rules[1] "login": limits[0]``.

    Example:
        >>> load_settings({"rules": [{"name": "api", "limits": "5/minute"}]}).rules[0].name
        'api'
    """
    if not isinstance(source, str | PathLike | Mapping):
        raise ConfigError(f"expected the path of a file or a dictionary; got {source!r}", "settings")
    try:
        return _load(source, {})
    except ConfigError as error:
        error.name_page(SETTINGS)
        raise


def _load(source: SettingsFile, files: Identities, may_be_empty: bool = True) -> Settings:
    """Load settings, and add the files that are read to ``files``."""
    data: Any = source
    path, folder = "", Path()
    if not isinstance(source, Mapping):
        file = Path(source)
        path, folder, data = str(file), file.parent, read(file, files)
        if not (data or may_be_empty):
            raise ConfigError(f"{path}: the file is empty. To turn all limits off, write enabled = false")
    try:
        data = with_files(data, folder, files)
        settings = _settings(data, folder, path)
    except ConfigError as error:
        raise _locate(error, data, path) from None
    return settings.replace(origin=Origin(partial(_load, source, may_be_empty=False), files, data))


def reload_settings(settings: Settings, files: Identities) -> tuple[Settings, dict[str, Any]]:
    """Load settings again, from files that are added. Return them, and the values that need a restart, by name."""
    loaded = settings.origin.load(files)  # type: ignore[union-attr] # the caller knows that there is one
    changed = {name: new for name in _AT_START if (new := getattr(loaded, name)) != getattr(settings, name)}
    kept = {name: getattr(settings, name) for name in changed}
    return loaded.replace(origin=loaded.origin, **kept), changed


def _locate(error: ConfigError, data: Any, source: str) -> ConfigError:
    """Return the error with file, line, and the name of the rule: 'r.toml:14: rules[1] "login": limits[0]: ...'."""
    steps, path, table, name = steps_of(error.path), error.path, "", ""
    message = with_names(error.message, data, path)
    if steps[:1] == ("rules",) and len(steps) > 1:
        table = f"rules[{steps[1]}]"
        path = path.removeprefix(table).removeprefix(".")
        rule = data["rules"][steps[1]]
        names = (rule.get("name"), rule.get("overrides")) if isinstance(rule, Mapping) else ()
        name = next((f' "{ascii_name(name)}"' for name in names if isinstance(name, str)), "")
    if source:
        return Location(source, table, f"{table}{name}").error(message, path)
    return ConfigError(message, ": ".join(filter(None, (f"{table}{name}", path))))


def _settings(data: Any, folder: Path, source: str) -> Settings:
    if isinstance(data, Mapping):
        data = with_variables({name: value for name, value in data.items() if name != "$schema"}, SettingsDict)
        of_rules = options_of(RuleSettings).keys() - options_of(SettingsDict).keys()
        if name := next((name for name in data if name in of_rules), None):
            raise ConfigError("a field of a rule. Write it in a table of rules, [[rules]] in TOML", name)
    options = decode(SettingsDict, data, noun="setting")
    with error_path("lists"):
        options["lists"] = AccessLists(options["lists"], options["exempt"])
    with error_path("region_database"):
        options["region_database"] = database_file(folder, options["region_database"])
    check_lists(options["lists"], options["ipv6_prefix"])
    rules, options["amendments"] = parse_rules(options["rules"], options, source)
    options["rules"] = with_limits(rules, options.pop("limits"), options["defaults"], source)
    RuleSet(options["rules"], priorities=options["priorities"])  # checks their names
    options["secret"] = secret_of(options["secret"], options.pop("keyed"))
    return _build({**options, "source": source})


def _build(values: dict[str, Any]) -> Settings:
    settings = object.__new__(Settings)
    settings.__dict__.update(values)
    return settings


def with_options(source: SettingsSource, options: HttpOptions) -> Settings:
    """Load settings with the arguments of a middleware that its limiter needs: limits, store, enabled."""
    settings = source if isinstance(source, Settings) else load_settings(source)
    given = {name: value for name, value in options.items() if name in LIMITER_OPTIONS}
    if not given:
        return settings
    loaded = load_settings(cast(SettingsDict, given))
    changed = {name: getattr(loaded, name) for name in given if name != "limits"}
    for argument in loaded.rules:
        rules = tuple(rule for rule in settings.rules if rule.place.path != LIMITS)
        changed["rules"] = with_limits(rules, argument.limits, settings.defaults)
    if (origin := settings.origin) is not None:
        changed["origin"] = origin._replace(
            load=lambda files: with_options(origin.load(files), options), arguments=(*origin.arguments, *given)
        )
    return settings.replace(**changed)


def check_slips(names: Iterable[str]) -> None:
    """``ConfigError`` when ``RATELIMIT_MW`` is absent and another name looks like it.

    >>> check_slips(["RATELIMIT_ENABLED", "SECRET_KEY"])
    """
    names = list(names)
    slips = [name for name in names if name.startswith(SETTING)] or difflib.get_close_matches(SETTING, names, 1, 0.85)
    if slips and SETTING not in names:
        raise ConfigError(f"unknown setting {slips[0]!r}. Did you mean {SETTING!r}? It holds all settings", slips[0])
