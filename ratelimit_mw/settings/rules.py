"""Parse the rules of settings: those of ``rules``, their defaults, and the rule of ``limits``."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final, cast

from ..errors import ConfigError, error_path
from ..rules.client_checks import check_rule
from ..rules.declaration import check_names, decode, options_of
from ..rules.named_rules import Amendment
from ..rules.names import printable
from ..rules.options import RuleDefaults, RuleSettings
from ..rules.places import Location
from ..rules.priorities import Priorities
from ..rules.rule import Rule, build_rule, check_options
from ..rules.ruleset import RuleSet
from .environment import with_variables
from .files import read

DEFAULT_RULE: Final = "default"


def with_limits(rules: tuple[Rule, ...], limits: Any, defaults: RuleDefaults, source: str = "") -> tuple[Rule, ...]:
    """The rules, and the rule of the setting ``limits``, which is in the file ``source``."""
    if limits is None:
        return rules
    with error_path("limits"):
        if any(rule.name == DEFAULT_RULE for rule in rules):
            raise ConfigError(f"they have the name {DEFAULT_RULE!r}, as one of your rules. Give that one another name")
        try:
            return *rules, build_rule({"name": DEFAULT_RULE, "limits": limits}, defaults, Location(source, "limits"))
        except ConfigError as error:
            raise ConfigError(error.message, error.path.removeprefix("limits")) from None


def parse_defaults(table: Any) -> RuleDefaults:
    """The options of all rules, each of which a rule could have."""
    decode(RuleDefaults, table, 'a table such as {key = "user|ip"}', "default")
    check_options(table)
    return cast(RuleDefaults, dict(table))


def with_files(settings: Any, folder: Path) -> Any:
    """Return settings as they were read, with the tables of the files that ``per_key`` names."""
    rules = settings.get("rules") if isinstance(settings, Mapping) else None
    if not isinstance(rules, list | tuple):
        return settings
    tables = []
    for i, rule in enumerate(rules):
        with error_path(f"rules[{i}].per_key"):
            tables.append(_with_file(rule, folder))
    return {**settings, "rules": tables}


def _with_file(rule: Any, folder: Path) -> Any:
    name = rule.get("per_key") if isinstance(rule, Mapping) else None
    if not isinstance(name, str):
        return rule
    file = folder / with_variables(name)
    if not isinstance(limits := read(file, "file"), dict):
        raise ConfigError(f"{file}: expected a table of limits by client; got {limits!r}")
    return {**rule, "per_key": limits}


def parse_rules(
    tables: Any, ipv6_prefix: int, defaults: RuleDefaults, source: str, priorities: Priorities
) -> tuple[tuple[Rule, ...], dict[str, Amendment]]:
    """The rules, and the rules that override options of a decorator's rule."""
    if not isinstance(tables, list | tuple):
        raise ConfigError(f"expected a list of tables, [[rules]] in TOML; got {tables!r}", "rules")
    rules: list[Rule] = []
    amendments: dict[str, Amendment] = {}
    for i, table in enumerate(tables):
        with error_path(path := f"rules[{i}]"):
            if not isinstance(table, Mapping):
                raise ConfigError(f'expected a table such as {{limits = "5/minute"}}; got {table!r}')
            check_names(table, options_of(RuleSettings), "field")
            options = dict(table)
            if (overridden := options.pop("overrides", None)) is not None:
                # The decorator's key is not known here. With the key "user" any value of per_key is possible.
                rule = check_options(options)
                amendments[_amended(overridden, options, amendments)] = Amendment(i, options)
            elif "limits" in options:
                rules.append(rule := build_rule(options, defaults, Location(source, path)))
            else:
                raise ConfigError("a rule needs limits, unless it has overrides", "limits")
            check_rule(rule, ipv6_prefix)
            with error_path("reserve"):
                priorities.check(rule.reserve)
    RuleSet(rules, amendments=amendments, priorities=priorities)
    return tuple(rules), amendments


def _amended(name: Any, options: Mapping[str, Any], amended: Container[str]) -> str:
    """Return the name of the rule that a rule overrides."""
    if not isinstance(name, str):
        raise ConfigError(f"expected the name of a rule; got {name!r}", "overrides")
    if printable(name) in amended:
        raise ConfigError(f"{name!r} is already overridden above. Put all changes in one rule", "overrides")
    if "name" in options:
        raise ConfigError("a rule with overrides keeps the name of the overridden rule. Remove name", "name")
    return printable(name)
