"""The forms in which texts and paths are counted and compared: one for all spellings of one value. Pure.

Forms, databases and frameworks strip, normalize and fold the texts of clients. In doubt, two spellings are merged: two
users who share a count are an inconvenience, but one user with a thousand spellings has no limit.

Some servers, frameworks and proxies drop control characters and invalid bytes of a path, or end the path there. Some
resolve dot segments, or decode twice. Some take a backslash or an encoded slash for a slash. So a path may have several
readings, which may be routed to different places.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache, partial
from ipaddress import IPv6Address
from math import ceil
from typing import Any, Final
from urllib.parse import unquote

from .features import INVALID, Invalid, is_email

_KEPT: Final = 1024
_MAX_TEXT: Final = 320
"""The maximum number of characters of an email address, and of a text that is not ASCII, which would take long."""
_MAX_HOST: Final = 270
"""The characters of the longest name, with a dot and a port."""

# Unicode's Default_Ignorable_Code_Point: invisible characters that domain names drop, such as soft hyphens and joiners.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_DOTLESS_I: Final = "\u0131"
"""Databases compare texts in capitals, and its capital is I. The same holds for i with a dot above, in lower case."""
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_DROPPED: Final = frozenset(("Cc", "Cf", "Mn", "Mc", "Me"))  # control and format characters, combining marks
_SUBSCRIPT: Final = "\u0345"
_LETTER = re.compile(r"\bLATIN (?:SMALL |CAPITAL )?(?:LETTER|LIGATURE) (?:[A-Z-]+ )*?([A-Z]{1,2})\b")
"""The names of characters that the collations of MySQL and MariaDB take for letters of ASCII, such as a squared A."""
_OTHERS: Final = {
    **dict.fromkeys("\u0640\u06de\u07fa\u0824\u0828\u180a\u1cd3\u1cf2\u1cf3\ufe73", ""),
    **dict(zip("\u00f0\u1dd9\ua79b\ua79d\ua79f\ua7c1", "ddaoua", strict=True)),
}
"""Characters that they ignore, such as the Arabic tatweel, and letters whose names do not show the letter of ASCII."""
_HOST = re.compile(r"(?:([a-z0-9_][a-z0-9_.-]*)|\[([0-9a-f:.]{2,45})\])(?::[0-9]+)?", re.ASCII)
_DOTS = re.compile(r"(?<![.\s])[.\s]+\Z")  # the lookbehind scans a long row of dots once
_A_LABEL = re.compile(r"(?<=[.@])xn--[^.@]+")
# A decoded A-label must be one label, and must not be an A-label again.
_DECODED_LABEL = re.compile(r"(?!xn--)[^.@\s\u3002]+")


def comparison_form(text: str) -> Any:
    r"""Return the form in which a text is counted and compared; ``INVALID`` for a long text that is not ASCII.

    Spaces at the ends, case, width, ligatures, accents and invisible characters do not matter.

    >>> comparison_form(" Ann\t"), comparison_form("\uff21\u00f1n\u200b")
    ('ann', 'ann')
    """
    if text.isascii():
        return (text if text.isprintable() else _CONTROL.sub("", text)).lower().strip()
    return _folded(text) if len(text) <= _MAX_TEXT else INVALID


@lru_cache(_KEPT)
def _folded(text: str) -> str:
    """Fold case twice: some marks fold to letters, and some symbols consist of capitals."""
    text = unicodedata.normalize("NFC", _INVISIBLE.sub("", text)).replace(_SUBSCRIPT, "")  # one without its letter
    folded = _without_marks(_without_marks(text.casefold()).casefold())
    return unicodedata.normalize("NFKC", folded).strip()


def _without_marks(text: str) -> str:
    """Decompose a text and drop what is not shown alone. Marks go first: sorting a long row of them is slow."""
    return _visible(unicodedata.normalize("NFKD", _visible(text)))


def _visible(text: str) -> str:
    return "".join(map(_plain, _INVISIBLE.sub("", text)))


@lru_cache(_KEPT)
def _plain(char: str) -> str:
    """Return a character as databases compare it: a letter or digit of ASCII, "" for a mark."""
    if char in _OTHERS:
        return _OTHERS[char]
    if letters := _LETTER.search(unicodedata.name(char, "")):
        return letters[1].lower()
    category = unicodedata.category(char)
    if category[0] == "N" and not unicodedata.decomposition(char):
        return str(ceil(unicodedata.numeric(char)))  # Tibetan halves count up to the next number
    return "" if category in _DROPPED else char


def region_form(text: str) -> Any:
    """Return a region in the form in which regions are compared; ``INVALID`` for a long text that is not ASCII.

    >>> region_form(" at"), region_form("\uff24\uff25")
    ('AT', 'DE')
    """
    form = comparison_form(text)
    return form if form is INVALID else form.upper()


def normalize_host(text: Any) -> Any:
    """Return a host in the form in which hosts are compared; ``INVALID`` for text that is no host.

    >>> normalize_host("Example.COM.:8000"), normalize_host("[2001:DB8:0::1]:80"), normalize_host("")
    ('example.com', '[2001:db8::1]', '')
    """
    if not isinstance(text, str):
        return INVALID
    return _host(text) if len(text) <= _MAX_HOST else INVALID


@lru_cache(_KEPT)
def _host(text: str) -> Any:
    match = _HOST.fullmatch(text.lower())
    if match is None:
        return INVALID if text else ""
    if match[1]:
        return match[1].rstrip(".")
    try:
        return f"[{IPv6Address(match[2])}]"
    except ValueError:
        return INVALID


def normalized_email(text: str) -> str | Invalid:
    """Normalise an email address, as the feature ``email`` does.

    Spaces at the ends, case, width, invisible characters, a trailing dot and the two forms of an international domain
    do not matter (Unicode NFKC_Casefold, RFC 3490). Tags such as ``ann+news@`` are kept.

    Args:
        text: The address as the user typed it.

    Returns:
        The normalised address, ``""`` for an empty text, or the marker of invalid features when the address has more
        than 320 characters.

    Example:
        >>> normalized_email(" Ann@B\u00dcCHER.example. "), normalized_email("\uff41nn@xn--bcher-kva.example")
        ('ann@xn--bcher-kva.example', 'ann@xn--bcher-kva.example')
    """
    text = text.strip()
    if len(text) > _MAX_TEXT:
        return INVALID
    folded = text.lower() if text.isascii() else _fold(text).strip()
    local, at, domain = folded.rpartition("@")
    email = f"{local}{at}{_domain(domain) if at else domain}"
    return email if len(email) <= _MAX_TEXT else INVALID


def counted_value(feature: str, value: Any) -> Any:
    """Return a value as a middleware reads it from a request: an email address normalized, any other value as it is."""
    return normalized_email(value) if isinstance(value, str) and is_email(feature) else value


def _fold(text: str) -> str:
    """Apply Unicode's NFKC_Casefold, which removes case, width, ligatures and invisible characters. Fold every i."""
    text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()
    text = text.replace(_DOTLESS_I, "i").replace("i\u0307", "i")
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", text))


