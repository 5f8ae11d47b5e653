"""Load settings from a file or a dictionary: strict, and with the place of every mistake in the error."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import count
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Final, cast, get_origin, is_typeddict

from ..errors import ConfigError, error_path, parse_each
from ..keys.ip import Embedding, parse_nat64
from ..keys.secret import Secret
from ..quota import parse_duration
from ..rules.access_lists import AccessLists
from ..rules.client_checks import check_lists
from ..rules.declaration import check_names, defaults_of
from ..rules.names import printable
from ..rules.options import RuleDefaults
from ..rules.paths import checked_pattern
from ..rules.rule import Rule
from ..rules.ruleset import Amendment
from ..rules.values import checked_table, parse_positive_duration, parse_whole_seconds
from ..stores import Store
from ..traffic.address import checked_log_url
from .environment import with_variables
from .files import read
from .locate import places_in
from .options import HttpOptions, SettingsDict
from .origin import Origin, recording
from .places import find_place, locate, split_rule
from .rules import DEFAULT_RULE, parse_defaults, parse_rules, with_limits
from .schema import check_table, schema
from .values import (
    checked_observers,
    checked_proxy,
    checked_store,
    database_file,
    field_name,
    forwarded_header,
    key_name,
    parse_size,
    secret_of,
    whole_number,
)

__all__ = ["HttpOptions", "Settings", "SettingsDict", "SettingsSource", "load_settings", "schema"]

_DEFAULTS: Final = defaults_of(SettingsDict)
OF_LIMITER: Final = ("enabled", "limits", "store", "observers", "event_features", "traffic_log", "traffic_clients")
"""The arguments of a middleware that its limiter needs."""
AT_START: Final = (
    "store",
    "store_timeout",
    "on_store_error",
    "fleet_size",
    "fallback_keys",
    "rejection_cache",
    "secret",
    "observers",
    "event_features",
    "traffic_log",
    "traffic_clients",
)
"""The settings that take effect when an application starts, and not when they are read again."""
_SHOWN: Final = 3
"""The steps of a path in a message, such as "rules.api.per_key" or "lists.deny.user"."""
_OF_RULE_SET: Final = ("amendments", "lists", "secret", "defaults", "enabled")
_PARSERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "store": checked_store,
    "defaults": parse_defaults,
    "observers": checked_observers,
    "event_features": partial(parse_each, key_name),
    "traffic_log": lambda url: None if url is None else checked_log_url(url),
    "trusted_proxies": partial(parse_each, checked_proxy),
    "forwarded_header": forwarded_header,
    "ipv6_prefix": partial(whole_number, most=128),
    "nat64_prefixes": partial(parse_each, parse_nat64),
    "headers": tuple,
    "retry_jitter": parse_whole_seconds,
    "store_timeout": parse_positive_duration,
    "fleet_size": lambda number: None if number is None else whole_number(number),
    "fallback_keys": whole_number,
    "rejection_cache": parse_duration,
    "reload_interval": parse_duration,
    "exempt": partial(parse_each, checked_pattern),
    "email_field": partial(field_name, "json"),
    "body_limit": parse_size,
    "body_timeout": parse_positive_duration,
    "region_header": partial(field_name, "header"),
}
"""The settings that are parsed one by one."""


@dataclass(frozen=True, init=False)
class Settings:
    """Loaded settings. ``load_settings`` builds them; ``SettingsDict`` declares their meaning and their defaults.

    Durations are whole microseconds, and ``body_limit`` is in bytes.
    """

    rules: tuple[Rule, ...]
    has_limits: bool
    """Whether the rule named ``default`` is that of the setting ``limits``."""
    amendments: Mapping[str, Amendment]
    """The rules that change a decorator's rule, by the name of that rule."""
    defaults: RuleDefaults
    """The options of the rules and decorators that do not set them."""
    enabled: bool
    store: str | Store = field(repr=False)  # may hold a password
    observers: tuple[str | Callable[[Any], object], ...]
    event_features: tuple[str, ...]
    traffic_log: str | None = field(repr=False)  # may hold a password
    traffic_clients: bool
    trusted_proxies: tuple[str, ...]
    forwarded_header: str
    ipv6_prefix: int
    nat64_prefixes: tuple[Embedding, ...]
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
    email_field: str
    body_limit: int
    body_timeout: int
    region_database: str
    region_header: str
    secret: Secret
    source: str = field(default="", compare=False)
    """The path of the settings file, or "" for a dictionary."""
    origin: ClassVar[Origin | None] = None
    """How to load the same settings again; None for settings that your code has built or changed."""

    def __init__(self, **values: Any) -> None:
        kinds = {each.name: _kind_of(each.type) for each in fields(self)}
        check_names(values, kinds, "setting")
        for name, value in values.items():
            if not isinstance(value, kinds[name]):
                got = type(value).__name__  # the value may be a secret
                raise ConfigError(f"expected a value as in load_settings(...).{name}; got {got}", name)
        defaults = load_settings({}) if len(values) < len(kinds) else None
        self.__dict__.update({name: getattr(defaults, name) for name in kinds if name not in values}, **values)

    @cached_property
    def rule_places(self) -> dict[str, str]:
        """The file and line of each rule in the settings file, by the name of the rule."""
        try:
            place = places_in(self.source)
        except OSError:  # there is no file, or no longer
            return {}
        return {name: place(path) for name, path in self.rule_paths.items()}

    @cached_property
    def rule_paths(self) -> dict[str, str]:
        """The path of each rule in the settings, such as "rules[0]", by the name of the rule."""
        amended = {each.position: name for name, each in self.amendments.items()}
        positions = (i for i in count() if i not in amended)
        names = [rule.name or f"rule-{i + 1}" for i, rule in enumerate(self.rules)]
        steps = {name: f"rules[{next(positions)}]" for name in names}
        if self.has_limits:
            steps[DEFAULT_RULE] = "limits"
        return steps | {name: f"rules[{i}]" for i, name in amended.items()}

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
            if self.origin is None or not self.source:
                raise
            raise locate(error, self, {*arguments, *self.origin.arguments}) or error from None

    @property
    def of_rule_set(self) -> dict[str, Any]:
        """The settings that a ``RuleSet`` takes, besides the rules."""
        limits_rule = DEFAULT_RULE if self.has_limits else ""
        return {name: getattr(self, name) for name in _OF_RULE_SET} | {"limits_rule": limits_rule}


