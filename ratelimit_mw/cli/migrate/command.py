"""``ratelimit-mw migrate``: print the settings and decorators that replace those of another package."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import click

from ..application import import_application
from ..output import Failure, command, json_option, note, print_json, print_text
from ..toml import toml
from .calls import CALLS, find_calls
from .findings import Findings, python


@command(
    "ratelimit-mw migrate flask-limiter shop:app",
    "ratelimit-mw migrate slowapi 'shop:create_app()' > plan.txt",
    "ratelimit-mw migrate django-ratelimit project.wsgi:application --json",
)
@click.argument("package", type=click.Choice(list(CALLS)))
@click.argument("app", metavar="MODULE:APP")
@json_option
def migrate(package: str, app: str, as_json: bool) -> None:
    """Print the settings and decorators that replace those of another PACKAGE in an application.

    MODULE:APP is the application as it is now. The command imports it, as a server does, and changes nothing. It
    prints ratelimit.toml, the code of the middleware, and the decorators of each view with their places.

    A problem is a part that you have to write yourself, such as a limit that a function computes. The exit code is
    then 1.
    """
    read: Callable[[Any, str], Findings] = import_module(f".{package.replace('-', '_')}", __package__).read
    findings = read(import_application(app, "MODULE:APP"), app)
    findings.problems[:] = dict.fromkeys([*findings.problems, *find_calls(package)])
    if not (findings.rules or findings.views or findings.shared):
        raise Failure(f"{app}: no limits of {package}. Name the application whose modules have them")
    if as_json:
        print_json(_as_json(findings))
    else:
        for line in _lines(findings):
            print_text(line)
    note(*(f"problem: {problem}" for problem in findings.problems))
    note(*(f"note: {text}" for text in findings.notes))
    if findings.problems:
        raise click.exceptions.Exit(1)


def _as_json(findings: Findings) -> dict[str, Any]:
    return {
        "settings": {**findings.settings, "rules": findings.rules},
        "features": findings.features,
        "code": [*_code(findings), *findings.shared.values()],
        "views": [vars(view) for view in findings.views],
        "problems": findings.problems,
        "notes": findings.notes,
    }


def _lines(findings: Findings) -> Iterator[str]:
    yield "# ratelimit.toml"
    yield from (f"{name} = {toml(value)}" for name, value in findings.settings.items())
    for rule in findings.rules:
        yield from ("", "[[rules]]", *(f"{name} = {toml(value)}" for name, value in rule.items()))
    yield from ("", "# Instead of the limiter", *_code(findings))
    if findings.shared:
        yield from ("", "# Objects for several views, and limits of blueprints", *findings.shared.values())
    for view in findings.views:
        yield from ("", f"# {view.place}: {view.view}", *view.decorators)


def _code(findings: Findings) -> list[str]:
    """Return the code of the middleware, with its arguments."""
    arguments = 'settings="ratelimit.toml"'
    if findings.features:
        pairs = "".join(f"    {python(name)}: {code},\n" for name, code in findings.features.items())
        arguments += f", features={{\n{pairs}}}"
    code = [*findings.names.imports, *findings.code]
    return [text for line in code for text in line.replace("{}", arguments).splitlines()]
