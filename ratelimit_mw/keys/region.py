"""The form in which regions are compared: the comparison form in capital letters, as ISO 3166 writes codes. Pure."""

from typing import Any

from .comparison import comparison_form
from .features import INVALID


def region_form(text: str) -> Any:
    """Return a region in the form in which regions are compared; ``INVALID`` for a long text that is not ASCII.

    >>> region_form(" at"), region_form("\uff24\uff25")
    ('AT', 'DE')
    """
    form = comparison_form(text)
    return form if form is INVALID else form.upper()
