"""One spelling for each e-mail address, so that nobody has a fresh limit by spelling theirs in another way.

Spellings are merged rather than told apart: two people who share a count now and then are a nuisance, one person with
a thousand counts has no limit. Nothing is sent to what comes out of here. Settings may hold any spelling.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final

from .features import INVALID, counted_as

__all__ = ["normalized_email", "spellings"]

_LONGEST: Final = 320

# Unicode's Default_Ignorable_Code_Point: what nobody sees and domain names drop, soft hyphens and joiners among it.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

_END = re.compile(r"(?<![.\s])[.\s]+\Z")  # the look behind: a long row of dots is walked once
# What an A-label may spell: nothing that would be read as more than a label, or a second time.
_SPELLED = re.compile(r"(?!xn--)[^.@\s\u3002]+")


def normalized_email(text: str) -> Any:
    """The one spelling of an address, "" for none; ``INVALID`` for more than 320 characters.

    >>> normalized_email(" Ann@B\u00dcCHER.example. "), normalized_email("\uff41nn@xn--bcher-kva.example")
    ('ann@xn--bcher-kva.example', 'ann@xn--bcher-kva.example')
    """
    text = text.strip()
    if len(text) > _LONGEST:
        return INVALID
    folded = text.lower() if text.isascii() else _folded(text).strip()
    local, at, domain = folded.rpartition("@")
    found = f"{local}{at}{_domain(domain) if at else domain}"
    return found if len(found) <= _LONGEST else INVALID


def spellings(feature: str, value: str) -> tuple[str, ...]:
    """A value as somebody has written it, and as the middleware writes it where that is something else."""
    written = counted_as(feature, value)
    if feature == "email":
        written = normalized_email(value)
    if feature == "region":
        written = value.upper()
    return (value,) if written in (value, INVALID) else (value, written)


def _folded(text: str) -> str:
    """Unicode's NFKC_Casefold: without case, width, ligatures and what is invisible."""
    text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", text))


def _domain(domain: str) -> str:
    dotted = domain.replace("\u3002", ".")
    return ".".join(map(_label, _END.sub("", dotted).split(".")))


def _label(label: str) -> str:
    """A part of a domain in ASCII. One that is so already is read first: it may spell a look-alike, too."""
    if label.startswith("xn--"):
        try:
            read = label[4:].encode("ascii").decode("punycode")
        except UnicodeError:
            return label
        folded = _folded(read)
        label = folded if not read.isascii() and _SPELLED.fullmatch(folded) else label
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")
