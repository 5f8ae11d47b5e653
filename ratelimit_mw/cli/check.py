"""``ratelimit-mw check``: whether a settings file is right, and what it comes to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click

from ..errors import ConfigError
from ..http.client_ip import ClientIP
from ..http.region import Region
from ..limit import Limit
from ..plan import CompiledRule
from ..ruleset import RuleSet
from ..settings import Settings, load_settings
from ..stores import open_store
from . import described
from .output import Cell, examples, print_json, print_table, print_text, settings_file

__all__ = ["check"]

_FROM_THE_REQUEST = re.compile(r"ip|method|path|host|endpoint|(header|cookie|query|form|json):.*")


@click.command(epilog=examples("ratelimit-mw check ratelimit.toml", "ratelimit-mw check pyproject.toml --json"))
@settings_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def check(file: Path, as_json: bool) -> None:
    """Check the settings in FILE, show the rules, and say what is worth knowing about them.

    The store's address is checked, but nothing connects to it. Exit code 1 when the file cannot be used, or when a
    rule can only ever refuse.
    """
    settings = load_settings(file)
    _check_store(file, settings)
    _check_database(file, settings)
    rules = RuleSet(settings.rules)
    problems = list(_problems(rules))
    (_print_json if as_json else _print)(settings, rules, problems)
    if problems:
        raise click.exceptions.Exit(1)


def _check_store(file: Path, settings: Settings) -> None:
    try:
        open_store(settings.store, settings.store_timeout).close()
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.within('store')}") from None


def _check_database(file: Path, settings: Settings) -> None:
    try:
        Region(settings.region_database, "", ClientIP())
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _print_json(settings: Settings, rules: RuleSet, problems: list[str]) -> None:
    print_json(
        {
            "store": _without_secrets(settings.store),
            "rules": [described.as_json(rule) for rule in rules.rules],
            "needs_from_application": _needed_from_application(settings, rules),
            "problems": problems,
            "notes": list(_notes(settings, rules)),
        }
    )


def _print(settings: Settings, rules: RuleSet, problems: list[str]) -> None:
    columns = ("rule", "match", "key", "limits", "algorithm", "mode", "cost")
    if rules.rules:
        print_table(f"{settings.source}, store {_without_secrets(settings.store)}", columns, map(_row, rules.rules))
    for problem in problems:
        print_text(f"wrong: {problem}", "bold red")
    for line in _notes(settings, rules):
        print_text(f"note: {line}")


def _row(rule: CompiledRule) -> tuple[Cell, ...]:
    return (
        rule.name,
        described.match_of(rule),
        described.key_of(rule),
        described.limits_of(rule),
        described.algorithm_of(rule),
        rule.rule.mode,
        described.cost_of(rule),
    )


def _needed_from_application(settings: Settings, rules: RuleSet) -> dict[str, list[str]]:
    """Features that nothing in a request and the settings gives, each with the rules that look at it."""
    given = {"email": settings.email_field, "region": settings.region_database or settings.region_header}
    found: dict[str, list[str]] = {}
    for rule in rules.rules:
        for name in rule.rule.needs:
            if not _FROM_THE_REQUEST.fullmatch(name) and not given.get(name):
                found.setdefault(name, []).append(rule.name)
    return found


def _problems(rules: RuleSet) -> Iterator[str]:
    for rule in rules.rules:
        cost = rule.fixed_cost or 0  # a file holds no functions
        for limit in rule.all_limits():
            if cost > limit.limit:
                yield f"{rule.name} refuses every request: its cost {cost} can never fit in {limit.quota}"


def _notes(settings: Settings, rules: RuleSet) -> Iterator[str]:
    if not rules.rules:
        yield "there are no rules: nothing is limited"
    for name, users in _needed_from_application(settings, rules).items():
        yield f"the application has to supply the feature {name}, for {', '.join(users)}"
    if settings.region_header and not settings.trusted_proxies:
        yield "region_header is only taken from trusted_proxies, and the file names none"
    for rule in rules.rules:
        for limit in rule.limits:
            yield from _idle(rule, limit)
    if any(rule.rule.name is None for rule in rules.rules):
        yield "a rule without a name is called by its place; its counts start afresh when it moves"
    if settings.store.startswith("memory:"):
        yield "the store memory:// counts in each process by itself: several workers admit several times as much"


def _idle(rule: CompiledRule, limit: Limit) -> Iterator[str]:
    """A limit that a stricter one of the same rule always reaches first."""
    for other in rule.limits:
        slower = other.quota.amount * limit.quota.period_us <= limit.quota.amount * other.quota.period_us
        if other is not limit and slower and other.limit <= limit.limit:
            yield f"{rule.name}: {limit.quota} hardly ever refuses, {other.quota} is reached first"
            return


def _without_secrets(address: str) -> str:
    """Scheme, hosts and path: passwords stand before an @ or in the query."""
    split = urlsplit(address)
    return f"{split.scheme}://{split.netloc.rpartition('@')[2]}{split.path}"
