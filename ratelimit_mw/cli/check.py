"""``ratelimit-mw check``: whether a settings file is right, and what it comes to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..algorithms.limit import Limit
from ..errors import ConfigError
from ..http.client_ip import ClientIP
from ..http.region import Region
from ..rules import describe as described
from ..rules.overview import Overview
from ..rules.plan import CompiledRule
from ..rules.ruleset import RuleSet
from ..settings import Settings, load_settings
from ..stores import open_store, redacted_url
from .application import Application, OfApplication, application_option
from .output import Cell, help_examples, print_json, print_table, print_text, settings_file

__all__ = ["check"]

_FROM_THE_REQUEST = re.compile(r"ip|method|path|host|endpoint|(header|cookie|query|form|json):.*")


@click.command(
    cls=OfApplication,
    epilog=help_examples(
        "ratelimit-mw check ratelimit.toml",
        "ratelimit-mw check pyproject.toml --json",
        "ratelimit-mw check --app shop:app",
    ),
)
@settings_file
@application_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def check(app: Application | None, as_json: bool, file: Path | None = None) -> None:
    """Check the settings in FILE, show the rules, and say what is worth knowing about them.

    The store's address is checked, but nothing connects to it. Exit code 1 when the file cannot be used, or when a
    rule can only ever reject. With --app in place of FILE the application is imported, and what its decorators give is
    checked and shown, too.
    """
    checked = _of_file(file) if app is None else _of_application(app)  # type: ignore[arg-type]
    problems = list(_problems(checked.rules))
    (_print_json if as_json else _print)(checked, problems)
    if problems:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True)
class _Checked:
    """What there is to say of a file, or of an application."""

    settings: Settings
    rules: RuleSet
    title: str
    needed: dict[str, list[str]]
    overview: Overview | None = None


def _of_file(file: Path) -> _Checked:
    settings = load_settings(file)
    _check_store(file, settings)
    _check_database(file, settings)
    rules = RuleSet(settings.rules)
    title = f"{settings.source}, store {redacted_url(settings.store)}"
    return _Checked(settings, rules, title, _needed_from_application(settings, rules))


def _of_application(app: Application) -> _Checked:
    """Whether it supplies what its rules need was checked when its middleware was built."""
    return _Checked(app.limiter.settings, app.limiter.rules, app.name, {}, app.overview)


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


def _print_json(checked: _Checked, problems: list[str]) -> None:
    overview = checked.overview
    print_json(
        {
            "store": redacted_url(checked.settings.store),
            "rules": [described.as_json(rule) | _stands(rule, overview) for rule in checked.rules.rules],
            **({} if overview is None else {"exempt": overview.exempt}),
            "needs_from_application": checked.needed,
            "problems": problems,
            "notes": list(_notes(checked)),
        }
    )


def _stands(rule: CompiledRule, overview: Overview | None) -> dict[str, Any]:
    if overview is None:
        return {}
    return {"given_by": overview.given_by(rule), "looks_at": overview.looks_at(rule)}


def _print(checked: _Checked, problems: list[str]) -> None:
    rules, overview = checked.rules.rules, checked.overview
    given = () if overview is None else ("given by",)
    columns = ("rule", *given, "match", "key", "limits", "algorithm", "mode", "cost")
    if rules:
        print_table(checked.title, columns, (_row(rule, overview) for rule in rules))
    for line in () if overview is None else overview.beside_rules():
        print_text(line)
    for problem in problems:
        print_text(f"wrong: {problem}", "bold red")
    for line in _notes(checked):
        print_text(f"note: {line}")


def _row(rule: CompiledRule, overview: Overview | None) -> tuple[Cell, ...]:
    return (
        rule.name,
        *(() if overview is None else (overview.given_by(rule),)),
        described.match_of(rule) if overview is None else overview.looks_at(rule),
        described.key_of(rule),
        described.limits_of(rule),
        described.algorithm_of(rule),
        rule.source.mode,
        described.cost_of(rule),
    )


def _needed_from_application(settings: Settings, rules: RuleSet) -> dict[str, list[str]]:
    """Features that nothing in a request and the settings gives, each with the rules that look at it."""
    given = {"email": settings.email_field, "region": settings.region_database or settings.region_header}
    found: dict[str, list[str]] = {}
    for rule in rules.rules:
        for name in rule.source.needs:
            if not _FROM_THE_REQUEST.fullmatch(name) and not given.get(name):
                found.setdefault(name, []).append(rule.name)
    return found


def _problems(rules: RuleSet) -> Iterator[str]:
    for rule in rules.rules:
        cost = rule.fixed_cost or 0  # a file holds no functions
        for limit in rule.all_limits():
            if cost > limit.limit:
                yield f"{rule.name} rejects every request: its cost {cost} can never fit in {limit.quota}"


def _notes(checked: _Checked) -> Iterator[str]:
    settings, rules = checked.settings, checked.rules
    if not rules.rules and not settings.overrides:
        yield "there are no rules: nothing is limited"
    if checked.overview is None:
        yield from described.replacing(settings.overrides)
    for name, users in checked.needed.items():
        yield f"the application has to supply the feature {name}, for {', '.join(users)}"
    if settings.region_header and not settings.trusted_proxies:
        yield "region_header is only taken from trusted_proxies, and the file names none"
    for rule in rules.rules:
        for limit in rule.limits:
            yield from _idle(rule, limit)
    if any(rule.source.name is None for rule in rules.rules):
        yield "a rule without a name is called by its place; its counts start afresh when it moves"
    if settings.store.startswith("memory:"):
        yield "the store memory:// counts in each process by itself: several workers admit several times as much"


def _idle(rule: CompiledRule, limit: Limit) -> Iterator[str]:
    """A limit that a stricter one of the same rule always reaches first."""
    for other in rule.limits:
        slower = other.quota.amount * limit.quota.period_us <= limit.quota.amount * other.quota.period_us
        if other is not limit and slower and other.limit <= limit.limit:
            yield f"{rule.name}: {limit.quota} hardly ever rejects, {other.quota} is reached first"
            return
