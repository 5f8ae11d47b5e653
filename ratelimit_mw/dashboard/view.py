"""``View``: the time range and the rule or endpoint that a URL of the dashboard shows."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final, NamedTuple, get_args
from urllib.parse import urlencode

from ..errors import ConfigError, suggestion
from ..http.request import parse_pairs
from ..operations.answer import seconds_of
from ..operations.traffic import Kind

RANGES: Final = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400, "year": 365 * 86_400}
"""The time ranges that end now, in seconds."""
_DEFAULT: Final = "day"
_NAMES: Final = {"start": "from", "end": "to", "kind": "by"}
"""The fields of a query whose names differ from those of a view."""
_MAX_NAME: Final = 300
"""No rule or endpoint has a longer name."""
_EXPECTED: Final = "a date such as 2026-01-31, or a time in UTC such as 2026-01-31T12:00"


class View(NamedTuple):
    """The fields of a query."""

    range: str = ""
    start: str = ""
    end: str = ""
    kind: Kind = "rule"
    name: str | None = None
    clients: bool = False

    def span(self, now: float) -> tuple[float, float]:
        """Return the time range, in seconds since 1970. Raises ``ConfigError`` for one that ends before its start."""
        if not (self.start or self.end):
            return now - RANGES[self.range or _DEFAULT], now
        start, end = _time(self.start, "from"), min(_time(self.end, "to", is_end=True), now) if self.end else now
        if end < start:
            raise ConfigError("the range is in the future, or ends before its start", "from")
        return start, end

    @property
    def shown_range(self) -> str:
        """The name of the range; "" for dates."""
        return "" if self.start else self.range or _DEFAULT

    @property
    def is_live(self) -> bool:
        """Whether the range ends now."""
        return not self.end

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The fields of the query that shows this view."""
        changed = {name: value for name, value in self._asdict().items() if value != self._field_defaults[name]}
        return [(_NAMES.get(name, name), "yes" if value is True else value) for name, value in changed.items()]

    def link(self, page: str = "", **changes: str | bool | None) -> str:
        """Return the relative URL of this view with other fields."""
        return f"{page}?{urlencode(self._replace(**changes).fields)}"  # type: ignore[arg-type]


def parse_view(query: str) -> View:
    """Return the view of a query. Raises ``ConfigError`` for a value that no link of the page has."""
    fields = {name: values[-1] for name, values in (parse_pairs(query) or {}).items()}
    if len(fields.get("name", "")) > _MAX_NAME:
        raise ConfigError(f"expected at most {_MAX_NAME} characters", "name")
    return View(
        _one_of("range", fields.get("range", ""), ("", *RANGES)),
        fields.get("from", ""),
        fields.get("to", ""),
        _one_of("by", fields.get("by") or "rule", get_args(Kind)),  # type: ignore[arg-type]
        fields.get("name"),
        fields.get("clients") == "yes",
    )


def _one_of(field: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        names = list(filter(None, known))
        raise ConfigError(f"got {text[:100]!r}{suggestion(text[:100], names)}", field)
    return text


def _time(text: str, field: str, is_end: bool = False) -> float:
    """Return the seconds since 1970 of a date or a time. A date as the end of a range includes the whole day."""
    try:
        if len(text) == len("2026-01-31"):
            text = f"{date.fromisoformat(text) + timedelta(days=is_end)}"
        return max(0.0, seconds_of(text))
    except (ValueError, OverflowError):
        raise ConfigError(f"expected {_EXPECTED}; got {text[:100]!r}", field) from None
