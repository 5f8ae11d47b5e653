"""The operations of an operator, declared once: commands, the admin API and the dashboard run them by name.

``run`` takes a limiter, the name of an operation, and its arguments as JSON has them::

    answer = run(limiter, "ban", {"rule": "login", "features": {"ip": "192.0.2.7"}, "for": "2h"})
    answer = await arun(limiter, "reset", {"key": decision.key})

``answer.json`` is for programs, ``answer.shown`` and ``answer.notes`` are for people. ``answer.found_wrong`` is true
where nothing was changed: the client was not banned, or had no counts. A mistake in the arguments is a ``ConfigError``,
whose ``path`` is the name of the argument. ``OPERATIONS`` has the operations by name, and ``arguments_of`` the
arguments of each with their meanings. ``read_features`` reads the features of texts such as ``ip=192.0.2.7``.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ..limiter.limiter import Limiter
from ..stores.blocking import Call, twins
from . import clients, traffic
from .answer import Answer, Cell, Line, Table
from .arguments import (
    BanArguments,
    BansArguments,
    ClientArguments,
    InspectArguments,
    NoArguments,
    OverrideArguments,
    OverridesArguments,
    ReportArguments,
    ResetArguments,
    TopArguments,
    arguments_of,
    decode,
    read_features,
)

__all__ = [
    "OPERATIONS",
    "Answer",
    "Cell",
    "Line",
    "AdminOperation",
    "Table",
    "arguments_of",
    "arun",
    "read_features",
    "run",
]

_CLIENT: Final = ("rule", "features")


class AdminOperation(NamedTuple):
    """One operation.

    Args:
        name: Its name, which is that of its command: "override set".
        arguments: The struct that declares its arguments.
        perform: Performs it. The docstring is the help of the command.
        path: Its path in the admin API; "" for none.
        writes: Whether it changes the store.
        words: The arguments that the command takes by position. Others are options.
        examples: The words of its examples. FILE is the settings file, and APP an application.
        reads_log: Whether it reads the traffic log only, and not the store.
    """

    name: str
    arguments: type[msgspec.Struct]
    perform: Callable[[Call, Limiter, Any], Awaitable[Answer]]
    path: str
    writes: bool = False
    words: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    reads_log: bool = False


_OPERATIONS: Final = (
    AdminOperation(
        "inspect",
        InspectArguments,
        clients.inspect,
        "/v1/keys",
        examples=(
            "FILE --feature ip=192.0.2.7",
            "FILE --rejected",
            "FILE --rule login --prefix ip=192.0.2.",
            "FILE --rule login --limit 100000 --json",
            "APP --feature user=alice",
            "APP --rejected --json",
        ),
    ),
    AdminOperation(
        "reset",
        ResetArguments,
        clients.reset,
        "/v1/reset",
        True,
        _CLIENT,
        (
            "FILE login ip=192.0.2.7",
            "FILE api user=alice --json",
            "FILE --key '1|api|sliding-window|1m|{user=alice}'",
            "APP login ip=192.0.2.7",
        ),
    ),
    AdminOperation(
        "ban",
        BanArguments,
        clients.ban,
        "/v1/ban",
        True,
        _CLIENT,
        ("FILE login ip=192.0.2.7", "FILE api user=alice --for 7d --json", "APP login ip=192.0.2.7 --for 1h"),
    ),
    AdminOperation(
        "unban",
        ClientArguments,
        clients.unban,
        "/v1/unban",
        True,
        _CLIENT,
        ("FILE login ip=192.0.2.7", "APP login ip=192.0.2.7 --json"),
    ),
    AdminOperation(
        "bans", BansArguments, clients.bans, "/v1/bans", examples=("FILE", "FILE --rule login --json", "APP")
    ),
    AdminOperation(
        "override set",
        OverrideArguments,
        clients.set_override,
        "/v1/override/set",
        True,
        (*_CLIENT, "limits"),
        (
            "FILE api user=acme 1000/minute --for 7d",
            "FILE api user=acme '1000/minute; 20000/day'",
            "FILE api ip=192.0.2.7 unlimited --for 1h --json",
            "APP login ip=192.0.2.7 50/minute --for 1d",
        ),
    ),
    AdminOperation(
        "override list",
        OverridesArguments,
        clients.list_overrides,
        "/v1/overrides",
        words=_CLIENT,
        examples=("FILE", "FILE api user=acme", "APP --json"),
    ),
    AdminOperation(
        "override remove",
        ClientArguments,
        clients.remove_override,
        "/v1/override/remove",
        True,
        _CLIENT,
        ("FILE api user=acme", "APP login ip=192.0.2.7 --json"),
    ),
    AdminOperation("override clear", NoArguments, clients.clear_overrides, "", True, examples=("FILE", "APP")),
    AdminOperation(
        "report",
        ReportArguments,
        traffic.report,
        "/v1/report",
        examples=("FILE", "FILE --last 7d", "FILE --last 1h --json", "APP"),
        reads_log=True,
    ),
    AdminOperation(
        "top",
        TopArguments,
        traffic.top,
        "/v1/top",
        examples=("FILE", "FILE --rule login --last 1h", "FILE --limit 100 --json", "APP"),
        reads_log=True,
    ),
)

OPERATIONS: Final = {each.name: each for each in _OPERATIONS}
"""The operations by name."""


async def _run(limiter: Limiter, call: Call, name: str, arguments: Mapping[str, Any]) -> Answer:
    """Perform an operation.

    Args:
        limiter: The limiter, or one with the same rules and the same store.
        name: The name of the operation, such as "override set".
        arguments: The arguments as JSON has them. None is a missing one.

    Returns:
        The result.

    Raises:
        ConfigError: An argument is unknown, missing or invalid.
        StoreError: The store is unreachable.
    """
    operation = OPERATIONS[name]
    return await operation.perform(call, limiter, decode(operation.arguments, arguments))


run, arun = twins(_run)
