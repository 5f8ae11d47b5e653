"""``operation``: declares a coroutine as an operation of an operator, with the words of its command and its path."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec

from ..limiter.limiter import Limiter
from ..stores.blocking import Call
from .answer import Answer
from .arguments import arguments_of

Perform = Callable[[Call, Limiter, Any], Awaitable[Answer]]
_Perform = TypeVar("_Perform", bound=Perform)


class AdminOperation(NamedTuple):
    """One operation.

    Args:
        name: Its name, which is that of its command: "override set".
        arguments: The struct that declares its arguments.
        perform: Performs it. The docstring is the help of the command.
        path: Its path in the admin API; "" for none.
        examples: The words of its examples. FILE is the settings file, and APP an application.
        writes: Whether it changes the store.
        reads_log: Whether it reads the traffic log only, and not the store.
    """

    name: str
    arguments: type[msgspec.Struct]
    perform: Perform
    path: str
    examples: tuple[str, ...]
    writes: bool
    reads_log: bool

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments that the command takes by position. Others are options."""
        return tuple(name for name, each in arguments_of(self.arguments).items() if each.is_word)

    @property
    def takes_all_rules(self) -> bool:
        """Whether the command may have the features of a client without a rule."""
        return any(each.or_all for each in arguments_of(self.arguments).values())


OPERATIONS: Final[dict[str, AdminOperation]] = {}
"""The operations by name."""


def operation(
    name: str, path: str, *examples: str, writes: bool = False, reads_log: bool = False
) -> Callable[[_Perform], _Perform]:
    """Declare a coroutine as an operation. The type of its last parameter declares the arguments."""

    def declare(perform: _Perform) -> _Perform:
        *_, arguments, _ = get_type_hints(perform).values()
        OPERATIONS[name] = AdminOperation(name, arguments, perform, path, examples, writes, reads_log)
        return perform

    return declare
