"""One part of a key: the feature, an attribute of it, the text of its values, and the form that is compared. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import MAX_PREC, Context, Decimal
from enum import Enum
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from urllib.parse import unquote
from uuid import UUID

from ..errors import ConfigError, FeatureTypeError, error_path
from .features import INVALID, UNKNOWN_IP, Features, checked_name
from .forms import comparison_form, counted_value, email_form, normalize_host, path_feature, region_form
from .ip import MAX_ADDRESS, IPAddress, Networks, canonical_ip, counted_ip, widened

EMPTY: Final = (str, bytes)  # an empty value of these types is missing
MAX_VALUE: Final = 64  # bytes; a longer value is replaced by its digest
_RAW: Final = "raw"
_NORMAL: Final[dict[str, Callable[[str], Any]]] = {
    "path": path_feature,
    "host": normalize_host,
    "method": str.upper,
}
_FORMS: Final[dict[str, Callable[[str], Any]]] = {
    "region": region_form,
    "email": email_form,
    "cookie": lambda text: comparison_form(unquote(text)),  # as the frameworks show it that decode percent signs
}
# The middleware writes these itself. Paths, methods, templates and views that differ by case are different.
_EXACT: Final = (*_NORMAL, "endpoint", "view")
_TEXT_ONLY: Final = ("ip", "email", "region", *_EXACT)

_AS = re.compile(r"(.*?)\s+as\s+(.*)", re.DOTALL)
_ATTRIBUTE = re.compile(r"([a-z_][a-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_WIDE_IP = re.compile(r"ip/([1-9]\d{0,2})(?:/([1-9]\d{0,2}))?", re.ASCII)

_WHOLE = re.compile(r"([+-]?\d+(?:_\d+)*)(?:\.0*)?")
_TRUTHS: Final = {"true": "1", "false": "0"}
"""The truth values of JSON, which are numbers in Python."""
_UNROUNDED: Final = Context(prec=MAX_PREC)
"""The context of the thread rounds to 28 digits, so that two long numbers would be one."""


class Part(str):
    """A part as it is written in a key: ``user``, ``user.id``, ``path:id as int``, ``ip/48``. See ``part_of``.

    >>> part_of("user.id").value({"user": {"id": 7}}), part_of("path:id as int").form("007")
    (7, '7')
    """

    __slots__ = ("attribute", "exact", "feature", "form", "name", "shape")
    name: str
    """The name in keys: the text without ``as``."""
    feature: str
    """The feature that it is read from."""
    attribute: str
    """The name of an attribute or item; "" for the value itself."""
    shape: str
    """How a short text in ASCII is compared: "ip", "exact", "text" (in lower case, trimmed), or "" for others."""
    exact: Callable[[Any], Any]
    """Returns the text of a value as it is; ``INVALID`` for a value that cannot be parsed."""
    form: Callable[[Any], Any]
    """Returns the text of a value for counts and deny lists, the same for all its spellings."""

    def value(self, features: Features) -> Any:
        """Return the value of the feature, or of its attribute or item; None where it is missing."""
        value = features.get(self.feature)
        if self.attribute:
            value = inner(value, self.feature, self.attribute)
        return value if value or type(value) not in EMPTY else None

    def written(self, features: Features) -> Any:
        """Return the text of the value as it is; None where it is missing, ``INVALID`` where it is invalid."""
        value = self.value(features)
        return None if value is None else self.exact(value)

    def compared(self, features: Features) -> Any:
        """Return the comparison form of the value; None where it is missing, ``INVALID`` where it is invalid."""
        value = self.value(features)
        return None if value is None else self.form(value)


def inner(value: Any, feature: str, attribute: str) -> Any:
    """Return an attribute or an item of the value of a feature."""
    if value is None or value is INVALID:
        return value
    if isinstance(value, Mapping):
        return value.get(attribute)
    with suppress(AttributeError):
        return getattr(value, attribute)
    with suppress(TypeError, LookupError):  # rows of some databases have items only
        return value[attribute]
    problem = f"the feature {feature!r} is of type {type(value).__name__}, which has no attribute {attribute!r}"
    raise FeatureTypeError(f'{problem}. Name another one in the key: "{feature}.NAME"')


def part_of(text: object, in_key: bool = True) -> Part:
    """Parse a part. ``ConfigError`` for anything else, and for ``ip/48`` outside a key.

    >>> part_of("post:id  as int"), part_of("user.id"), part_of("ip/48").feature
    ('form:id as int', 'user.id', 'ip')
    """
    part = _parse_text(text.strip() if isinstance(text, str) else checked_name(text))
    if not in_key and part.name.startswith("ip/"):
        raise ConfigError(f'expected "ip", whose values may be networks; got {text!r}')
    return part


@lru_cache(10_000)
def _parse_text(text: str) -> Part:
    typed = _AS.fullmatch(text)
    written, kind = (typed[1], typed[2]) if typed else (text, "")
    if kind and kind != _RAW and kind not in CANONICAL:
        raise ConfigError(f'expected "{written} as int", "{written} as uuid" or "{written} as raw"; got {text!r}')
    name, feature, attribute = _place(written)
    if kind and feature == "ip":
        raise ConfigError(f"{name!r} is compared as an IP address. Leave out 'as {kind}'")
    if kind in CANONICAL and name in _TEXT_ONLY:
        raise ConfigError(f"{name!r} is never a number or a UUID. Leave out 'as {kind}'")
    exact: Callable[[str], Any] | None = None  # where it is not the text itself
    form: Callable[[str], Any] | None = None  # where it is not the exact text
    if feature == "ip":
        exact = _client if name == "ip" else partial(_client_within, *ip_prefixes(name))
    elif kind in CANONICAL:
        exact = partial(canonical, kind)
    elif kind != _RAW:
        exact = _NORMAL.get(feature)
        form = None if feature in _EXACT else _FORMS.get(feature.partition(":")[0], comparison_form)
    shape = "ip" if exact is _client else "exact" if exact is form is None else "text" * (form is comparison_form)
    part = Part(f"{name} as {kind}" if kind else name)
    part.name, part.feature, part.attribute, part.shape = name, feature, attribute, "" if attribute else shape
    part.exact = partial(text_of, name) if exact is None else partial(_apply_form, exact, name)
    part.form = part.exact if form is None else partial(_apply_form, form, name)
    return part


def _place(name: str) -> tuple[str, str, str]:
    """Return the canonical name of a part without ``as``, its feature, and the attribute."""
    if name.startswith("ip/"):
        ipv4, ipv6 = ip_prefixes(name) if _WIDE_IP.fullmatch(name) else (0, 0)
        if not (1 <= ipv4 <= 32 and 1 <= ipv6 <= 128):
            raise ConfigError(f'expected "ip/24" (IPv4), "ip/48" (IPv6) or "ip/24/48"; got {name!r}')
        return name, "ip", ""
    inside = _ATTRIBUTE.fullmatch(name)
    if inside is None:
        feature = checked_name(name)
        return feature, feature, ""
    if inside[1] in _TEXT_ONLY:
        raise ConfigError(f"{inside[1]!r} is a text and has no attributes; got {name!r}")
    feature = checked_name(inside[1])
    return f"{feature}.{inside[2]}", feature, inside[2]


def ip_prefixes(part: str) -> tuple[int, int]:
    """Return the bits of IPv4 and of IPv6 addresses that a part counts by. One number below 32 is that of IPv4.

    >>> ip_prefixes("ip/24"), ip_prefixes("ip/48"), ip_prefixes("ip/24/48"), ip_prefixes("ip")
    ((24, 128), (32, 48), (24, 48), (32, 128))
    """
    numbers = [int(number) for number in part.split("/")[1:]]
    if len(numbers) == 1:
        numbers = [numbers[0], 128] if numbers[0] < 32 else [32, numbers[0]]
    ipv4, ipv6 = numbers or (32, 128)
    return ipv4, ipv6


def spellings(part: str, value: str) -> tuple[str, ...]:
    """Return a value from the settings as written, and in the middleware's form when that differs.

    The method GET is HEAD, too, because every framework serves HEAD with the view for GET.

    Raises ``ConfigError`` for a value that the part never has.
    """
    place = part_of(part)
    written = counted_value(place.feature, value)
    if place.feature == "region":
        written = value.upper()
    form = place.exact(written)
    if form is INVALID:
        raise ConfigError(f"{value!r} is never a value of {part!r}")
    others = ("HEAD",) if place.feature == "method" and form == "GET" else ()
    return tuple(dict.fromkeys((value, form, *others)))


def comparison_forms(part: Part, values: frozenset[str] | Networks) -> frozenset[str] | Networks:
    """Return the comparison forms of spellings from the settings. Networks find every form of an address."""
    return values if isinstance(values, Networks) else frozenset(map(part.form, values))


def as_counted(features: Features, ipv6_prefix: int = 64, has_own_ip: bool = False) -> dict[str, Any]:
    """Return the features of a client as its requests have them in a middleware.

    The network of one client is taken, because tables show it. An application that ``has_own_ip`` counts any text.

    >>> as_counted({"ip": "2001:db8:1:2:3::4", "email": "Ann@Example.com", "user": "Ann"})
    {'ip': '2001:db8:1:2::/64', 'email': 'ann@example.com', 'user': 'Ann'}
    """
    counted = {name: counted_value(name, value) for name, value in features.items()}
    ip = counted.get("ip")
    if isinstance(ip, str | IPAddress) and ip not in ("", UNKNOWN_IP) and not has_own_ip:
        with error_path("ip"):
            counted["ip"] = counted_ip(str(ip)[:MAX_ADDRESS], ipv6_prefix)
    return counted


def _apply_form(form: Callable[[str], Any], name: str, value: Any) -> Any:
    """Return the form of the text of a value."""
    if type(value) is not str and (value := text_of(name, value)) is INVALID:
        return INVALID
    return form(value)


def _client(text: str) -> str:
    """Return the text of a client: an IPv4 address in IPv6 form becomes IPv4."""
    return canonical_ip(text) if ":" in text and len(text) <= MAX_VALUE else text


def _client_within(ipv4_prefix: int, ipv6_prefix: int, text: str) -> str:
    return widened(text, ipv4_prefix, ipv6_prefix) if len(text) <= MAX_VALUE else text


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
        attribute = name if "." in name or ":" in name else f"{name}.id"
        problem = f"the feature {name!r} is of type {type(value).__name__}, which has no stable text"
        fix = f"Return a str, int, bool, UUID, Enum, Decimal or bytes, or name an attribute in the key: {attribute!r}"
        raise FeatureTypeError(f"{problem}. {fix}")
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


def parameter(value: Any) -> Any:
    """Return the value of a route parameter. An object that a converter returns becomes its own text, if any.

    >>> [parameter(type("Item", (), {name: lambda item: "a"})()) for name in ("__str__", "__repr__")]
    ['a', 'a']
    """
    kind: Any = type(value)
    has_text = kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__
    return str(value) if value is not None and has_text and not _is_known(value) else value


def _is_known(value: object) -> bool:
    return isinstance(value, tuple(_TEXTS))


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