def _domain(domain: str) -> str:
    dotted = domain.replace("\u3002", ".")
    return ".".join(map(_label, _DOTS.sub("", dotted).split(".")))


def _label(label: str) -> str:
    """Encode one label of a domain in ASCII. An A-label is decoded first, because it may encode a look-alike."""
    label = _decoded(label)
    return label if label.isascii() or label.startswith("xn--") else "xn--" + label.encode("punycode").decode("ascii")


def _decoded(label: str) -> str:
    """Return an A-label in Unicode, folded, and any other label as it is."""
    try:
        decoded = label[4:].encode("ascii").decode("punycode") if label.startswith("xn--") else ""
    except UnicodeError:
        return label
    folded = _fold(decoded)
    return folded if not decoded.isascii() and _DECODED_LABEL.fullmatch(folded) else label


def email_form(email: str) -> Any:
    """Return the form in which a normalized email address is counted. Databases may hold its domain in Unicode.

    >>> email_form("ann@xn--bcher-kva.example")
    'ann@bucher.example'
    """
    return comparison_form(_A_LABEL.sub(lambda label: _decoded(label[0]), email))


_MAX_READINGS: Final = 32
_MAX_CHARACTERS: Final = 16_384
"""The maximum number of characters of all readings together, so that a long path costs no more than a short one."""

