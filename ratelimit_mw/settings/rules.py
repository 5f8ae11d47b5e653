"""Parse the rules of settings: those of ``rules``, their defaults, and the rule of ``limits``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from ..errors import ConfigError, error_path
from ..rules.client_checks import check_rule
from ..rules.declaration import check_names, decode, options_of
from ..rules.names import printable
from ..rules.options import LimitsByText, RuleDefaults, RuleSettings
from ..rules.places import Location
from ..rules.priorities import Priorities
from ..rules.rule import Rule, build_rule, check_options
from ..rules.ruleset import Amendment, RuleSet
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


def parse_rules(
    tables: Any, folder: Path, ipv6_prefix: int, defaults: RuleDefaults, source: str, priorities: Priorities
) -> tuple[tuple[Rule, ...], dict[str, Amendment]]:
    """The rules, and the rules that override options of a decorator's rule."""
    if not isinstance(tables, list | tuple):
        raise ConfigError(f"expected a list of tables, [[rules]] in TOML; got {tables!r}", "rules")
    rules: list[Rule] = []
    amendments: dict[str, Amendment] = {}
    for i, table in enumerate(tables):
        with error_path(f"rules[{i}]"):
            options = _rule_options(table, folder)
            if (amended := options.pop("overrides", None)) is None:
                if "limits" not in options:
                    raise ConfigError("a rule needs limits, unless it has overrides", "limits")
                rules.append(build_rule(options, defaults, Location(source, f"rules[{i}]")))
                check_rule(rules[-1], ipv6_prefix)
                with error_path("reserve"):
                    priorities.check(rules[-1].reserve)
                continue
            if not isinstance(amended, str):
                raise ConfigError(f"expected the name of a rule; got {amended!r}", "overrides")
            name = printable(amended)
            if name in amendments:
                message = f"{amended!r} is already overridden above. Put all changes in one rule"
                raise ConfigError(message, "overrides")
            if "name" in options:
                raise ConfigError("a rule with overrides keeps the name of the overridden rule. Remove name", "name")
            # The decorator's key is not known here. With the key "user" any value of per_key is possible.
            rule = check_options(options)
            check_rule(rule, ipv6_prefix)
            with error_path("reserve"):
                priorities.check(rule.reserve)
            amendments[name] = Amendment(i, options)
    RuleSet(rules, amendments=amendments, priorities=priorities)
    return tuple(rules), amendments


def _rule_options(table: Any, folder: Path) -> dict[str, Any]:
    """The options of one rule, with a file of ``per_key`` loaded."""
    if not isinstance(table, Mapping):
        raise ConfigError(f'expected a table such as {{limits = "5/minute"}}; got {table!r}')
    check_names(table, options_of(RuleSettings), "field")
    options = dict(table)
    if isinstance(file := options.get("per_key"), str):
        with error_path("per_key"):
            options["per_key"] = limits = with_variables(read(folder / file, "file"), LimitsByText)
            if not isinstance(limits, dict):
                raise ConfigError(f"{folder / file}: expected a table of limits by client; got {limits!r}")
    return options
