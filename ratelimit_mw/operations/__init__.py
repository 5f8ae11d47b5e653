"""The operations of an operator, declared once: commands, the admin API and the dashboard run them by name.

``run`` takes a limiter, the name of an operation, and its arguments as JSON has them. None is a missing one::

    answer = run(limiter, "ban", {"rule": "login", "features": {"ip": "192.0.2.7"}, "for": "2h"})
    answer = await arun(limiter, "reset", {"rule": "login", "features": {"ip": "192.0.2.7"}})

``answer.json`` is for programs, ``answer.shown`` and ``answer.notes`` are for people. ``answer.found_wrong`` is true
where nothing was changed: the client was not banned, or had no counts. A mistake in the arguments is a ``ConfigError``,
whose ``path`` is the name of the argument. ``OPERATIONS`` has the operations by name, with their arguments.
``read_features`` reads the features of texts such as ``ip=192.0.2.7``.
"""

from collections.abc import Mapping
from typing import Any

from ..limiter.limiter import Limiter
from ..runtime.blocking import Call, twins
from . import clients, inspect, overrides, traffic  # noqa: F401 - they declare the operations
from .answer import Answer, Cell, Line, Table
from .arguments import OPERATIONS, AdminOperation, decode, read_features

__all__ = ["OPERATIONS", "AdminOperation", "Answer", "Cell", "Line", "Table", "arun", "read_features", "run"]


async def _run(limiter: Limiter, call: Call, name: str, arguments: Mapping[str, Any]) -> Answer:
    """Perform an operation. The limiter may be another one with the same rules and the same store."""
    operation = OPERATIONS[name]
    decoded = decode(operation.arguments, arguments)
    if not operation.reads_log:
        await call(limiter, "start")  # to connect may take longer than the time budget of a call
    return await operation.perform(call, limiter, **decoded)


run, arun = twins(_run)
