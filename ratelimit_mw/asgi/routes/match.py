"""What a route means for limits; the answer of the index. Knows no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...keys.features import UNMATCHED
from ...rules.marks import Mark, ViewMarks

__all__ = ["ANYWHERE", "NOWHERE", "DependencyLimit", "RouteMatch"]

ANYWHERE: Final = object()
"""The target of a route that tells nobody where it leads."""


class DependencyLimit:
    """A limit that a request meets on its way to the view, such as a dependency.

    ``given`` are the features that are only known there, and who gives them. Without any, it is decided with all
    others, beforehand. Limits with one mark are one limit.
    """

    def __init__(self, mark: Mark, given: Mapping[str, object]) -> None:
        self.mark = mark
        self.given = given

    @property
    def beforehand(self) -> ViewMarks:
        """What of it is decided before the request is on its way."""
        return ViewMarks() if self.given else ViewMarks((self.mark,))


@dataclass(frozen=True, eq=False, slots=True)
class RouteMatch:
    """Where a request goes.

    ``endpoint`` is the route's whole template, ``target`` what the framework itself calls the endpoint, ``passed`` the
    applications mounted on the way there. ``view`` None: nothing is marked. ``meets``: whether the request meets
    limits on its way, after the first decision; those that are ``later`` are decided only then.
    """

    endpoint: str
    target: object = None
    passed: tuple[object, ...] = ()
    view: ViewMarks | None = None
    meets: bool = False
    later: tuple[Mark, ...] = ()

    def meeting(self, view: ViewMarks | None, limits: list[DependencyLimit]) -> RouteMatch:
        """The same place, with what is marked there and what is met on the way."""
        later = tuple(dict.fromkeys(limit.mark for limit in limits if limit.given))
        return replace(self, view=view, meets=bool(limits), later=later)

    def is_at(self, endpoint: object) -> bool:
        """Whether the framework went there, too. It calls it ``endpoint``; None: it did not get that far."""
        known = endpoint is None or endpoint is self.target or self.target is ANYWHERE
        return known or any(endpoint is app for app in self.passed)


NOWHERE: Final = RouteMatch(UNMATCHED)
"""Of a request that no route matches."""
