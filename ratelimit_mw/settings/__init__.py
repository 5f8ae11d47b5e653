"""Load settings from a file or a dictionary: strict, and with the place of every mistake in the error."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, cast

from ..errors import ConfigError, error_path
from ..keys.networks import Embedding
from ..keys.secret import Secret
from ..quota import parse_duration
from ..rules.access_lists import AccessLists
from ..rules.client_checks import check_lists, check_rule
from ..rules.declaration import check_names, defaults_of, hints_of
from ..rules.names import printable
from ..rules.options import RuleDefaults, RuleSettings
from ..rules.rule import Rule, build_rule
from ..rules.ruleset import Override, RuleSet
from ..stores import Store, check_store_url
from .environment import with_variables
from .files import read
from .locate import line_of, steps_of
from .options import HttpOptions, SettingsDict
from .schema import check_table, schema
from .values import (
    checked_proxies,
    database_file,
    field_name,
    forwarded_header,
    nat64_prefixes,
    parse_size,
    parse_timeout,
    path_patterns,
    secret_of,
    whole_number,
)

__all__ = ["HttpOptions", "Settings", "SettingsDict", "SettingsSource", "load_settings", "schema"]

_DEFAULT_RULE: Final = "default"
_DEFAULTS: Final = defaults_of(SettingsDict)
OF_LIMITER: Final = ("enabled", "limits", "store")
"""The arguments of a middleware that its limiter needs."""
_OF_RULE_SET: Final = ("overrides", "lists", "secret", "defaults", "enabled")
_RULE_FIELDS: Final = hints_of(RuleSettings)
_SHARED_FIELDS: Final = hints_of(RuleDefaults)


@dataclass(frozen=True, init=False)
class Settings:
    """Loaded settings. ``load_settings`` builds them; ``SettingsDict`` declares their meaning and their defaults.

    Durations are whole microseconds, and ``body_limit`` is in bytes.
    """

    rules: tuple[Rule, ...]
    has_limits: bool
    """Whether the rule named ``default`` is that of the setting ``limits``."""
    overrides: Mapping[str, Override]
    """The rules that change a decorator's rule, by the name of that rule."""
    defaults: RuleDefaults
    """The options of the rules and decorators that do not set them."""
    enabled: bool
    store: str | Store = field(repr=False)  # may hold a password
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

    def __init__(self, **values: Any) -> None:
        names = [each.name for each in fields(self)]
        check_names(values, names, "setting")
        defaults = vars(load_settings({})) if len(values) < len(names) else {}
        self.__dict__.update({**defaults, **values})

    @property
    def of_rule_set(self) -> dict[str, Any]:
        """The settings that a ``RuleSet`` takes, besides the rules."""
        return {name: getattr(self, name) for name in _OF_RULE_SET}


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
    data: Any = source
    path, folder = "", Path()
    if not isinstance(source, Mapping):
        file = Path(source)
        path, folder, data = str(file), file.parent, read(file)
    try:
        return _settings(data, folder, path)
    except RecursionError:
        raise _locate(ConfigError("tables or lists are nested too deeply"), data, path) from None
    except ConfigError as error:
        raise _locate(error, data, path) from None


def _locate(error: ConfigError, data: Any, source: str) -> ConfigError:
    """The error with file, line, and the name of the rule: 'r.toml:14: rules[1] "login": limits[0]: ...'."""
    steps, path = steps_of(error.path), error.path
    if len(steps) > 1 and steps[0] == "rules" and isinstance(steps[1], int):
        rule = data["rules"][steps[1]]
        name = rule.get("name", rule.get("overrides")) if isinstance(rule, Mapping) else None
        rest = path.removeprefix(f"rules[{steps[1]}]").removeprefix(".")
        named = f'rules[{steps[1]}] "{name}"' if isinstance(name, str) else f"rules[{steps[1]}]"
        path = f"{named}: {rest}" if rest else named
    located = ConfigError(error.message, path)
    if not source:
        return located
    file = Path(source)
    prefix = ("tool", "ratelimit_mw") if file.name == "pyproject.toml" else ()
    line = line_of(file.read_bytes().decode(errors="replace"), file.suffix.lower(), (*prefix, *steps))
    return ConfigError(f"{f'{source}:{line}' if line else source}: {located}")


