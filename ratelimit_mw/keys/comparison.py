"""Comparison forms: one text for all spellings that an application may take for one value. Pure.

Forms, databases and frameworks strip, normalize and fold the texts of clients. In doubt, two spellings are merged: two
users who share a count are an inconvenience, but one user with a thousand spellings has no limit.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Any, Final

from .features import INVALID

_KEPT: Final = 1024
_LONGEST: Final = 320
"""The maximum number of characters of a text that is not ASCII. A longer one would take milliseconds."""

# Unicode's Default_Ignorable_Code_Point: invisible characters that domain names drop, such as soft hyphens and joiners.
INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
DOTLESS_I: Final = "\u0131"
"""Databases compare texts in capitals, and its capital is I. The same holds for i with a dot above, in lower case."""
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_DROPPED: Final = frozenset(("Cc", "Cf", "Mn", "Mc", "Me"))  # control and format characters, combining marks


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
    return unicodedata.normalize("NFKC", folded).replace(DOTLESS_I, "i").strip()


def _without_marks(text: str) -> str:
    """Decompose a text and drop what is not shown alone. Marks go first: sorting a long row of them is slow."""
    return _visible(unicodedata.normalize("NFKD", _visible(text)))


def _visible(text: str) -> str:
    category = unicodedata.category
    return "".join([char for char in INVISIBLE.sub("", text) if category(char) not in _DROPPED])
