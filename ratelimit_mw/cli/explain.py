"""``ratelimit-mw explain``: which rules look at a request, with which keys and limits, and why the others do not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..algorithms.limit import Limit
from ..errors import ConfigError
from ..http.client_ip import ip_key
from ..keys.email import normalized_email
from ..keys.features import INVALID, UNKNOWN_IP, Features, checked_name
from ..keys.networks import is_in
from ..rules.describe import algorithm_of, cost_of, replacing
from ..rules.paths import pattern_matches
from ..rules.plan import CompiledRule
from ..rules.ruleset import RuleSet
from ..settings import load_settings
from .access_log import Target, UnreadableLineError, parse_target
from .application import Application, OfApplication, application_option
from .output import Cell, help_examples, note, print_json, print_table, print_text, settings_file

__all__ = ["explain"]

_GIVEN_OTHERWISE = {"method": "the argument METHOD", "path": "the argument PATH", "host": "--host"}
_LISTED = {True: "allow", False: "deny", None: None}
_PRE_FLIGHT = "method: pre-flights are left alone, unless a rule names OPTIONS"


@dataclass(frozen=True)
class _Answer:
    """What one rule makes of the request: a key and limits, or the reason why it does not look at it."""

    rule: CompiledRule
    key: str | None = None
    limits: tuple[Limit, ...] = ()
    why_not: str = ""
    rejects: str = ""

    @property
    def looks(self) -> bool:
        return not self.why_not


def _parsed_features(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"expected NAME=VALUE; got {text!r}")
        try:
            name = checked_name(name)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from None
        if name in _GIVEN_OTHERWISE:
            raise click.BadParameter(f"{name} is given by {_GIVEN_OTHERWISE[name]}")
        found[name] = value
    return found


def _parsed_path(_ctx: click.Context, _param: click.Parameter, text: str) -> Target:
    try:
        return parse_target(text)
    except UnreadableLineError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    cls=OfApplication,
    epilog=help_examples(
        "ratelimit-mw explain ratelimit.toml POST /login --feature ip=192.0.2.7",
        "ratelimit-mw explain ratelimit.toml GET '/api/items?page=2' --feature user=alice --host example.com",
        "ratelimit-mw explain ratelimit.toml GET / --feature header:user-agent=curl --json",
        "ratelimit-mw explain --app shop:app GET /items/7",
    ),
)
@settings_file
@application_option
@click.argument("method")
@click.argument("path", callback=_parsed_path)
@click.option(
    "--feature",
    "features",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_parsed_features,
    help="What else is known of the request, as often as needed: ip=..., user=..., header:NAME=...",
)
@click.option("--host", default="", help="The host asked for.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def explain(
    app: Application | None,
    method: str,
    path: Target,
    features: dict[str, str],
    host: str,
    as_json: bool,
    file: Path | None = None,
) -> None:
    """Show which rules in FILE look at a request for METHOD and PATH, and for each the key it counts under.

    PATH is as in a request line: percent-encoded, a query after it is read. Exit code 1 when no rule looks at the
    request. With --app in place of FILE the rules that decorators give and what is exempt are shown, too; features are
    those that you state, functions of the application are not asked.
    """
    if app is None:
        assert file is not None  # there is one of them: see OfApplication
        settings = load_settings(file)
        rules = RuleSet(settings.rules, lists=settings.lists, secret=settings.secret)
    else:
        settings, rules = app.limiter.settings, app.limiter.rules
    facts = _facts(method, path, host or path.host, features, settings.ipv6_prefix)
    asked = _Asked(app, facts)
    if "ip" not in features and "ip" in rules.needs:
        note("the client's address is unknown; say --feature ip=192.0.2.7 to see its key")
    answers = [_answer(rule, facts, asked) for rule in rules.rules]
    listed = settings.lists.allows(facts)
    if as_json:
        print_json({"features": facts, "list": _LISTED[listed], "rules": [_as_json(answer) for answer in answers]})
    else:
        _print(facts, answers)
    left_out = list(replacing(settings.overrides)) if app is None else []
    for line in left_out:
        note(line)
    if listed is not None:
        note(f"the {_LISTED[listed]} list decides this request before any rule")
    if listed or (listed is None and not any(answer.looks for answer in answers)):
        note(f"nothing {'else ' if left_out else ''}limits this request")
        raise click.exceptions.Exit(1)


class _Asked:
    """Where the request goes in an application, whose features ``facts`` then have; nowhere where there is none."""

    def __init__(self, app: Application | None, facts: dict[str, str]) -> None:
        self._app = app
        if app is None:
            return
        self._place = facts["method"], facts["path"], facts["host"]
        self._view, known = app.going(*self._place)
        facts |= known
        self._looking = app.limiter.rules.plan(*self._place, self._view).rules

    def passes_by(self, rule: CompiledRule) -> str:
        """Why a rule does not look at requests that go there; "" when it does."""
        if self._app is None or rule in self._looking:
            return ""
        return self._app.overview.why_not(rule, *self._place, self._view)


def _facts(method: str, target: Target, host: str, features: dict[str, str], ipv6_prefix: int) -> dict[str, str]:
    """The features of the request, written as the middleware writes them."""
    given = features.get("ip")
    ip = UNKNOWN_IP if given is None else ip_key(given, ipv6_prefix)
    if ip is None:
        raise click.BadParameter(f"ip={given} is not an address of a client", param_hint="'--feature'")
    if "email" in features:
        features = {**features, "email": _email(features["email"])}
    query = {f"query:{name}": value for name, value in (target.fields or {}).items()}
    named = re.sub(r":\d+$", "", host.strip().lower()).rstrip(".")
    return {**query, **features, "ip": ip, "method": method.upper(), "path": target.path, "host": named}


def _email(text: str) -> str:
    email = normalized_email(text)
    if email is INVALID:
        raise click.BadParameter("email has more than 320 characters", param_hint="'--feature'")
    return str(email)


def _answer(rule: CompiledRule, facts: Features, asked: _Asked) -> _Answer:
    why_not = asked.passes_by(rule) or _mismatch(rule, facts)
    if why_not:
        return _Answer(rule, why_not=why_not)
    key = rule.key.of(facts)
    if key is not None:
        return _Answer(rule, key, rule.limits_for(facts))
    unknown = " and ".join("|".join(names) for names in rule.source.entries if not any(map(facts.get, names)))
    if rule.source.when_missing == "reject" and not rule.shadow:
        return _Answer(rule, None, rule.limits, rejects=f"{unknown} is unknown")
    return _Answer(rule, why_not=f"key: {unknown} is unknown")


def _mismatch(rule: CompiledRule, facts: Features) -> str:
    """The first thing in which the request is not what the rule is about; "" when there is none."""
    match = rule.source.matches
    if match.paths and not any(pattern_matches(pattern, facts["path"]) for pattern in match.paths):
        return f"path: not {' or '.join(match.paths)}"
    if not match.takes_method(facts["method"]):
        return f"method: not {' or '.join(sorted(match.methods))}" if match.methods else _PRE_FLIGHT
    if not match.takes_host(facts["host"]):
        return f"host: not {' or '.join(match.hosts)}"
    if match.networks and not is_in(facts["ip"], match.networks):
        return f"feature: ip is {facts['ip']}, not in {' or '.join(map(str, match.networks))}"
    for name, values in match.features:
        if str(facts.get(name) or "") not in values:
            return f"feature: {name} is {facts.get(name) or 'unknown'}, not {' or '.join(sorted(values))}"
    return ""


def _as_json(answer: _Answer) -> dict[str, Any]:
    if not answer.looks:
        return {"rule": answer.rule.name, "looks": False, "why_not": answer.why_not}
    cost = answer.rule.source.cost
    limits = [{"limit": str(limit.quota), "policy": limit.policy, "cost": cost} for limit in answer.limits]
    return {
        "rule": answer.rule.name,
        "looks": True,
        "mode": answer.rule.source.mode,
        "key": answer.key,
        "rejects": answer.rejects or None,
        "algorithm": algorithm_of(answer.rule),
        "limits": limits,
    }


def _print(facts: Features, answers: list[_Answer]) -> None:
    looking = [answer for answer in answers if answer.looks]
    others = [(answer.rule.name, answer.why_not) for answer in answers if not answer.looks]
    request = f"{facts['method']} {facts['path']}"
    if "endpoint" in facts:
        print_text(f"{request} is answered by {facts['endpoint']}")
    if looking:
        columns = ("rule", "counts under the key", "limit", "algorithm", "mode", "cost")
        print_table(f"These rules look at {request}", columns, map(_row, looking), numbers=("cost",))
    if others:
        print_table(f"These do not look at {request}", ("rule", "why not"), others)


def _row(answer: _Answer) -> tuple[Cell, ...]:
    rule = answer.rule
    key = f"rejected: {answer.rejects}" if answer.key is None else answer.key or "(one for everybody)"
    limits = [str(limit.quota) for limit in answer.limits]
    return (rule.name, key, limits, algorithm_of(rule), rule.source.mode, cost_of(rule))
