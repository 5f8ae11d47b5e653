"""Allow and deny lists, and exempt paths. They decide a request before all rules, the allow list first."""

# Annotations are evaluated here, because msgspec reads them.

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypedDict

from ..clock import SECOND, Clock, now_us
from ..decision import BannedVerdict, Verdict, decide_without_store
from ..errors import ConfigError, error_path, path_of
from ..keys.features import INVALID, Features
from ..keys.parts import Part, comparison_forms, part_of
from .declaration import decode, option
from .marks import Destination
from .match import FeatureValues, Values, each_of, parse_feature
from .overrides import ClientBans
from .paths import checked_pattern
from .routed import Params, PathPatterns
from .values import checked_table

_PATH: Final = part_of("path")
_EXEMPT: Final = "exempt"


class _Entry(NamedTuple):
    """The values of one part in one list; networks when the part is ``ip``, patterns when it is ``path``."""

    kind: str
    part: Part
    values: Values | tuple[str, ...]


def _entries(kind: str, table: Any) -> list[_Entry]:
    entries = []
    for name, values in checked_table(table).items():
        with error_path(path_of(name)):
            if not values and isinstance(values, list | tuple):
                raise ConfigError(f"expected a list of values; got {values!r}")
            if name == _PATH:
                entries.append(_Entry(kind, _PATH, each_of(values, checked_pattern)))
            else:
                part, written = parse_feature(name, values)
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

    Patterns of paths decide only in the lists that ``at`` returns for one path.
    """

    entries: list[_Entry]
    needs: tuple[str, ...]

    def __init__(self, tables: Mapping[str, Mapping[str, Any]] | None = None, exempt: Sequence[str] = ()) -> None:
        lists = decode(ListSettings, tables or {}, noun="list")
        self.entries = [*lists["allow"], *lists["deny"]]
        if exempt:  # after the deny list, which also applies to these paths
            self.entries.append(_Entry(_EXEMPT, _PATH, tuple(exempt)))
        self.exempt = tuple(exempt)
        self.parts = tuple(dict.fromkeys(entry.part for entry in self.entries if entry.part != _PATH))
        self.needs = tuple(dict.fromkeys(part.feature for part in self.parts))
        patterns = [(kind, str(path)) for kind, part, values in self.entries if part == _PATH for path in values]
        self._owners = [kind for kind, _ in patterns]
        self._patterns = PathPatterns(enumerate(pattern for _, pattern in patterns))
        self.has_paths = bool(patterns)
        self.matched: tuple[str, ...] = ()
        """The lists that the path of the request is on."""
        self.bans: ClientBans | None = None
        """The clients that an operator has banned from all rules."""

    def names(self, kind: str) -> list[Part]:
        """The features in the list "allow" or "deny"."""
        return [entry.part for entry in self.entries if entry.kind == kind]

    def with_bans(self, bans: ClientBans) -> "AccessLists":
        """Return the lists with clients that are banned from all rules."""
        lists = copy(self)
        lists.bans = bans
        lists.parts = tuple(dict.fromkeys((*self.parts, *bans.parts)))
        lists.needs = tuple(dict.fromkeys(part.feature for part in lists.parts))
        return lists

    def at(self, path: str, to: Destination, params: Params) -> "AccessLists":
        """Return the lists for requests with this path and route, where patterns of paths decide.

        A deny list has a path in all its readings, as rules have. The others have it only as it is written.
        """
        if not path or not self.has_paths:
            return self
        certain = self._patterns.match_as_written(path, to)
        possible = self._patterns.match(path, to, params)
        found = (kind for i, kind in enumerate(self._owners) if i in (possible if kind == "deny" else certain))
        lists = copy(self)
        lists.matched = tuple(dict.fromkeys(found))
        return lists

    def allows(self, features: Features) -> bool | None:
        """Return True when the request is on the allow list, False when on the deny list, None when on neither."""
        verdict = self.decide(features)
        return None if verdict is None else verdict.allowed

    def decide(self, features: Features, clock: Clock = now_us) -> Verdict | None:
        """Return the verdict of the lists, and of a ban from all rules; None for a request that rules decide.

        An invalid feature is on the deny list, so that a client cannot evade the list. The deny list matches all
        spellings of a value, the allow list only the one in the settings. Bans come next, and exempt paths come last.
        """
        for kind, part, values in self.entries:
            if kind == _EXEMPT:
                continue
            denies = kind == "deny"
            if part == _PATH:
                found = kind in self.matched
            else:
                text = part.compared(features) if denies else part.written(features)
                found = text in values or (denies and text is INVALID)
            if found:
                return decide_without_store(not denies)
        if self.bans is not None and (ban := self.bans.find(features)) is not None:
            left = None if ban.until_us is None else max(0, ban.until_us - clock()) / SECOND
            return BannedVerdict(allowed=False, left=left)
        return decide_without_store(True) if _EXEMPT in self.matched else None
