"""The ban of one rule as a limit, with a key beside those of the limits of the rule."""

from __future__ import annotations

import copy
from typing import ClassVar

from ..quota import Quota
from .ban import Ban, BanTerms
from .limit import Limit, prefix_of_rule


class BanLimit(Limit):
    """A limit that rejects banned clients. A store that decides it counts the rejections by the limits of its rule.

    Args:
        terms: The option ``ban`` of the rule.
        shown: The first limit of the rule. It shows a ban that is known without a decision of the limits.
    """

    is_ban: ClassVar[bool] = True

    def __init__(self, terms: BanTerms, shown: Limit) -> None:
        self.__dict__.update(vars(shown))
        self.terms = terms
        self.shown = shown
        self.quota = Quota.exact(terms.after or 1, terms.within)
        self.spec = self.algorithm = ban = Ban(terms)
        self.decide, self.limit = ban.decide, ban.limit
        self.quiet = ban.quiet
        self.statuses, self.ban = None, None
        # Without a period: a change of the option lifts no ban.
        self.prefix = f"{prefix_of_rule(self.rule)}{Ban.name}||"

    def key_of(self, limit: Limit, key: str) -> str:
        """Return the key of the ban of a client, from its key under a limit of the rule."""
        return self.prefix + key[len(limit.prefix) :]

    def shown_key(self, key: str) -> str:
        """Return the key of a client under the first limit of the rule."""
        return self.shown.prefix + key[len(self.prefix) :]

    def lasting(self, us: int) -> BanLimit:
        """Return the ban whose ``charge`` bans a client at once, for some microseconds."""
        return BanLimit(self.terms._replace(after=0, first=us), self.shown)

    def local_part(self, parts: int) -> BanLimit:
        """Return the ban for local counting: each process counts all rejections that it knows."""
        limit = copy.copy(self)
        limit.shown = self.shown.local_part(parts)
        limit.local = True
        return limit
