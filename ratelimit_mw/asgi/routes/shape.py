"""A route's template as a pattern of the path tree: one that matches at least all that the route's own does. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["shape_of"]

_PARAMETER: Final = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)\}")
# Starlette's own convertors whose values have no slash; about others nobody knows.
_WITHIN_A_SEGMENT: Final = {"StringConvertor", "IntegerConvertor", "FloatConvertor", "UUIDConvertor"}


def shape_of(template: str, convertors: Mapping[str, object]) -> str:
    """
    >>> shape_of("/items/{id}", {}), shape_of("/files/{rest}/raw", {"rest": object()})
    ('/items/{id}', '/files/**')
    """
    segments: list[str] = []
    for segment in template.split("/"):
        if any(not _stays_within(convertors.get(name)) for name in _PARAMETER.findall(segment)):
            segments.append("**")
            break
        segments.append(segment)
    return "/".join(segments)


def _stays_within(convertor: object) -> bool:
    cls = type(convertor)
    return convertor is None or (cls.__module__ == "starlette.convertors" and cls.__name__ in _WITHIN_A_SEGMENT)
