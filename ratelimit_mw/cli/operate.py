"""The commands of the operations, such as ``ban`` and ``override set``, built from their declaration."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from ..errors import ConfigError
from ..operations import OPERATIONS, AdminOperation, Answer, read_features, run
from ..operations.arguments import Argument, decode
from .clients import open_limiter, open_limiter_of_log
from .output import Failure, examples_of, json_flag, progress
from .source import Source, SourceCommand


def command_of(operation: AdminOperation) -> SourceCommand:
    """Return the command of an operation. Its options and its help are those of the declaration."""

    def perform(source: Source, **values: Any) -> Answer:
        return _perform(operation, source, values)

    params = [_param(operation, name, each) for name, each in operation.arguments.items() if name != "limits"]
    command = SourceCommand(
        name=operation.name.rpartition(" ")[2],
        callback=perform,
        params=params,
        help=operation.perform.__doc__,
        epilog=examples_of(_example(operation.name, each) for each in operation.examples),
    )
    return json_flag(command)


def _example(name: str, words: str) -> str:
    first, _, rest = words.partition(" ")
    return f"ratelimit-mw {name} {'--app shop:app' if first == 'APP' else 'ratelimit.toml'} {rest}".rstrip()


def _param(operation: AdminOperation, name: str, argument: Argument) -> click.Parameter:
    meta, is_required = argument.meta, argument.is_required
    if name == "features" and name in operation.words:
        metavar = "NAME=VALUE... LIMITS" if "limits" in operation.words else "[NAME=VALUE]..."
        return click.Argument([name], metavar=metavar, nargs=-1, required="limits" in operation.words)
    if name in operation.words:
        return click.Argument([name], required=is_required)
    if name == "features":
        return click.Option(["--feature", name], multiple=True, metavar=meta.title, help=meta.description)
    kinds: dict[str, Any] = {}
    if argument.default is False:
        kinds = {"is_flag": True}
    elif meta.ge is not None:
        kinds = {"type": click.IntRange(int(meta.ge), int(meta.le or 0))}
    if argument.default:
        kinds |= {"default": argument.default, "show_default": True}
    return click.Option([f"--{name}", name], metavar=meta.title, help=meta.description, **kinds)


def _perform(operation: AdminOperation, source: Source, values: dict[str, Any]) -> Answer:
    fields = _fields(operation, source, values)
    open_it = open_limiter_of_log if operation.reads_log else open_limiter
    with open_it(source) as limiter, progress("working", None):
        try:
            return run(limiter, operation.name, fields)
        except ConfigError as error:
            message = error.message if error.path == "features" else str(error)
            lacks_rule = error.message.startswith(("unknown rule", "no rule uses"))
            raise Failure(source.with_hint(message) if lacks_rule else message) from None


def _fields(operation: AdminOperation, source: Source, values: dict[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of an operation. A mistake in the words of the command is misuse."""
    try:
        if operation.takes_all_rules and "=" in (values["rule"] or ""):
            values["features"], values["rule"] = (values["rule"], *values["features"]), None
        if "features" in values:
            texts = values["features"]
            if "limits" in operation.words:
                texts, values["limits"] = _split(texts)
            values["features"] = source.as_counted(read_features(texts)) or None
        if values.get("features") is None and not values.get("key") and "features" in operation.words:
            values["features"] = {}
        decode(operation.arguments, values)
    except ConfigError as error:
        if error.path not in operation.arguments:  # of a feature
            raise click.BadParameter(str(error)) from None
        raise click.BadParameter(error.message, param_hint=f"'--{error.path}'") from None
    return values


def _split(texts: tuple[str, ...]) -> tuple[list[str], str]:
    """Return the features, and the limits: the word without ``=``."""
    limits = [text for text in texts if "=" not in text]
    if not limits:
        raise ConfigError(f'expected LIMITS after {texts[-1]!r}, such as "1000/minute" or unlimited')
    if len(limits) > 1:
        raise ConfigError(f"expected one word for LIMITS. Write '{' '.join(limits)}' in quotes")
    return [text for text in texts if "=" in text], limits[0]


def commands() -> Iterator[click.Command]:
    """Yield the commands of all operations. Those of overrides are in a group."""
    override = click.Group("override", help=(
        "Change the limits of one client while your application runs.\n\n"
        "The store keeps these overrides. All workers apply a change within reload_interval, 2 seconds by default."
    ))  # fmt: skip
    for operation in OPERATIONS.values():
        if operation.name.startswith("override "):
            override.add_command(command_of(operation))
        else:
            yield command_of(operation)
    yield override
