"""The template of a route as a pattern of the path tree, which matches at least the paths of the route. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_PARAMETER: Final = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)\}")
# Starlette's own convertors without a slash in their values. Other convertors may match any path.
_WITHIN_SEGMENT: Final = {"StringConvertor", "IntegerConvertor", "FloatConvertor", "UUIDConvertor"}


def path_shape(template: str, convertors: Mapping[str, object]) -> str:
    """
    >>> path_shape("/items/{id}", {}), path_shape("/files/{rest}/raw", {"rest": object()})
    ('/items/{id}', '/files/**')
    """
    segments: list[str] = []
    for segment in template.split("/"):
        if any(not _is_within_segment(convertors.get(name)) for name in _PARAMETER.findall(segment)):
            segments.append("**")
            break
        segments.append(segment)
    return "/".join(segments)


def _is_within_segment(convertor: object) -> bool:
    cls = type(convertor)
    return convertor is None or (cls.__module__ == "starlette.convertors" and cls.__name__ in _WITHIN_SEGMENT)
