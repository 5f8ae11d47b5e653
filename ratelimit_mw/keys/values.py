"""The types that values of features may have, and the text of each value. Pure."""

import re
from collections.abc import Callable
from decimal import MAX_PREC, Context, Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from uuid import UUID

from ..errors import FeatureTypeError
from .features import INVALID
from .forms import comparison_form

_WHOLE = re.compile(r"([+-]?\d+(?:_\d+)*)(?:\.0*)?")
_TRUTHS: Final = {"true": "1", "false": "0"}
"""The truth values of JSON, which are numbers in Python."""
_UNROUNDED: Final = Context(prec=MAX_PREC)
"""The context of the thread rounds to 28 digits, so that two long numbers would be one."""
EXPECTED: Final = "Return a str, int, bool, UUID, Enum, Decimal or bytes"


def text_of(name: str, value: object) -> Any:
    """Return the text of a value; ``INVALID`` for a number or bytes without one.

    Raises ``FeatureTypeError`` for other types. Their text may change, and each text would have its own count.

    >>> text_of("user", 7), text_of("user", True), text_of("user", b"ann"), text_of("user", Decimal("7.0"))
    ('7', 'true', 'ann', '7')
    """
    if type(value) is str or value is INVALID:
        return value
    text = _TEXTS.get(type(value)) or next((text for kind, text in _TEXTS.items() if isinstance(value, kind)), None)
    if text is None:
        raise FeatureTypeError(_problem(name, type(value)))
    try:
        return text(value)
    except (ValueError, ArithmeticError):  # more digits than Python writes
        return INVALID


def canonical(kind: str, text: str) -> Any:
    """Return a text as the canonical text of a number or a UUID; ``INVALID`` where it is none.

    >>> canonical("int", " 007.0 "), canonical("uuid", "{12345678123456781234567812345678}")
    ('7', '12345678-1234-5678-1234-567812345678')
    """
    form = comparison_form(text)
    try:
        return INVALID if form is INVALID else CANONICAL[kind](form)
    except ValueError:
        return INVALID


class Conversions:
    """How a framework converts the texts of requests to a view, by feature. Frameworks without types convert none."""

    def apply(self, feature: str, value: Any) -> Any:
        """Return the value of a feature as the framework converts it; one that is missing or invalid as it is."""
        return value

    def declares(self, feature: str) -> bool:
        """Return whether the view declares the type of a feature, which may be text."""
        return False


NO_CONVERSIONS: Final = Conversions()


def lacks_attribute(name: str, kind: type, attribute: str) -> FeatureTypeError:
    """Return the error for an attribute that the values of a feature do not have."""
    message = f"the feature {name!r} is of type {kind.__name__}, which has no attribute {attribute!r}"
    return FeatureTypeError(f'{message}. Name another one in the key: "{name}.NAME"')


def parameter(value: Any) -> Any:
    """Return the value of a route parameter. An object that a converter returns becomes its own text, if any."""
    kind: Any = type(value)
    has_text = kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__
    return str(value) if value is not None and has_text and not _is_known(value) else value


def _is_known(value: object) -> bool:
    return isinstance(value, tuple(_TEXTS))


def _problem(name: str, kind: type) -> str:
    attribute = name if "." in name or ":" in name else f"{name}.id"
    return (
        f"the feature {name!r} is of type {kind.__name__}, which has no stable text. {EXPECTED},"
        f" or name an attribute in the key: {attribute!r}"
    )


def _enum(member: Enum) -> Any:
    return text_of("", member.value) if _is_known(member.value) else member.name


def _bytes(value: bytes) -> str:
    """UTF-8 is text. Other bytes, such as digests, are shown in hexadecimal."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def _decimal(value: Decimal) -> Any:
    return str(value.normalize(_UNROUNDED) or 0) if value.is_finite() else INVALID


def _whole(text: str) -> str:
    match = _WHOLE.fullmatch(_TRUTHS.get(text, text))
    if match is None:
        raise ValueError(text)
    return str(int(match[1]))


_TEXTS: Final[dict[type, Callable[[Any], Any]]] = {
    Enum: _enum,
    bool: lambda value: "true" if value else "false",
    str: str.__str__,
    int: int.__repr__,
    UUID: str,
    IPv4Address: str,
    IPv6Address: str,
    Decimal: _decimal,
    bytes: _bytes,
}
CANONICAL: Final[dict[str, Callable[[str], str]]] = {"int": _whole, "uuid": lambda text: str(UUID(text))}
"""The types that a key may name, with the canonical text of a value."""
