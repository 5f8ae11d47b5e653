"""``ratelimit-mw explain``: show which rules apply to a request, and why the others do not."""

from typing import Any, Final

import click

from ..asgi.request import ASGIRequest
from ..errors import ConfigError
from ..keys.features import BUILT_IN, UNKNOWN_IP, Features
from ..operations import Answer, Cell, Table, read_features
from ..operations.answer import words_of_client
from ..operations.clients import ALL_CLIENTS
from ..operations.inspect import check_used
from ..operations.overview import Overview, describe_amendments, function_name, row_of
from ..rules.compiled import CompiledRule, words_of_entries
from ..rules.lookup import Lookups
from ..testmode import wall_clock
from .access_log import RequestTarget, parse_target
from .output import command, json_flag
from .source import Source, SourceCommand, request_of

_QUERY: Final = "query:"
_SCOPE: Final = "scope"
"""The feature of throttles of REST framework. A view may have several, so an option can name one of them."""
_SHOWN: Final = ("mode", "consistency", "lease", "algorithm", "ban")
"""The fields of a rule as JSON that an explanation has, too."""


def _parse_features(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    try:
        features = read_features(texts)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    for name in {"method", "path"}.intersection(features):
        raise click.BadParameter(f"set {name} with {name.upper()}")
    if not isinstance(features.get("host", ""), str):
        raise click.BadParameter("a request has one host")
    return features


def _parse_path(text: str) -> tuple[RequestTarget, str]:
    """Return the target, and the path as it is sent."""
    target = parse_target(text)
    if not target.path.startswith("/") and text != "*":
        raise click.BadParameter(f"expected a path that starts with /; got {text!r}")
    return target, text.partition("?")[0]


@command(
    "ratelimit-mw explain ratelimit.toml POST /login --feature ip=192.0.2.7",
    "ratelimit-mw explain ratelimit.toml GET '/items?page=2' --feature user=ann",
    "ratelimit-mw explain ratelimit.toml GET / --feature header:x-api-key=k7",
    "ratelimit-mw explain --app shop:app GET /items/7",
    "ratelimit-mw explain --app shop:app GET /items/7 --feature user=ann --json",
    cls=SourceCommand,
)
@click.argument("method")
@click.argument("path", metavar="PATH", type=_parse_path)
@click.option("--feature", "features", metavar="NAME=VALUE", multiple=True, callback=_parse_features,
              help="A feature of the request: ip=..., user=..., header:NAME=... Repeat it for several"
                   " features.")  # fmt: skip
@json_flag
def explain(source: Source, method: str, path: tuple[RequestTarget, str], features: dict[str, Any]) -> Answer:
    """Show which rules apply to a request, with the key of each.

    PATH is as in a request line: percent-encoded, with an optional query. The exit code is 1 when no rule applies.
    Features come from --feature; functions of the application are not called.
    """
    overview, rules, notes = source.overview, source.rules.rules, []
    check_used(rules, features, {*BUILT_IN, *source.rules.lists.needs})
    if "ip" not in features and "ip" in source.rules.needs:
        notes.append("the IP address is missing. Add --feature ip=192.0.2.7 to see the key")
    target, sent = path
    request = request_of(method, target.path, features.pop("host", "") or target.host, sent, target.query)
    values = _values(source, request, features)
    explanations = {rule: _explain(rule, values, overview, overview.why_not(rule, request, values)) for rule in rules}
    lists = source.settings.lists.at(request.sent_path, request.to)
    list_name = {True: "allow", False: "deny", None: None}[lists.allows(values)]
    amendments = list(describe_amendments(source.settings.amendments)) if overview.is_file else []
    notes += amendments
    if list_name is not None:
        notes.append(f"the {list_name} list decides this request before any rule")
    no_rule = not any(each["applies"] for each in explanations.values())
    is_unlimited = list_name == "allow" or (list_name is None and no_rule)
    if is_unlimited:
        notes.append(f"no {'other ' if amendments else ''}rule limits this request")
    report = {"features": values, "list": list_name, "rules": list(explanations.values())}
    return Answer(report, _show(values, overview, explanations), notes, is_unlimited)


def _values(source: Source, request: ASGIRequest, features: Features) -> dict[str, Any]:
    """Return all features of a request, as the middleware writes them: of its line, of its route and of the options."""
    given = source.route(request)
    if _SCOPE in features:
        given.pop(_SCOPE, None)
    try:
        counted = source.as_counted({"ip": UNKNOWN_IP, **features})
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    needed = [name.removeprefix(_QUERY) for name in source.rules.needs if name.startswith(_QUERY)]
    fields = {f"{_QUERY}{name}": request.query_field(name) for name in (*(request.query_values or ()), *needed)}
    query = {name: value for name, value in fields.items() if value is not None}
    host = request.host if request.header("host") else ""  # without one, no rule of a host applies
    values = {"path": request.path, **query, **counted, "method": request.method, "host": host}
    return {name: request.to.convert(name, value) for name, value in values.items()} | given


def _explain(rule: CompiledRule, features: Features, overview: Overview, reason: str) -> dict[str, Any]:
    """Return the key and the limits of a rule for a request, or the reason why the rule does not apply."""
    features = rule.captures.add(features)
    key = None if reason else rule.build_key(features)
    missing = words_of_entries(rule.missing_in_key(features))
    if not reason and key is None and (rule.source.when_missing != "reject" or rule.shadow):
        reason = f"key: {missing} is missing"
    if reason:
        return {"rule": rule.name, "applies": False, "reason": reason}
    lookups = Lookups(wall_clock)
    if rule.lookup is not None:  # the command does not call functions
        lookups.known[rule.lookup] = None
    known = rule.limits_of(features, key or "", lookups)
    limits = [(str(limit.quota), limit.policy) for limit in known or ()]  # type: ignore[union-attr] # no calls
    limits = limits or [(function_name(rule.source.function), rule.name)]
    return {
        "rule": rule.name,
        "applies": True,
        **{name: value for name, value in overview.as_json(rule).items() if name in _SHOWN},
        "key": key,
        "rejects": f"{missing} is missing" if key is None else None,
        **({"schedule": rule.source.schedule.at(lookups.now)} if rule.source.schedule else {}),
        "limits": [{"limit": limit, "policy": policy, "cost": rule.source.options["cost"]} for limit, policy in limits],
    }


def _show(
    features: Features, overview: Overview, explanations: dict[CompiledRule, dict[str, Any]]
) -> list[Table | str]:
    title = f"{features['method']} {features['path']}"
    routed = [f"{title} is routed to {features['endpoint']}"] if "endpoint" in features else []
    applying = [_row(rule, overview, each) for rule, each in explanations.items() if each["applies"]]
    others = [{"rule": each["rule"], "reason": each["reason"]} for each in explanations.values() if not each["applies"]]
    return [
        *routed,
        Table(f"Rules that apply to {title}", applying),
        Table(f"Rules that do not apply to {title}", others),
    ]


def _row(rule: CompiledRule, overview: Overview, explanation: dict[str, Any]) -> dict[str, Cell]:
    rejects, key = explanation["rejects"], explanation["key"]
    others = [f"in {text}"] if (text := explanation.get("schedule")) else []
    row = row_of(overview.as_json(rule))
    return {
        "rule": rule.name,
        "key": f"rejected: {rejects}" if rejects else words_of_client(rule, key or "") or ALL_CLIENTS,
        "limits": [limit["limit"] for limit in explanation["limits"]] + others,
        **{name: row[name] for name in ("algorithm", "mode", "cost")},
    }
