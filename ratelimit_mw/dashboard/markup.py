"""``tag``: HTML whose texts are all escaped. No other module writes an angle bracket."""

from __future__ import annotations

from html import escape
from typing import Final

_LONGEST: Final = 300
"""Longer texts are cut on the page. JSON contains the full text."""
_VOID: Final = {"link", "meta", "input"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | None | list["Content"]
Attribute = str | int | bool | None


def tag(name: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """Return an element. Texts are escaped, except ``Markup``.

    Args:
        name: The name of the element.
        *content: Texts and elements. None is left out.
        **attributes: The attributes. Underscores become hyphens, and one at the end is dropped. None and False are
            left out.

    >>> print(tag("a", "<script>", class_="x", href='?a="b"'))
    <a class="x" href="?a=&quot;b&quot;">&lt;script&gt;</a>
    """
    opened = "".join(map(_attribute, attributes.items()))
    if name in _VOID:
        return Markup(f"<{name}{opened}>")
    return Markup(f"<{name}{opened}>{join(list(content))}</{name}>")


def join(content: Content) -> Markup:
    """Return contents one after the other."""
    if content is None:
        return Markup()
    if isinstance(content, list):
        return Markup("".join(map(join, content)))
    if isinstance(content, Markup):
        return content
    cut = content if len(content) <= _LONGEST else f"{content[:_LONGEST]}\N{HORIZONTAL ELLIPSIS}"
    return Markup(escape(visible(cut)))


def visible(text: str) -> str:
    r"""Return a text in which control characters and marks of the text direction are shown.

    >>> print(visible("a\u202eb\n"))
    a\u202eb\u000a
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() else f"\\u{ord(character):04x}"


def _attribute(attribute: tuple[str, Attribute]) -> str:
    name, value = attribute
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(visible(str(value)))}"'