def _settings(data: Any, folder: Path, source: str) -> Settings:
    if not isinstance(data, Mapping):
        raise ConfigError(f"expected a table; got {data!r}")
    data = with_variables({name: value for name, value in data.items() if name != "$schema"})
    check_table(data)
    options = {**_DEFAULTS, **data}
    parsers: dict[str, Callable[[Any], Any]] = {
        "defaults": _defaults,
        "trusted_proxies": checked_proxies,
        "forwarded_header": forwarded_header,
        "ipv6_prefix": partial(whole_number, most=128),
        "nat64_prefixes": nat64_prefixes,
        "headers": tuple,
        "retry_jitter": parse_duration,
        "store_timeout": parse_timeout,
        "fleet_size": lambda number: None if number is None else whole_number(number),
        "fallback_keys": whole_number,
        "rejection_cache": parse_duration,
        "exempt": path_patterns,
        "lists": lambda tables: AccessLists(tables, options["exempt"]),
        "email_field": partial(field_name, "json"),
        "body_limit": parse_size,
        "body_timeout": parse_timeout,
        "region_database": partial(database_file, folder),
        "region_header": partial(field_name, "header"),
    }
    if isinstance(options["store"], str):
        with error_path("store"):
            check_store_url(options["store"])
    for name, parse in parsers.items():
        with error_path(name):
            options[name] = parse(options[name])
    check_lists(options["lists"], options["ipv6_prefix"])
    rules, overrides = _rules(options.pop("rules"), folder, options["ipv6_prefix"], options["defaults"])
    options["has_limits"] = options["limits"] is not None
    rules = _with_limits(rules, options.pop("limits"), options["defaults"])
    secret = secret_of(options.pop("secret"), options.pop("secret_file"), options.pop("keyed"), folder)
    return Settings(rules=rules, overrides=overrides, secret=secret, source=source, **options)


def with_options(source: SettingsSource | None, options: HttpOptions) -> Settings:
    """Load settings with the arguments of a middleware that its limiter needs: limits, store, enabled."""
    settings = source if isinstance(source, Settings) else load_settings(source or {})
    given = {name: value for name, value in options.items() if name in OF_LIMITER}
    if not given:
        return settings
    loaded = load_settings(cast(SettingsDict, given))
    changed = {name: getattr(loaded, name) for name in given if name != "limits"}
    for argument in loaded.rules:
        rules = [rule for rule in settings.rules if not settings.has_limits or rule.name != _DEFAULT_RULE]
        changed |= {"rules": _with_limits(tuple(rules), argument.limits, settings.defaults), "has_limits": True}
    return replace(settings, **changed)


def _with_limits(rules: tuple[Rule, ...], limits: Any, defaults: RuleDefaults) -> tuple[Rule, ...]:
    """The rules, and the rule of the setting ``limits``."""
    if limits is None:
        return rules
    with error_path("limits"):
        if any(rule.name == _DEFAULT_RULE for rule in rules):
            raise ConfigError(f"they have the name {_DEFAULT_RULE!r}, as one of your rules. Give that one another name")
        try:
            return *rules, build_rule({"name": _DEFAULT_RULE, "limits": limits}, defaults)
        except ConfigError as error:
            raise ConfigError(error.message, error.path.removeprefix("limits")) from None


def _defaults(table: Any) -> RuleDefaults:
    """The options of all rules, each of which a rule could have."""
    if not isinstance(table, Mapping):
        raise ConfigError(f'expected a table such as {{key = "user|ip"}}; got {table!r}')
    check_names(table, _SHARED_FIELDS, "default")
    return Rule(limits="1/s", **table).given


def _rules(
    tables: Any, folder: Path, ipv6_prefix: int, defaults: RuleDefaults
) -> tuple[tuple[Rule, ...], dict[str, Override]]:
    """The rules, and the rules that override options of a decorator's rule."""
    if not isinstance(tables, list | tuple):
        raise ConfigError(f"expected a list of tables, [[rules]] in TOML; got {tables!r}", "rules")
    rules: list[Rule] = []
    overrides: dict[str, Override] = {}
    for i, table in enumerate(tables):
        with error_path(f"rules[{i}]"):
            options = _rule_options(table, folder)
            if (overridden := options.pop("overrides", None)) is None:
                if "limits" not in options:
                    raise ConfigError("a rule needs limits, unless it has overrides", "limits")
                rules.append(build_rule(options, defaults))
                check_rule(rules[-1], ipv6_prefix)
                continue
            if not isinstance(overridden, str):
                raise ConfigError(f"expected the name of a rule; got {overridden!r}", "overrides")
            name = printable(overridden)
            if name in overrides:
                message = f"{overridden!r} is already overridden above. Put all changes in one rule"
                raise ConfigError(message, "overrides")
            if "name" in options:
                raise ConfigError("a rule with overrides keeps the name of the overridden rule. Remove name", "name")
            # The decorator's key is not known here. With the key "user" any value of per_key is possible.
            check_rule(Rule(**{"limits": "1/s; 1 concurrent", "key": "user", **options}), ipv6_prefix)
            overrides[name] = Override(i, options)
    RuleSet(rules, overrides=overrides)
    return tuple(rules), overrides


def _rule_options(table: Any, folder: Path) -> dict[str, Any]:
    """The options of one rule, with a file of ``per_key`` loaded."""
    if not isinstance(table, Mapping):
        raise ConfigError(f'expected a table such as {{limits = "5/minute"}}; got {table!r}')
    check_names(table, _RULE_FIELDS, "field")
    options = dict(table)
    if isinstance(file := options.get("per_key"), str):
        with error_path("per_key"):
            options["per_key"] = limits = with_variables(read(folder / file, "file"))
            if not isinstance(limits, dict):
                raise ConfigError(f"{folder / file}: expected a table of limits by client; got {limits!r}")
    return options
