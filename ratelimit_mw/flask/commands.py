"""The commands ``flask ratelimit``: which rules there are, and which look at a request."""

from __future__ import annotations

import click
from flask import current_app
from flask.cli import AppGroup
from werkzeug.exceptions import HTTPException

from ..errors import ConfigError
from ..keys.features import UNMATCHED
from ..rules.marks import ViewMarks
from ..rules.overview import Overview, Route
from .hooks import FlaskHooks
from .request import template_of

__all__ = ["EXTENSION", "commands"]

EXTENSION = "ratelimit_mw"

commands = AppGroup("ratelimit", help="Look at rate limits before they meet traffic.")


@commands.command("rules")
def rules() -> None:
    """List the rules, with the routes that they stand on."""
    for line in _overview(_enforcer()).rules():
        click.echo(line)


@commands.command("explain")
@click.argument("method")
@click.argument("path")
@click.option("--host", default="localhost", help="The host asked for.")
def explain(method: str, path: str, host: str) -> None:
    """Show which rules look at a request for METHOD and PATH, and why the others do not."""
    enforcer = _enforcer()
    method = method.upper()
    endpoint, view = _answering(enforcer, method, path, host)
    overview = _overview(enforcer)
    for line in overview.explained(method, path, host, endpoint, view):
        click.echo(line)
    if not overview.looks(method, path, host, view):
        click.echo("nothing limits this request", err=True)
        raise click.exceptions.Exit(1)


def _enforcer() -> FlaskHooks:
    enforcer: FlaskHooks = current_app.extensions[EXTENSION]
    try:
        enforcer.views()
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    return enforcer


def _overview(enforcer: FlaskHooks) -> Overview:
    marked = enforcer.views()
    routes = [
        Route(
            template_of(rule.rule),
            tuple(sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})),
            marked[rule.endpoint],
        )
        for rule in current_app.url_map.iter_rules()
        if rule.endpoint in marked
    ]
    return Overview(enforcer.limiter.rules, enforcer.limiter.settings.overrides, routes)


def _answering(enforcer: FlaskHooks, method: str, path: str, host: str) -> tuple[str, ViewMarks]:
    try:
        rule, _ = current_app.url_map.bind(host).match(path, method, return_rule=True)
    except HTTPException:
        return UNMATCHED, ViewMarks()
    marked = enforcer.views().get(rule.endpoint)
    return template_of(rule.rule), ViewMarks() if marked is None else marked.of(method)
