"""Normalise email addresses, so that a client cannot get a fresh limit by writing an address in another way.

In doubt, two spellings are merged: two users who share a count are an inconvenience, but one user with a thousand
spellings has no limit. Do not send email to a normalised address. Settings can use any spelling.
"""

import re
import unicodedata
from typing import Any, Final

from ..errors import ConfigError
from .comparison import DOTLESS_I, INVISIBLE
from .features import INVALID, is_email
from .networks import Networks
from .parts import part_of

_LONGEST: Final = 320

_END = re.compile(r"(?<![.\s])[.\s]+\Z")  # the lookbehind scans a long row of dots once
# A decoded A-label must be one label, and must not be an A-label again.
_DECODED_LABEL = re.compile(r"(?!xn--)[^.@\s\u3002]+")


def normalized_email(text: str) -> Any:
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
    if len(text) > _LONGEST:
        return INVALID
    folded = text.lower() if text.isascii() else _fold(text).strip()
    local, at, domain = folded.rpartition("@")
    email = f"{local}{at}{_domain(domain) if at else domain}"
    return email if len(email) <= _LONGEST else INVALID


def spellings(part: str, value: str) -> tuple[str, ...]:
    """Return a value from the settings as written, and in the middleware's form when that differs.

    The method GET is HEAD, too, because every framework serves HEAD with the view for GET.

    Raises ``ConfigError`` for a value that the part never has.
    """
    place, written = part_of(part), value
    if is_email(place.feature):
        written = normalized_email(value)
    if place.feature == "region":
        written = value.upper()
    if written is INVALID:
        return (value,)
    form = place.exact(written)
    if form is INVALID:
        raise ConfigError(f"{value!r} is never a value of {part!r}")
    others = ("HEAD",) if place.feature == "method" and form == "GET" else ()
    return tuple(dict.fromkeys((value, form, *others)))


def compared(part: str, values: frozenset[str] | Networks) -> frozenset[str] | Networks:
    """Return the comparison forms of spellings from the settings. Networks find every form of an address."""
    return values if isinstance(values, Networks) else frozenset(map(part_of(part).form, values))


def _fold(text: str) -> str:
    """Apply Unicode's NFKC_Casefold, which removes case, width, ligatures and invisible characters. Fold every i."""
    text = unicodedata.normalize("NFKC", INVISIBLE.sub("", text)).casefold()
    text = text.replace(DOTLESS_I, "i").replace("i\u0307", "i")
    return unicodedata.normalize("NFKC", INVISIBLE.sub("", text))


def _domain(domain: str) -> str:
    dotted = domain.replace("\u3002", ".")
    return ".".join(map(_label, _END.sub("", dotted).split(".")))


def _label(label: str) -> str:
    """Encode one label of a domain in ASCII. An A-label is decoded first, because it may encode a look-alike."""
    if label.startswith("xn--"):
        try:
            decoded = label[4:].encode("ascii").decode("punycode")
        except UnicodeError:
            return label
        folded = _fold(decoded)
        label = folded if not decoded.isascii() and _DECODED_LABEL.fullmatch(folded) else label
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")
