"""The arguments of the operations, declared once: types, meanings and defaults for commands, HTTP and forms."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct, field

from ..errors import ConfigError, error_path
from ..http.request import group_values, only_value
from ..keys.features import INVALID, Features, checked_name, is_email
from ..keys.forms import normalized_email
from ..keys.parts import Part, checked_part, part_of
from ..quota import parse_duration
from ..rules.declaration import check_names, check_type

_Arguments = TypeVar("_Arguments", bound=Struct)
_MISSING: Final = {
    "rule": 'Send the name of a rule, such as "login"',
    "features": 'Send the features of the key of the rule, such as {"ip": "192.0.2.7"}',
    "limits": 'Send limits, such as "1000/minute" or "unlimited"',
}
_PERIODS: Final = ("for", "last")
"""The arguments that are durations of more than 0."""

_WORD: Final = {"is_word": True}
"""Marks an argument that a command takes by position."""
_RULE: Final = Meta(title="RULE", description="The name of the rule.", extra=_WORD)
_OR_ALL: Final = Meta(
    title="RULE", description="The name of the rule. Default: all rules.", extra=_WORD | {"or_all": True}
)
_FEATURES: Final = Meta(title="NAME=VALUE", description="The features of the key of the rule.", extra=_WORD)
_LIMITS: Final = Meta(title="LIMITS", description='Limits such as "1000/minute", or "unlimited".', extra=_WORD)
_ONLY_RULE: Final = Meta(title="NAME", description="Show only the clients of this rule.")
_LAST: Final = Meta(title="DURATION", description="The time range up to now.")


class Argument:
    """One argument: its type, its meaning and its default, which is None where the caller must give it."""

    def __init__(self, hint: Any, is_required: bool, default: Any) -> None:
        self.hint = hint
        self.meta: Meta = hint.__metadata__[0]
        self.is_word = "is_word" in (self.meta.extra or {})
        self.or_all = "or_all" in (self.meta.extra or {})
        """Whether the first NAME=VALUE may take its place in the words of a command."""
        self.is_required = is_required
        self.default = None if default is NODEFAULT else default


class NoArguments(Struct):
    """The arguments of an operation on all clients."""


class ClientArguments(Struct, kw_only=True):
    """The arguments that name one client of a rule."""

    rule: Annotated[str, _RULE]
    features: Annotated[Mapping[str, Any], _FEATURES]


class InspectArguments(Struct, kw_only=True):
    """The arguments that select the keys of a store. By default, the first keys are shown."""

    rule: Annotated[str | None, _ONLY_RULE] = None
    features: Annotated[
        Mapping[str, Any],
        Meta(
            title="NAME=VALUE",
            description="Show only the client with this value, such as ip=192.0.2.7. Repeat it to name more.",
        ),
    ] = {}
    prefix: Annotated[
        str,
        Meta(
            title="TEXT",
            description="Show only clients with a value that starts with this text, such as ip=192.0.2.",
        ),
    ] = ""
    rejected: Annotated[bool, Meta(description="Show only clients whose next request would be rejected.")] = False
    limit: Annotated[int, Meta(ge=1, le=100_000, description="Maximum number of keys to show.")] = 100


class ResetArguments(Struct, kw_only=True):
    """The arguments that name one client: by a rule and features, or by a key."""

    rule: Annotated[str | None, _RULE] = None
    features: Annotated[Mapping[str, Any] | None, _FEATURES] = None
    key: Annotated[
        str | None,
        Meta(title="TEXT", description="The key of the client, instead of RULE and NAME=VALUE."),
    ] = None


class UnbanArguments(Struct, kw_only=True):
    """The arguments that name one client of a rule, or of all rules."""

    rule: Annotated[str | None, _OR_ALL] = None
    features: Annotated[Mapping[str, Any], _FEATURES]


class BanArguments(UnbanArguments, kw_only=True):
    """The arguments of a ban."""

    for_: Annotated[
        str | None,
        Meta(title="DURATION", description="The length, such as 30m or 7d. Default: `for` of the rule, or no end."),
    ] = field(default=None, name="for")


class BansArguments(Struct, kw_only=True):
    """The arguments that select bans. By default, the first ones are shown."""

    rule: Annotated[str | None, Meta(title="NAME", description="Show the bans of this rule only.")] = None
    limit: Annotated[int, Meta(ge=1, le=100_000, description="Maximum number of bans to show.")] = 100


class OverrideArguments(ClientArguments, kw_only=True):
    """The arguments of an override."""

    limits: Annotated[str, _LIMITS]
    for_: Annotated[
        str | None,
        Meta(title="DURATION", description="The length of the override, such as 12h or 7d. Default: no end."),
    ] = field(default=None, name="for")


class OverridesArguments(Struct, kw_only=True):
    """The arguments that select overrides. By default, all are shown."""

    rule: Annotated[str | None, _RULE] = None
    features: Annotated[Mapping[str, Any], _FEATURES] = {}


class ReportArguments(Struct, kw_only=True):
    """The arguments that select a time range of the traffic log."""

    last: Annotated[str, _LAST] = "24h"


class TopArguments(ReportArguments, kw_only=True):
    """The arguments that select clients of the traffic log."""

    rule: Annotated[str | None, _ONLY_RULE] = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="Maximum number of clients to show.")] = 10


@cache
def arguments_of(declaration: type[Struct]) -> Mapping[str, Argument]:
    """Return the arguments that a struct declares, by name."""
    hints = get_type_hints(declaration, include_extras=True)
    fields = msgspec.structs.fields(declaration)
    return {each.encode_name: Argument(hints[each.name], each.required, each.default) for each in fields}


def decode(declaration: type[_Arguments], fields: Mapping[str, Any]) -> _Arguments:
    """Return the arguments of an operation.

    Args:
        declaration: The struct that declares them.
        fields: Their values by name, as JSON has them. None is a missing value.

    Raises:
        ConfigError: A field is unknown or missing, or has a value of another type. Its path is the name of the field.
    """
    known = arguments_of(declaration)
    check_names(fields, known, "field")
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in given.items():
        with error_path(name):
            _check(name, value, known[name].hint)
    for name, each in known.items():
        if each.is_required and name not in given:
            raise missing(name)
    if "features" in given:
        with error_path("features"):
            given["features"] = {checked_name(name): value for name, value in given["features"].items()}
    return msgspec.convert(given, declaration)


def of_texts(declaration: type[Struct], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a query with numbers and flags instead of texts. A flag without a value is true."""
    known = arguments_of(declaration)
    return {name: _of_text(value, known[name].hint) if name in known else value for name, value in fields.items()}


