"""The true costs of a request, from headers of its response: see the option ``cost_from`` of rules."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

from ..decision import RuleVerdict
from ..rules.costs import number_of
from .headers import with_headers
from .notes import log_note

if TYPE_CHECKING:
    from .admission import Admission


def read_costs(admission: Admission, headers: Iterable[tuple[str | bytes, object]]) -> set[str]:
    """State the true costs of a request, as ``settle`` of a view does.

    Args:
        admission: The admission of the request.
        headers: The headers of the response.

    Returns:
        The names of the headers that the client must not receive, in lower case.
    """
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(_text(name).lower(), []).append(_text(value))
    # Outer middleware does not see the headers that are removed here.
    for each in (*(admission.outer or {}).values(), admission):
        for rule, source in each.true_costs:
            if source.header in values:
                _settle(each, rule, source.header, values[source.header])
    return {source.header for _, source in admission.true_costs if source.remove}


def read_message(admission: Admission, message: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """State the true costs in an ASGI message. Return it without the headers that the client must not receive."""
    if not admission.true_costs:
        return message
    headers = list(message.get("headers") or ())
    names = {name.encode("latin-1") for name in read_costs(admission, headers)}
    return with_headers({**message, "headers": headers}, [], names)


def _settle(admission: Admission, rule: str, header: str, lines: Iterable[str]) -> None:
    """Settle a rule. Of several lines the largest number counts, because each may be from another layer."""
    costs = [cost for line in lines if (cost := number_of(line, infinite=None)) is not None]
    if not costs:
        log_note(f"rule {rule}: the header {header} is not a number from 0, so its responses keep their estimated cost")
        return
    RuleVerdict(admission.verdicts, rule).settle(max(costs))


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
