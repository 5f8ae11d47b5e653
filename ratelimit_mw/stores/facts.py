"""``Facts``: the values that a store knows of one of its servers, or of its files. It judges nothing."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Facts(NamedTuple):
    """The values of one part of a store.

    Args:
        kind: The kind of the part, such as ``"redis"``, ``"replica"`` or ``"lmdb"``.
        name: The name of the part, such as ``"10.0.0.1:6379"``.
        values: The values, under the names that the server gives them.
        problem: The reason why there are no values; "" where there are.
        replies: Whether the part replied, perhaps with an error.
    """

    kind: str
    name: str
    values: Mapping[str, Any] = {}
    problem: str = ""
    replies: bool = True
