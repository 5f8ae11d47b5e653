"""One quota of one rule with its algorithm, and the ban of one rule. Built at the start, shared by all requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import ClassVar, Final
from urllib.parse import unquote

from ..decision import without_hash_tag
from ..errors import ConfigError
from ..quota import Quota, format_duration
from . import Algorithm, build
from .ban import Ban, BanTerms
from .concurrency import Concurrency

_ESCAPES: Final = {ord(character): f"%{ord(character):X}" for character in "%|{}"}
FORMAT = "1"
"""The version of keys and states. Change it when either changes its meaning."""


class Limit:
    """The part of a rule by which a store decides one key.

    ``prefix`` starts every key of this limit. It has rule, algorithm, period and format, because states that differ in
    them are not compatible. It does not have the amount, so the consumed cost is kept when the amount changes.
    ``statuses`` are those of the responses that count, None for all. ``unit`` is what the rule counts. ``values_of``
    returns the values in a key after the prefix, by feature, and ``names_client`` whether one of them is the client's
    own. ``ban`` is the ban of the rule.
    """

    values_of: Callable[[str], Mapping[str, str]] = staticmethod(lambda _: {})
    names_client: Callable[[str], bool] = staticmethod(lambda _: True)
    is_ban: ClassVar[bool] = False
    ban: BanLimit | None = None

    def __init__(
        self,
        rule: str,
        number: int,
        quota: Quota,
        algorithm: object,
        shadow: bool = False,
        statuses: frozenset[int] | None = None,
        on_store_error: str | None = None,
        lease: int = 0,
        unit: str = "requests",
    ) -> None:
        self.rule = self.shown_rule = rule
        self.quota = quota
        self.shadow = shadow
        self.statuses = statuses
        self.on_store_error = on_store_error
        self.unit = unit
        self.spec = algorithm
        self.algorithm = Concurrency(quota) if quota.concurrent else build(algorithm, quota)
        self.decide = self.algorithm.decide
        self.limit = self.algorithm.limit
        # The cost that a process leases at once. A lease of one saves no round trip.
        share = self.limit * lease // 100
        self.local = False
        self.lease = share if share > 1 and not quota.concurrent else 0
        self.policy = rule if number == 0 else f"{rule}-{number + 1}"
        self.prefix = f"{prefix_of_rule(rule)}{_kind(self.algorithm)}|{format_duration(quota.period_us)}|"

    def show_as(self, name: str) -> None:
        """Set the name of the rule that clients see, ``shown_rule``, and with it that of the limit, ``policy``."""
        self.policy = name + self.policy.removeprefix(self.shown_rule)
        self.shown_rule = name

    def __copy__(self) -> Limit:
        twin = object.__new__(type(self))
        twin.__dict__.update(vars(self))
        return twin

    def __getstate__(self) -> dict[str, object]:
        """Pickle the limit without the functions of its key, which cannot be pickled."""
        return {name: value for name, value in vars(self).items() if name not in ("values_of", "names_client")}

    def local_part(self, parts: int) -> Limit:
        """Return the limit for local counting: one of ``parts`` equal parts of its quota, rounded up."""
        burst = self.quota.burst and -(-self.quota.burst // parts)
        amount = -(-self.quota.amount // parts)
        quota = Quota.exact(amount, self.quota.period_us, burst, self.quota.concurrent)
        options = (self.spec, self.shadow, self.statuses, self.on_store_error)
        limit = Limit(self.rule, 0, quota, *options, unit=self.unit)
        limit.shown_rule, limit.policy, limit.values_of = self.shown_rule, self.policy, self.values_of
        limit.local = True
        limit.ban = self.ban
        return limit

    @property
    def text(self) -> str:
        """The quota with its unit, unless that is "requests": "1000 tokens/minute"."""
        return str(self.quota) if self.unit == "requests" else str(self.quota).replace("/", f" {self.unit}/", 1)

    def keys_of(self, key: str) -> list[str]:
        """Return a key of this limit, and the key of the ban of its rule for the same client."""
        return [key] if self.ban is None else [key, self.ban.key_of(self, key)]

    def capped(self, estimate: int) -> int:
        """Return the cost of an estimate, which a client may choose: at most what can pass at once. A slot is one."""
        return 1 if self.quota.concurrent else min(estimate, self.limit)

    def __repr__(self) -> str:
        return f"Limit({self.rule!r}, '{self.quota}', {self.algorithm.name!r})"


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


def _kind(algorithm: Algorithm) -> str:
    """The algorithm's part of the prefix. It must not contain the separator ``|`` or a brace of the hash tag."""
    name, variant = algorithm.name, algorithm.variant
    parts: dict[str, object] = {"name": name, "variant": variant}
    for label, part in parts.items():
        if not isinstance(part, str) or part != part.translate(_ESCAPES):
            raise ConfigError(f"expected the {label} of algorithm {name!r} as text without | % {{ }}; got {part!r}")
    return f"{name}.{variant}" if variant else name


def prefix_of_rule(rule: str) -> str:
    """Return the start of all keys of a rule."""
    return f"{FORMAT}|{rule.translate(_ESCAPES)}|"


def rule_of(key: str) -> str:
    """Return the name of the rule from a key; "" from a text that is no key."""
    version, _, rest = key.partition("|")
    return unquote(rest.partition("|")[0]) if version == FORMAT else ""


def client_of(key: str) -> str:
    """Return the part of a key that names the client, without the hash tag."""
    return without_hash_tag(key.removeprefix(prefix_of(key)))


def prefix_of(key: str) -> str:
    """Return the limit's ``prefix`` from a key: all up to the fourth ``|``."""
    return "|".join(key.split("|", 4)[:4]) + "|"
