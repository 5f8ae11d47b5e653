"""The command group ``flask ratelimit``: list the rules, and explain one request."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click
from flask import current_app
from flask.cli import AppGroup
from werkzeug.exceptions import HTTPException

from ..errors import ConfigError
from ..http.notes import notes_on_marks
from ..http.views import ViewMarksByMethod
from ..keys.features import UNMATCHED
from ..rules.describe import Overview
from ..rules.marks import Destination
from .hooks import FlaskHooks, marks_for, routes_of
from .request import route_template

EXTENSION = "ratelimit_mw"

commands = AppGroup("ratelimit", help="Show the rate limits of this application.")


@commands.command("rules")
def rules() -> None:
    """List the rules and the routes that they apply to. The exit code is 1 for @limit that no route leads to."""
    overview, _ = _overview()
    click.echo("\n".join(overview.table()))
    for problem in notes_on_marks([current_app.import_name.partition(".")[0]]):
        click.echo(f"problem: {problem}", err=True)
        raise click.exceptions.Exit(1)


@commands.command("explain")
@click.argument("method")
@click.argument("path")
@click.option("--host", default="localhost", help="The host of the request.")
def explain(method: str, path: str, host: str) -> None:
    """Show which rules apply to a request for METHOD and PATH, and why the others do not."""
    overview, views = _overview()
    method, to = method.upper(), Destination(UNMATCHED)
    params: Mapping[str, Any] = {}
    with suppress(HTTPException):
        rule, params = current_app.url_map.bind(host).match(path, method, return_rule=True)
        to = Destination(route_template(rule.rule), rule.endpoint, marks_for(views[rule.endpoint], method, rule))
    lines, is_limited = overview.explain(method, path, host, to, params)
    click.echo("\n".join(lines))
    if not is_limited:
        click.echo("no rule applies to this request", err=True)
        raise click.exceptions.Exit(1)


def _overview() -> tuple[Overview, dict[str, ViewMarksByMethod]]:
    hooks: FlaskHooks = current_app.extensions[EXTENSION]
    try:
        views = hooks.read_views()
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    return Overview(hooks.limiter.rules, hooks.limiter.settings.overrides, routes_of(current_app, views)), views