_CONTROL_RANGE: Final = r"\x00-\x1f\x7f-\x9f"
_INVALID_RANGE: Final = r"\ufffd\ud800-\udfff"
_CONTROLS = re.compile(f"[{_CONTROL_RANGE}]+")
_INVALIDS = re.compile(f"[{_INVALID_RANGE}]+")
_BYTES = re.compile(r"[\udc80-\udcff]+")
"""Bytes of invalid UTF-8, which some readers take for Latin-1."""
_END = re.compile(f"[{_CONTROL_RANGE}?#]")
_ESCAPES = re.compile("(?:%(?!2[fF])[0-9A-Fa-f]{2})+")
_TWICE: Final = "%(?:2[5EeFf]|5[Cc]|[01][0-9A-Fa-f]|7[Ff])"
"""A percent sign, dot, slash, backslash or control character that is still encoded."""
_AMBIGUOUS = re.compile(rf"[{_CONTROL_RANGE}{_INVALID_RANGE}?#\\]|{_TWICE}|(?:\A|/)\.\.?(?:/|\Z)")


def normalize_path(path: str) -> str:
    """Return the path in the form in which paths are compared.

    >>> normalize_path("//a//b/"), normalize_path("/"), normalize_path("a")
    ('/a/b', '/', '/a')
    """
    if path[:1] != "/":
        path = "/" + path
    if "//" in path:
        path = re.sub("/{2,}", "/", path)
    return path[:-1] if len(path) > 1 and path[-1] == "/" else path


def path_feature(path: Any) -> Any:
    r"""Return a path as the feature ``path``: normalized, or ``INVALID`` where readers may disagree.

    >>> path_feature("/caf\xe9//100%"), path_feature("/a%2Fb")
    ('/café/100%', <Invalid.INVALID: 'invalid'>)
    """
    return INVALID if path is INVALID or _AMBIGUOUS.search(path) else normalize_path(path)


def read_path(path: Any) -> set[str] | None:
    r"""Return every reading of a path, normalized; None where there are too many.

    >>> sorted(read_path("/Login//")), sorted(read_path("/a/..\\login"))
    (['/Login'], ['/a/../login', '/a/..\\login', '/login'])
    """
    if path is INVALID:
        return None
    readings = {path}
    waiting = [path] if _AMBIGUOUS.search(path) else []
    while waiting:
        reading = waiting.pop()
        for change in _CHANGES:
            changed = change(reading)
            if changed in readings:
                continue
            readings.add(changed)
            if len(readings) > _MAX_READINGS or len(readings) * len(path) > _MAX_CHARACTERS:
                return None
            if _AMBIGUOUS.search(changed):
                waiting.append(changed)
    return set(map(normalize_path, readings))


def _resolve(path: str) -> str:
    """Resolve the dot segments, as RFC 3986 does."""
    if "/." not in path:
        return path
    resolved: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del resolved[-1:]
        elif segment != ".":
            resolved.append(segment)
    return "/".join(resolved)


def _decode(encoding: str, invalid: re.Match[str]) -> str:
    return invalid[0].encode(errors="surrogateescape").decode(encoding, "replace")


_CHANGES: Final[tuple[Callable[[str], str], ...]] = (
    lambda path: unquote(path, errors="surrogateescape"),
    lambda path: _ESCAPES.sub(lambda escapes: unquote(escapes[0]), path),
    partial(_CONTROLS.sub, ""),
    partial(_INVALIDS.sub, ""),
    partial(_BYTES.sub, partial(_decode, "utf-8")),
    partial(_BYTES.sub, partial(_decode, "latin-1")),
    lambda path: _END.split(path, maxsplit=1)[0],
    lambda path: path.replace("\\", "/"),
    _resolve,
    normalize_path,
)