def _kind_of(hint: Any) -> Any:
    """Return a type without the types of its items."""
    return hint if isinstance(hint, UnionType) else Mapping if is_typeddict(hint) else get_origin(hint) or hint


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
    return _load(checked_source(source, str, PathLike, Mapping))


def checked_source(source: Any, *kinds: type) -> Any:
    """Return the source of settings; ``ConfigError`` for one of another kind."""
    if isinstance(source, kinds or (str, PathLike, Mapping, Settings)):
        return source
    last = "or a dictionary" if kinds else "a dictionary or Settings"
    raise ConfigError(f"expected the path of a file{' ' if kinds else ', '}{last}; got {source!r}", "settings")


def _load(source: SettingsFile, may_be_empty: bool = True) -> Settings:
    data: Any = source
    path, folder, key = "", Path(), object()
    with recording() as files:
        if not isinstance(source, Mapping):
            file = Path(source)
            path, folder, key, data = str(file), file.parent, str(file.absolute()), read(file)
            if not (data or may_be_empty):
                raise ConfigError(f"{path}: the file is empty. To turn all limits off, write enabled = false")
        try:
            settings = _settings(data, folder, path)
        except RecursionError:
            raise _locate(ConfigError("tables or lists are nested too deeply"), data, path) from None
        except ConfigError as error:
            raise _locate(error, data, path) from None
    again = partial(_load, source, may_be_empty=False)
    return _with_origin(settings, Origin(key, again, files, data))


def _with_origin(settings: Settings, origin: Origin) -> Settings:
    settings.__dict__["origin"] = origin  # no field: ``replace`` drops it, because its result has no source
    return settings