def _of_text(value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert("true" if value == "" and hint.__origin__ is bool else value, hint, strict=False)
    except msgspec.ValidationError:  # which decode describes
        return value


def missing(name: str) -> ConfigError:
    """Return the error for a missing argument."""
    return ConfigError(f"is missing. {_MISSING[name]}", name)


def _check(name: str, value: Any, hint: Any) -> None:
    try:
        check_type(value, hint)
    except ConfigError as error:  # of a settings file, which has tables
        raise ConfigError(error.message.replace("a table", "an object"), error.path) from None
    if name in _PERIODS and not parse_duration(value):
        raise ConfigError(f"expected more than 0; got {value!r}")


def words_of(features: Features) -> list[str]:
    """Return features as the words of a command."""
    words = []
    for name, value in features.items():
        pairs = {f"{name}.{inner}": text for inner, text in value.items()} if isinstance(value, dict) else {name: value}
        words += [f"{name}={'...' if text is INVALID else text}" for name, text in pairs.items()]
    return words


def word_of(part: Part) -> str:
    """Return the name that a command gives to a part of a key: ``ip`` for ``ip/48``.

    >>> word_of(part_of("user.id")), word_of(part_of("path:id as int")), word_of(part_of("ip/48"))
    ('user.id', 'path:id', 'ip')
    """
    return f"{part.feature}.{part.attribute}" if part.attribute else part.feature


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
        name = checked_part(name, in_key=False)
        if is_email(name) and (value := normalized_email(value)) is INVALID:
            raise ConfigError("email has more than 320 characters")
        given.append((name, value))
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
