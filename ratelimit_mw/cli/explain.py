"""``ratelimit-mw explain``: show which rules apply to a request, and why the others do not."""

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
from ..rules.describe import Overview, algorithm_of, cost_of, describe_overrides
from ..rules.marks import ViewMarks
from ..rules.plan import CompiledRule
from ..rules.ruleset import RuleSet
from ..settings import load_settings
from .access_log import InvalidLineError, Target, parse_target
from .application import Application, ApplicationCommand, application_option
from .output import (
    Cell,
    help_examples,
    json_option,
    note,
    print_json,
    print_table,
    print_text,
    settings_file,
)

_OTHER_INPUTS = {"method": "the argument METHOD", "path": "the argument PATH", "host": "the option --host"}
_LISTS = {True: "allow", False: "deny", None: None}


@dataclass(frozen=True)
class _Explanation:
    """The key and the limits of one rule for a request, or the reason why the rule does not apply."""

    rule: CompiledRule
    key: str | None = None
    limits: tuple[Limit, ...] = ()
    reason: str = ""
    rejects: str = ""

    @property
    def applies(self) -> bool:
        return not self.reason


def _parse_features(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    features: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"expected NAME=VALUE; got {text!r}")
        try:
            name = checked_name(name)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from None
        if name in _OTHER_INPUTS:
            raise click.BadParameter(f"set {name} with {_OTHER_INPUTS[name]}")
        features[name] = value
    return features


def _parse_path(_ctx: click.Context, _param: click.Parameter, text: str) -> Target:
    try:
        target = parse_target(text)
    except InvalidLineError as error:
        raise click.BadParameter(str(error)) from None
    if not target.path.startswith("/") and text != "*":
        raise click.BadParameter(f"expected a path that starts with /; got {text!r}")
    return target


@click.command(
    cls=ApplicationCommand,
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
@click.argument("path", callback=_parse_path)
@click.option(
    "--feature",
    "features",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_parse_features,
    help="A feature of the request: ip=..., user=..., header:NAME=... Use it several times for several features.",
)
@click.option("--host", default="", help="The host of the request.")
@json_option
def explain(
    app: Application | None,
    method: str,
    path: Target,
    features: dict[str, str],
    host: str,
    as_json: bool,
    file: Path | None = None,
) -> None:
    """Show which rules in FILE apply to a request for METHOD and PATH, with the key of each rule.

    PATH is as in a request line: percent-encoded, with an optional query. The exit code is 1 when no rule applies.
    With --app in place of FILE the command shows the rules of decorators and the exemptions, too. Features come from
    --feature; functions of the application are not called.
    """
    if app is None:
        assert file is not None  # ApplicationCommand requires one of the two
        settings = load_settings(file)
        rules = RuleSet(settings.rules, lists=settings.lists, secret=settings.secret)
        overview = Overview(rules, settings.overrides)
    else:
        settings, rules, overview = app.limiter.settings, app.limiter.rules, app.overview
    request = _request_features(method, path, host or path.host, features, settings.ipv6_prefix)
    place = request["method"], request["path"], request["host"]
    view, routed = (ViewMarks(), {}) if app is None else app.route(*place)
    request |= routed
    if "ip" not in features and "ip" in rules.needs:
        note("the IP address is missing. Add --feature ip=192.0.2.7 to see the key")
    explanations = [_explain(rule, request, overview.why_not(rule, *place, view, request)) for rule in rules.rules]
    listed = settings.lists.allows(request)
    if as_json:
        print_json({"features": request, "list": _LISTS[listed], "rules": [_as_json(each) for each in explanations]})
    else:
        _print(request, explanations)
    overrides = list(describe_overrides(settings.overrides)) if app is None else []
    for line in overrides:
        note(line)
    if listed is not None:
        note(f"the {_LISTS[listed]} list decides this request before any rule")
    if listed or (listed is None and not any(each.applies for each in explanations)):
        note(f"no {'other ' if overrides else ''}rule limits this request")
        raise click.exceptions.Exit(1)


def _request_features(
    method: str, target: Target, host: str, features: dict[str, str], ipv6_prefix: int
) -> dict[str, str]:
    """Return the features of the request as the middleware writes them."""
    ip = ip_key(features["ip"], ipv6_prefix) if "ip" in features else UNKNOWN_IP
    if ip is None:
        raise click.BadParameter(f"expected ip=ADDRESS; got ip={features['ip']}", param_hint="'--feature'")
    if "email" in features:
        features = {**features, "email": _email(features["email"])}
    query = {f"query:{name}": value for name, value in (target.fields or {}).items()}
    host = re.sub(r":\d+$", "", host.strip().lower()).rstrip(".")
    return {**query, **features, "ip": ip, "method": method.upper(), "path": target.path, "host": host}


def _email(text: str) -> str:
    email = normalized_email(text)
    if email is INVALID:
        raise click.BadParameter("email has more than 320 characters", param_hint="'--feature'")
    return str(email)


def _explain(rule: CompiledRule, request: Features, reason: str) -> _Explanation:
    if reason:
        return _Explanation(rule, reason=reason)
    key = rule.key.build(request)
    if key is not None:
        return _Explanation(rule, key, rule.limits_for(request))
    missing = " and ".join("|".join(names) for names in rule.source.entries if not any(map(request.get, names)))
    if rule.source.when_missing == "reject" and not rule.shadow:
        return _Explanation(rule, None, rule.limits, rejects=f"{missing} is missing")
    return _Explanation(rule, reason=f"key: {missing} is missing")


def _as_json(explanation: _Explanation) -> dict[str, Any]:
    rule = explanation.rule
    if not explanation.applies:
        return {"rule": rule.name, "applies": False, "reason": explanation.reason}
    cost = rule.source.cost
    limits = [{"limit": str(limit.quota), "policy": limit.policy, "cost": cost} for limit in explanation.limits]
    return {
        "rule": rule.name,
        "applies": True,
        "mode": rule.source.mode,
        "key": explanation.key,
        "rejects": explanation.rejects or None,
        "algorithm": algorithm_of(rule),
        "limits": limits,
    }


def _print(request: Features, explanations: list[_Explanation]) -> None:
    applying = [_row(each) for each in explanations if each.applies]
    others = [(each.rule.name, each.reason) for each in explanations if not each.applies]
    title = f"{request['method']} {request['path']}"
    if "endpoint" in request:
        print_text(f"{title} is routed to {request['endpoint']}")
    if applying:
        columns = ("rule", "key", "limits", "algorithm", "mode", "cost")
        print_table(f"Rules that apply to {title}", columns, applying, numbers=("cost",))
    if others:
        print_table(f"Rules that do not apply to {title}", ("rule", "reason"), others)


def _row(explanation: _Explanation) -> tuple[Cell, ...]:
    rule = explanation.rule
    key = explanation.key or "(one for all clients)"
    if explanation.rejects:
        key = f"rejected: {explanation.rejects}"
    limits = [str(limit.quota) for limit in explanation.limits]
    return (rule.name, key, limits, algorithm_of(rule), rule.source.mode, cost_of(rule))
