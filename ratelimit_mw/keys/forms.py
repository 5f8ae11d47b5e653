"""The forms in which texts are counted and compared: one for all spellings that applications may take for one value.

Forms, databases and frameworks strip, normalize and fold the texts of clients. In doubt, two spellings are merged: two
users who share a count are an inconvenience, but one user with a thousand spellings has no limit. Pure.
"""

import re
import unicodedata
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any, Final

from .features import INVALID

_KEPT: Final = 1024
_LONGEST: Final = 320
"""The maximum number of characters of an email address, and of a text that is not ASCII, which would take long."""
_LONGEST_HOST: Final = 270
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
_HOST = re.compile(r"(?:([a-z0-9_][a-z0-9_.-]*)|\[([0-9a-f:.]{2,45})\])(?::[0-9]+)?", re.ASCII)
_DOTS = re.compile(r"(?<![.\s])[.\s]+\Z")  # the lookbehind scans a long row of dots once
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
    return _folded(text) if len(text) <= _LONGEST else INVALID


@lru_cache(_KEPT)
def _folded(text: str) -> str:
    """Fold case twice: some marks fold to letters, and some symbols consist of capitals."""
    folded = _without_marks(_without_marks(text.casefold()).casefold())
    return unicodedata.normalize("NFKC", folded).replace(_DOTLESS_I, "i").strip()


def _without_marks(text: str) -> str:
    """Decompose a text and drop what is not shown alone. Marks go first: sorting a long row of them is slow."""
    return _visible(unicodedata.normalize("NFKD", _visible(text)))


def _visible(text: str) -> str:
    category = unicodedata.category
    return "".join([char for char in _INVISIBLE.sub("", text) if category(char) not in _DROPPED])


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
    return _host(text) if len(text) <= _LONGEST_HOST else INVALID


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
    if label.startswith("xn--"):
        try:
            decoded = label[4:].encode("ascii").decode("punycode")
        except UnicodeError:
            return label
        folded = _fold(decoded)
        label = folded if not decoded.isascii() and _DECODED_LABEL.fullmatch(folded) else label
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")
