"""Allow and deny lists, and exempt paths. They decide a request before all rules, the allow list first."""

# Annotations are evaluated here, because msgspec reads them.

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, TypedDict

from ..clock import SECOND, Clock, wall_us
from ..decision import BannedVerdict, Verdict
from ..errors import ConfigError, error_path, path_of
from ..keys.features import INVALID, Features
from ..keys.parts import Part, comparison_forms
from .declaration import decode, option
from .marks import Destination
from .match import FeatureValues, Values, parse_feature
from .overrides import ClientBans
from .routed import PathPatterns
from .values import checked_table


class _Entry(NamedTuple):
    """The values of one part in one list; networks when the part is ``ip``."""

    kind: str
    part: Part
    values: Values


def _entries(kind: str, table: Any) -> list[_Entry]:
    entries = []
    for name, values in checked_table(table).items():
        with error_path(path_of(name)):
            part, written = parse_feature(name, values)
            if part == "path":
                raise ConfigError('lists are of clients. To exclude paths from all rules, write exempt = ["/health"]')
            entries.append(_Entry(kind, part, comparison_forms(part, written) if kind == "deny" else written))
    return entries


class ListSettings(TypedDict, total=False):
    """Clients that are always or never served."""

    allow: Annotated[
        Mapping[str, FeatureValues],
        partial(_entries, "allow"),
        option("Values by feature. A request with one of them is never limited.", {}),
    ]
    deny: Annotated[
        Mapping[str, FeatureValues],
        partial(_entries, "deny"),
        option("Values by feature. A request with one of them is rejected with 403.", {}),
    ]


@dataclass(init=False, repr=False)
class AccessLists:
    """The allow and the deny list, from ``{"allow": {"ip": ["10.0.0.0/8"]}, "deny": {"user": ["mallory"]}}``.

    >>> lists = AccessLists({"deny": {"ip": ["203.0.113.0/24"]}})
    >>> lists.needs, lists.allows({"ip": "203.0.113.9"}), lists.allows({"ip": "192.0.2.7"})
    (('ip',), False, None)

    Exempt paths decide only in the lists that ``at`` returns for one path.
    """

    entries: list[_Entry]
    exempt: tuple[str, ...]

    def __init__(self, tables: Mapping[str, Mapping[str, Any]] | None = None, exempt: Sequence[str] = ()) -> None:
        lists = decode(ListSettings, tables or {}, noun="list")
        self.entries = [*lists["allow"], *lists["deny"]]
        self.exempt = tuple(exempt)
        self.parts = tuple(dict.fromkeys(entry.part for entry in self.entries))
        self.needs = tuple(dict.fromkeys(part.feature for part in self.parts))
        self._patterns = PathPatterns(enumerate(self.exempt))
        self.is_exempt = False
        """Whether the path of the request is exempt."""
        self.bans: ClientBans | None = None
        """The clients that an operator has banned from all rules."""

    def names(self, kind: str) -> list[Part]:
        """Return the features in the list "allow" or "deny"."""
        return [entry.part for entry in self.entries if entry.kind == kind]

    def with_bans(self, bans: ClientBans) -> "AccessLists":
        """Return the lists with clients that are banned from all rules."""
        lists = copy(self)
        lists.bans = bans
        lists.parts = tuple(dict.fromkeys((*self.parts, *bans.parts)))
        lists.needs = tuple(dict.fromkeys(part.feature for part in lists.parts))
        return lists

    def at(self, path: str, to: Destination) -> "AccessLists":
        """Return the lists for requests with this path and route, where exempt paths decide."""
        if not self.exempt:
            return self
        lists = copy(self)
        lists.is_exempt = bool(self._patterns.match_as_written(path, to))
        return lists

    def allows(self, features: Features) -> bool | None:
        """Return True when the request is on the allow list, False when on the deny list, None when on neither."""
        verdict = self.decide(features)
        return None if verdict is None else verdict.allowed

    def decide(self, features: Features, clock: Clock = wall_us) -> Verdict | None:
        """Return the verdict of the lists, and of a ban from all rules; None for a request that rules decide.

        An invalid feature is on the deny list, so that a client cannot evade the list. The deny list matches all
        spellings of a value, the allow list only the one in the settings. Bans come next, and exempt paths come last.
        """
        for kind, part, values in self.entries:
            denies = kind == "deny"
            text = part.compared(features) if denies else part.written(features)
            if text in values or (denies and text is INVALID):
                return Verdict(allowed=not denies)
        if self.bans is not None and (ban := self.bans.find(features)) is not None:
            left = None if ban.until_us is None else max(0, ban.until_us - clock()) / SECOND
            return BannedVerdict(allowed=False, left=left)
        return Verdict() if self.is_exempt else None