def loaded_again(settings: Settings) -> tuple[Settings, dict[str, Any]]:
    """Load settings again. Return them, and the new values of those that need a restart, by name."""
    loaded = settings.origin.load()  # type: ignore[union-attr] # the caller knows that there is one
    changed = {name: new for name in AT_START if (new := getattr(loaded, name)) != getattr(settings, name)}
    kept = replace(loaded, **{name: getattr(settings, name) for name in changed})
    return _with_origin(kept, loaded.origin), changed  # type: ignore[arg-type]


def missing_parts(settings: Settings, later: Settings) -> set[str]:
    """Return the paths of the rules, options, and values of tables and lists that later settings lack."""
    return set(_missing(_tables_of(settings), _tables_of(later), ()))


def _tables_of(settings: Settings) -> dict[str, Any]:
    """The tables of settings, with the rules by name, and with the files of ``per_key``."""
    numbered = enumerate(settings.rules, 1)
    rules = {rule.name or f"rule-{i}": {**rule.given, "limits": rule.limits} for i, rule in numbered}
    amended = {name: amendment.options for name, amendment in settings.amendments.items()}
    return {**settings.origin.table, "rules": rules | amended}  # type: ignore[union-attr] # the caller knows it


def _missing(before: Any, after: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name, value in before.items():
            inner = (*path, str(name))[:_SHOWN]  # a table of clients may be long
            if name in after:
                yield from _missing(value, after[name], inner)
            else:
                yield ".".join(inner)
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(after) < len(before):
        yield ".".join(path)


def _locate(error: ConfigError, data: Any, source: str) -> ConfigError:
    """The error with file, line, and the name of the rule: 'r.toml:14: rules[1] "login": limits[0]: ...'."""
    tables = data.get("rules") if isinstance(data, Mapping) else None
    rules = tables if isinstance(tables, list | tuple) else ()
    named = ((i, rule.get("name", rule.get("overrides"))) for i, rule in enumerate(rules) if isinstance(rule, Mapping))
    names = {f"rules[{i}]": printable(name) for i, name in named if isinstance(name, str)}
    located = ConfigError(error.message, ": ".join(filter(None, split_rule(error.path, names))))
    return ConfigError(f"{find_place(source, error.path)}: {located}") if source else located


def _settings(data: Any, folder: Path, source: str) -> Settings:
    if not isinstance(data, Mapping):
        raise ConfigError(f"expected a table; got {data!r}")
    data = with_variables({name: value for name, value in data.items() if name != "$schema"})
    check_table(data)
    options = {**_DEFAULTS, **data}
    parsers: dict[str, Callable[[Any], Any]] = {
        **_PARSERS,
        "lists": lambda tables: AccessLists(checked_table("", tables), options["exempt"]),
        "region_database": partial(database_file, folder),
    }
    for name, parse in parsers.items():
        with error_path(name):
            options[name] = parse(options[name])
    check_lists(options["lists"], options["ipv6_prefix"])
    rules, amendments = parse_rules(options.pop("rules"), folder, options["ipv6_prefix"], options["defaults"])
    options["has_limits"] = options["limits"] is not None
    rules = with_limits(rules, options.pop("limits"), options["defaults"])
    secret = secret_of(options.pop("secret"), options.pop("secret_file"), options.pop("keyed"), folder)
    return Settings(rules=rules, amendments=amendments, secret=secret, source=source, **options)


def with_options(source: SettingsSource | None, options: HttpOptions) -> Settings:
    """Load settings with the arguments of a middleware that its limiter needs: limits, store, enabled."""
    if source is None:
        source = Settings()
    settings = source if isinstance(source, Settings) else load_settings(source)
    given = {name: value for name, value in options.items() if name in OF_LIMITER}
    if not given:
        return settings
    loaded = load_settings(cast(SettingsDict, given))
    changed = {name: getattr(loaded, name) for name in given if name != "limits"}
    for argument in loaded.rules:
        rules = [rule for rule in settings.rules if not settings.has_limits or rule.name != DEFAULT_RULE]
        changed |= {"rules": with_limits(tuple(rules), argument.limits, settings.defaults), "has_limits": True}
    changed_settings = replace(settings, **changed)
    if (origin := settings.origin) is None:
        return changed_settings
    arguments = (*origin.arguments, *given)
    again = origin._replace(load=lambda: with_options(origin.load(), options), arguments=arguments)
    return _with_origin(changed_settings, again)
