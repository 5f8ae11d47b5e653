"""Django's routes as the templates of other frameworks: no converters, no patterns, a leading slash. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["template_of"]

# As django.urls reads a route: <name>, <converter:name>; not the <name> of a group in a regular expression.
_PARAMETER: Final = re.compile(r"(?<!\(\?P)<(?:[^>:]+:)?([^>]+)>")
_IN_REGEX: Final = re.compile(r"^\^|\(\?|\\|\$$")
_NAMED: Final = re.compile(r"\?P<(\w+)>")
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})[?+]?")


@lru_cache(10_000)
def template_of(route: str) -> str:
    r"""The template of ``ResolverMatch.route``.

    >>> template_of("items/<int:pk>/"), template_of(r"^articles/(?P<year>[0-9]{4})/(\w+)/$")
    ('/items/{pk}/', '/articles/{year}/{0}/')
    """
    text = _PARAMETER.sub(r"{\1}", route)
    if _IN_REGEX.search(text):
        text = _Simplified(text).text
    return text if text.startswith("/") else f"/{text}"


class _Simplified:
    """A regular expression with groups as parameters, numbered where they have no name, and without what only matches.

    What stands outside of groups stays as it is written, so that different routes stay different.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._unnamed = 0
        self.text = self._read()

    def _read(self) -> str:
        """Up to the end, or to the parenthesis that closes the group at hand."""
        found = ""
        while self._at < len(self._pattern) and self._pattern[self._at] != ")":
            found += self._part()
            if quantifier := _QUANTIFIER.match(self._pattern, self._at):
                self._at = quantifier.end()
        return found

    def _part(self) -> str:
        character = self._pattern[self._at]
        self._at += 1
        if character == "(":
            return self._group()
        if character == "[":
            return self._character_class()
        if character == "\\" and self._at < len(self._pattern):
            self._at += 1
            escaped = self._pattern[self._at - 1]
            return "" if escaped in "AZzbB" else f"\\{escaped}" if escaped.isalnum() else escaped
        return "" if character in "^$" else character

    def _group(self) -> str:
        start = self._at
        if named := _NAMED.match(self._pattern, start):
            name = named[1]
        elif self._pattern.startswith("?", start):
            name = ""
        else:
            name, self._unnamed = str(self._unnamed), self._unnamed + 1
        keeps = self._pattern.startswith("?:", start)
        self._at = start + 2 if keeps else named.end() if named else start
        unnamed = self._unnamed
        inner = self._read()
        self._at += 1
        if keeps:
            return inner
        self._unnamed = unnamed if name else self._unnamed  # groups within a parameter are part of it
        return f"{{{name}}}" if name else ""

    def _character_class(self) -> str:
        start = self._at - 1
        end = self._pattern.find("]", self._at + 1)
        self._at = len(self._pattern) if end < 0 else end + 1
        return self._pattern[start : self._at]
