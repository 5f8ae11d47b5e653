"""Which option needs a feature: the place of an error about a feature that nothing provides."""

from typing import NamedTuple

from ..rules.access_lists import AccessLists
from ..rules.compiled import CompiledRule
from ..rules.costs import FeatureCost


class Need(NamedTuple):
    """The option that needs a feature, as the ``path`` and ``of`` of an error."""

    path: str = ""
    of: str = ""


def needs_of_rule(rule: CompiledRule) -> dict[str, Need]:
    """Return the option that each part of a rule is in. The key comes before all others."""
    source, of = rule.source, f"rule {rule.name!r}"
    options = dict.fromkeys(source.cost.parts if isinstance(source.cost, FeatureCost) else (), "cost")
    options |= {part: f"per.{part}" for part, _ in source.tables if part}
    options |= {part: f"match.{part}" for part, _ in source.matches.features}
    options |= {part: "key" for names in source.entries for part in names}
    return {part: Need(options.get(part, ""), of) for part in source.parts}


def needs_of_lists(lists: AccessLists) -> dict[str, Need]:
    """Return the list that each part is in."""
    paths = {entry.part: f"lists.{entry.kind}.{entry.part}" for entry in lists.entries}
    return {part: Need(paths[part]) for part in lists.parts}
