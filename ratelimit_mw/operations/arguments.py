"""``operation`` declares a coroutine as an operation. Its parameters are arguments of commands, HTTP and forms."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import Parameter, signature
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from ..errors import ConfigError, error_path
from ..http.request import group_values, only_value
from ..keys.features import INVALID, checked_name
from ..keys.forms import counted_value
from ..keys.parts import part_of
from ..quota import parse_duration
from ..rules.declaration import check_names, check_type
from .answer import Answer

Perform = Callable[..., Awaitable[Answer]]
_Perform = TypeVar("_Perform", bound=Perform)

_OR_ALL: Final = Meta(title="RULE", description="The name of the rule. Default: all rules.")
_END: Final = Meta(title="DURATION", description="The length, such as 12h or 7d. Default: no end.")
RuleName = Annotated[str, Meta(title="RULE", description="The name of the rule.")]
RuleOrAll = Annotated[str | None, _OR_ALL]
OnlyRule = Annotated[str | None, Meta(title="NAME", description="Show only the clients of this rule.")]
Client = Annotated[Mapping[str, Any], Meta(title="NAME=VALUE", description="The features of the key of the rule.")]
Limits = Annotated[str, Meta(title="LIMITS", description='Limits such as "1000/minute", or "unlimited".')]
Length = Annotated[str | None, _END]
Last = Annotated[str, Meta(title="DURATION", description="The time range up to now.")]
Most = Annotated[int, Meta(ge=1, le=100_000, description="Maximum number of rows to show.")]

_MISSING: Final = {
    "rule": 'Send the name of a rule, such as "login"',
    "features": 'Send the features of the key of the rule, such as {"ip": "192.0.2.7"}',
    "limits": 'Send limits, such as "1000/minute" or "unlimited"',
}
_PERIODS: Final = ("for", "last")
"""The arguments that are durations of more than 0."""


class Argument(NamedTuple):
    """One argument: its type with its meaning, and whether a command takes it by position. Others are options."""

    hint: Any
    is_word: bool
    default: Any

    @property
    def meta(self) -> Meta:
        return self.hint.__metadata__[0]  # type: ignore[no-any-return]

    @property
    def is_required(self) -> bool:
        return self.default is None and NoneType not in get_args(get_args(self.hint)[0])


Arguments = Mapping[str, Argument]


def arguments_of(perform: Callable[..., Any]) -> Arguments:
    """Return the arguments of a function by name: its parameters that have a meaning. One may end with _."""
    hints, found = get_type_hints(perform, include_extras=True), {}
    for name, each in signature(perform).parameters.items():
        if hasattr(hints[name], "__metadata__"):
            default = None if each.default is Parameter.empty else each.default
            found[name.rstrip("_")] = Argument(hints[name], each.kind is not Parameter.KEYWORD_ONLY, default)
    return found


class AdminOperation(NamedTuple):
    """One operation.

    Args:
        name: Its name, which is that of its command: "override set".
        arguments: Its arguments.
        perform: Performs it. The docstring is the help of the command.
        path: Its path in the admin API; "" for none.
        examples: The words of its examples. FILE is the settings file, and APP an application.
        writes: Whether it changes the store.
        reads_log: Whether it reads the traffic log only, and not the store.
    """

    name: str
    arguments: Arguments
    perform: Perform
    path: str
    examples: tuple[str, ...]
    writes: bool
    reads_log: bool

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments that the command takes by position."""
        return tuple(name for name, each in self.arguments.items() if each.is_word)

    @property
    def takes_all_rules(self) -> bool:
        """Whether the command may have the features of a client without a rule."""
        return any(each.meta is _OR_ALL for each in self.arguments.values())


OPERATIONS: Final[dict[str, AdminOperation]] = {}
"""The operations by name."""


def operation(
    name: str, path: str, *examples: str, writes: bool = False, reads_log: bool = False
) -> Callable[[_Perform], _Perform]:
    """Declare a coroutine as an operation."""

    def declare(perform: _Perform) -> _Perform:
        OPERATIONS[name] = AdminOperation(name, arguments_of(perform), perform, path, examples, writes, reads_log)
        return perform

    return declare


def decode(arguments: Arguments, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a function from fields as JSON has them. None is a missing value.

    The path of a ``ConfigError`` is the name of the field.
    """
    check_names(fields, arguments, "field")
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in given.items():
        with error_path(name):
            check_type(value, arguments[name].hint)
            if name in _PERIODS and not parse_duration(value):
                raise ConfigError(f"expected more than 0; got {value!r}")
    for name, each in arguments.items():
        if each.is_required and name not in given:
            raise ConfigError(f"is missing. {_MISSING[name]}", name)
    if "features" in given:
        with error_path("features"):
            given["features"] = {checked_name(name): value for name, value in given["features"].items()}
    parameters = {name: given.get(name, each.default) for name, each in arguments.items()}
    return {"for_" if name == "for" else name: value for name, value in parameters.items()}


def of_texts(arguments: Arguments, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a query with numbers and flags instead of texts. A flag without a value is true."""
    return {
        name: _of_text(value, arguments[name].hint) if name in arguments else value for name, value in fields.items()
    }


def _of_text(value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert("true" if value == "" and hint.__origin__ is bool else value, hint, strict=False)
    except msgspec.ValidationError:  # which decode describes
        return value


def read_features(texts: Iterable[str]) -> dict[str, Any]:
    """Return the features of texts such as ``user=alice``.

    A feature that occurs twice with different values is invalid, as in a request.

    Raises:
        ConfigError: A text is no NAME=VALUE, or names no feature.
    """
    given: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"expected NAME=VALUE; got {text!r}")
        name = part_of(name, in_key=False)
        written = counted_value(name, value)
        if written is INVALID:
            raise ConfigError("email has more than 320 characters")
        given.append((name, written))
    features: dict[str, Any] = {}
    for name, values in sorted(group_values(given).items()):
        part, found = part_of(name), only_value(values)
        if not part.attribute:
            features[part.feature] = found
        elif isinstance(inside := features.setdefault(part.feature, {}), dict):
            inside[part.attribute] = found
        else:
            raise ConfigError(f"set either {part.feature} or {name}")
    return features
