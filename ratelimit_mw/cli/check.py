"""``ratelimit-mw check``: check the settings, and show the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from ..algorithms.limit import Limit
from ..errors import ConfigError
from ..http.client_ip import ClientIP
from ..http.features import HINTS
from ..http.region import Region
from ..rules.describe import Overview, describe_overrides
from ..rules.plan import CompiledRule
from ..rules.ruleset import RuleSet
from ..settings import Settings, load_settings
from ..stores import open_store, redacted_url
from .application import Application, ApplicationCommand, application_option
from .output import help_examples, json_option, print_json, print_table, print_text, settings_file

_REQUEST_FEATURES = re.compile(r"ip|method|path|host|endpoint|(header|cookie|query|form|json):.*")


@click.command(
    cls=ApplicationCommand,
    epilog=help_examples(
        "ratelimit-mw check ratelimit.toml",
        "ratelimit-mw check pyproject.toml --json",
        "ratelimit-mw check --app shop:app",
    ),
)
@settings_file
@application_option
@json_option
def check(app: Application | None, as_json: bool, file: Path | None = None) -> None:
    """Check the settings in FILE, and show the rules with notes about them.

    The store URL is checked, but no connection is opened. The exit code is 1 when FILE cannot be used, or when a rule
    rejects every request. With --app in place of FILE the command imports an application, and checks and shows the
    rules of its decorators, too.
    """
    checked = _check_file(file) if app is None else _check_application(app)  # type: ignore[arg-type]
    problems = list(_problems(checked.rules))
    (_print_json if as_json else _print)(checked, problems)
    if problems:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True)
class _Checked:
    """The settings of a file or an application. ``required`` are features that the application must provide."""

    settings: Settings
    rules: RuleSet
    overview: Overview
    title: str
    required: dict[str, list[str]]


def _check_file(file: Path) -> _Checked:
    settings = load_settings(file)
    try:
        open_store(settings.store, settings.store_timeout).close()
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.within('store')}") from None
    try:
        Region(settings.region_database, "", ClientIP())
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    rules = RuleSet(settings.rules)
    title = f"{settings.source}, store {redacted_url(settings.store)}"
    overview = Overview(rules, settings.overrides)
    return _Checked(settings, rules, overview, title, _required_features(settings, rules))


def _check_application(app: Application) -> _Checked:
    """Its middleware has checked already that the application provides all features."""
    return _Checked(app.limiter.settings, app.limiter.rules, app.overview, app.name, {})


def _required_features(settings: Settings, rules: RuleSet) -> dict[str, list[str]]:
    """Return the features that neither the request nor the settings provide, each with its rules."""
    provided = {"email": settings.email_field, "region": settings.region_database or settings.region_header}
    required: dict[str, list[str]] = {}
    for rule in rules.rules:
        for name in rule.source.needs:
            if not _REQUEST_FEATURES.fullmatch(name) and not provided.get(name):
                required.setdefault(name, []).append(rule.name)
    return required


def _print_json(checked: _Checked, problems: list[str]) -> None:
    print_json(
        {
            "store": redacted_url(checked.settings.store),
            "rules": list(map(checked.overview.as_json, checked.rules.rules)),
            **({} if checked.overview.is_file else {"exempt": checked.overview.exempt}),
            "required_features": checked.required,
            "problems": problems,
            "notes": list(_notes(checked)),
        }
    )


def _print(checked: _Checked, problems: list[str]) -> None:
    rows = [checked.overview.row(rule) for rule in checked.rules.rules]
    if rows:
        print_table(checked.title, list(rows[0]), [list(row.values()) for row in rows])
    for line in () if checked.overview.is_file else checked.overview.notes():
        print_text(line)
    for problem in problems:
        print_text(f"problem: {problem}", "bold red")
    for line in _notes(checked):
        print_text(f"note: {line}")


def _problems(rules: RuleSet) -> Iterator[str]:
    for rule in rules.rules:
        cost = rule.fixed_cost or 0
        for limit in rule.all_limits():
            if cost > limit.limit:
                yield f"{rule.name} rejects every request: its cost {cost} is greater than the limit {limit.quota}"


def _notes(checked: _Checked) -> Iterator[str]:
    settings, rules = checked.settings, checked.rules
    if not rules.rules and not settings.overrides:
        yield "there are no rules, so no request is limited"
    if checked.overview.is_file:
        yield from describe_overrides(settings.overrides)
    for name, users in checked.required.items():
        hint = f". {HINTS[name]}it in features" if name in HINTS else ""
        yield f"the application must provide the feature {name}, for {', '.join(users)}{hint}"
    if settings.region_header and not settings.trusted_proxies:
        yield "region_header is read from trusted_proxies only. Set trusted_proxies"
    for rule in rules.rules:
        for limit in rule.limits:
            yield from _ineffective(rule, limit)
    if any(rule.source.name is None for rule in rules.rules):
        yield "a rule without a name is named by its position; its counts start at zero when it moves"
    if settings.store.startswith("memory:"):
        yield "memory:// counts in each process separately, so N worker processes allow up to N times the limit"


def _ineffective(rule: CompiledRule, limit: Limit) -> Iterator[str]:
    """Find a stricter limit of the same rule that always rejects first."""
    for other in rule.limits:
        slower = other.quota.amount * limit.quota.period_us <= limit.quota.amount * other.quota.period_us
        if other is not limit and slower and other.limit <= limit.limit:
            yield f"{rule.name}: {limit.quota} hardly ever rejects, because {other.quota} rejects first"
            return
