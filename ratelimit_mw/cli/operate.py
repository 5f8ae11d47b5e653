"""The commands of the operations, such as ``ban`` and ``override set``, and the limiter and the log that they open."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from ..clock import SECOND
from ..errors import ConfigError, StoreError
from ..limiter.limiter import Limiter
from ..operations import OPERATIONS, AdminOperation, Answer, read_features, run
from ..operations.arguments import Argument, decode
from ..stores import Store
from ..stores.url import redacted_url
from ..testmode import wall_clock
from ..traffic import TrafficLog
from ..traffic.store import parse_log_url
from .output import Failure, examples_of, json_flag, progress
from .source import Source, SourceCommand

_TIMEOUT_US: Final = 3 * SECOND
"""The shortest time that a call may wait for the store. A command has more time than a request."""
_IN_MEMORY: Final = "{} memory:// is in each process of your application, so a command cannot reach it. Set {}"


def command_of(operation: AdminOperation) -> SourceCommand:
    """Return the command of an operation. Its options and its help are those of the declaration."""

    def perform(source: Source, **values: Any) -> Answer:
        fields = _fields(operation, source, values)
        with open_limiter(source, operation.reads_log) as limiter, progress("working", None):
            return run(limiter, operation.name, fields)

    params = [_param(operation, name, each) for name, each in operation.arguments.items()]
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
        return click.Argument([name], metavar="[NAME=VALUE]...", nargs=-1)
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


def _fields(operation: AdminOperation, source: Source, values: dict[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of an operation. A mistake in the words of the command is misuse."""
    if "=" in (values.get("limits") or ""):  # a feature, without limits behind it
        raise click.BadParameter(f'expected LIMITS after {values["limits"]!r}, such as "1000/minute" or unlimited')
    try:
        if operation.takes_all_rules and "=" in (values["rule"] or ""):
            values["features"], values["rule"] = (values["rule"], *values["features"]), None
        if "features" in values:
            values["features"] = source.as_counted(read_features(values["features"]))
        decode(operation.arguments, values)
    except ConfigError as error:
        if error.path not in operation.arguments:  # of a feature
            raise click.BadParameter(str(error)) from None
        raise click.BadParameter(error.message, param_hint=f"'--{error.path}'") from None
    return values


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


@contextmanager
def open_limiter(source: Source, with_log: bool = False, may_be_memory: bool = False) -> Iterator[Limiter]:
    """Open a limiter with the rules and the store of a source, or with its traffic log and no store.

    Its calls may wait longer than those of requests.

    Raises:
        Failure: The store fails, or is an LMDB that does not exist or belongs to another user. ``memory://``, which no
            other process can reach, is one too, unless it ``may_be_memory``.
    """
    settings, own = source.settings, source.http_limiter.limiter if source.http_limiter else None
    store, log = ("memory://", settings.traffic_log) if with_log else (settings.store, None)
    if own and not with_log and (not isinstance(store, str) or redacted_url(store) != redacted_url(own.store)):
        store = own.store  # an object of the application
    if not (with_log or may_be_memory) and redacted_url(store).startswith(("memory:", "MemoryStore")):
        shared = "a store that processes share, such as redis://localhost:6379/0, or use the dashboard or the admin API"
        raise Failure(_IN_MEMORY.format("the store", shared))
    settings = settings.replace(store_timeout=max(settings.store_timeout, _TIMEOUT_US), observers=(), traffic_log=None)
    limiter = Limiter((), store, own.clocks.own if own else None, settings)
    limiter.reloads.rules = source.rules
    try:
        _check_files(limiter.store)
        limiter.traffic_log = None if log is None else open_log(log)
        yield limiter
    except StoreError as error:
        if with_log:
            raise  # it names the log
        raise Failure(f"{redacted_url(store)} failed: {error}. `check --connect` examines its servers") from error
    finally:
        limiter.close()


def open_log(url: str, create: bool = False) -> TrafficLog:
    """Open the log of a URL, with its own retention. Raises ``Failure`` for one in memory."""
    if parse_log_url(url).family == "memory":
        raise Failure(_IN_MEMORY.format("the log", "a log that processes share, such as sqlite:///traffic.db"))
    return TrafficLog.open(url, wall_clock, create)


def _check_files(store: Store) -> None:
    """Raise ``Failure`` for an LMDB that is missing, or of another user: files of this user would lock that user out.

    LMDB creates a missing environment, and a new one after a crash of the machine.
    """
    path = getattr(store, "path", None)
    if not store.name.startswith("lmdb:") or path is None:
        return
    try:
        owner = (Path(path) / "data.mdb").stat().st_uid
    except FileNotFoundError:
        hint = "Check the path, or start the application that creates it"
        raise Failure(f"{store.name} does not exist. {hint}") from None
    if owner != os.geteuid():
        raise Failure(f"{store.name} belongs to the user {owner}. Run the command as this user: sudo -u '#{owner}' ...")
