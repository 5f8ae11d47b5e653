"""True costs that an application states in the headers of its responses: see the option ``cost_from`` of rules."""

from collections.abc import Iterable, Sequence

from ..decision import RuleVerdict, Verdict
from ..rules.costs import HeaderCost, number_of
from .warnings import warn


def settle_by_headers(
    costs: Iterable[tuple[Sequence[Verdict], Iterable[tuple[str, HeaderCost]]]],
    headers: Iterable[tuple[str | bytes, object]],
) -> None:
    """State the costs that are in the headers of a response.

    Args:
        costs: For each middleware, its verdicts, and its rules with the header of their cost.
        headers: The headers of the response.
    """
    lines: dict[str, list[str]] = {}
    for name, value in headers:
        lines.setdefault(_text(name).lower(), []).append(_text(value))
    for verdicts, rules in costs:
        for rule, source in rules:
            if source.header in lines:
                _settle(verdicts, rule, source.header, lines[source.header])


def _settle(verdicts: Sequence[Verdict], rule: str, header: str, lines: Iterable[str]) -> None:
    """Settle a rule. Of several lines the largest number counts, because each may be from another layer."""
    costs = [cost for line in lines if (cost := number_of(line, infinite=None)) is not None]
    if not costs:
        warn(f"rule {rule}: the header {header} is not a number from 0, so its responses keep their estimated cost")
        return
    RuleVerdict(verdicts, rule).settle(max(costs))


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
