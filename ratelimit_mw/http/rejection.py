"""The response to a rejected request, 429, 403 or 503, in the media type that its ``Accept`` prefers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

from ..clock import SECOND
from ..decision import BannedVerdict, Decision, Verdict
from .headers import Header, HeaderWriter

# The title and the problem type of each status.
_PROBLEMS: Final = {
    429: ("Too Many Requests", "https://iana.org/assignments/http-problem-types#quota-exceeded"),
    403: ("Forbidden", "about:blank"),
    503: ("Service Unavailable", "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"),
}
_BANNED: Final = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
_NEVER: Final = "Waiting does not help: this request can never be allowed."
_REASONS: Final = {int(status): status.phrase for status in HTTPStatus}
_MAX_ACCEPT: Final = 512
_MAX_KEPT: Final = 1_000


@dataclass(frozen=True)
class Rejection:
    """A whole response to a rejected request.

    The middleware adds the rate limit headers. Under ASGI all header names become lower case.

    Args:
        status: The HTTP status.
        headers: Names and values.
        body: The bytes of the body.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def reason(self) -> str:
        """The reason phrase beside the status, which WSGI requires."""
        return _REASONS.get(self.status, "Rejected")


class PreparedRejection(NamedTuple):
    """The response of this package to a rejection."""

    response: Rejection
    """The response without the rate limit headers."""
    headers: list[Header]
    """The headers of the response, for ASGI."""
    limit_headers: list[Header]
    """The rate limit headers."""


class PreparedRejections:
    """Prepares the responses to rejections. Under an attack, nearly all are by the same limits and in few seconds.

    It keeps a bounded number, because limits may differ between clients, and clients choose their seconds.
    """

    def __init__(self, writer: HeaderWriter) -> None:
        self._writer = writer
        self._prepared: dict[tuple[object, ...], PreparedRejection] = {}

    def find(self, verdict: Verdict, accept: str) -> PreparedRejection:
        """Return the response to a rejection, in the media type that its ``Accept`` header prefers."""
        form = _preferred(accept) if len(accept) <= _MAX_ACCEPT else 0
        key = _key_of(form, verdict)
        varying = self._writer.headers(verdict) if self._writer.varies else None
        if varying is not None:
            key += (self._writer.wait_of(varying),)
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= _MAX_KEPT:
                self._prepared.clear()
            limits = varying or self._writer.headers(verdict)
            prepared = self._prepared[key] = _prepare(verdict, form, limits, self._writer.wait_of(limits))
        return prepared if varying is None else prepared._replace(limit_headers=varying)


def _key_of(form: int, verdict: Verdict) -> tuple[object, ...]:
    """Return all that a response to a rejection depends on: of limits that allow the request, only their policy."""
    decisions = verdict.decisions
    if len(decisions) == 1:  # ``_key_of_decision`` without its call
        one = decisions[0]
        seconds = None if one.retry_us is None else -(-one.retry_us // SECOND)
        return form, one.why, one.hit[0], one.remaining, -(-one.reset_us // SECOND), seconds
    if not decisions:  # of a list, or of a client that is banned from all rules
        wait = verdict.retry_after
        return form, type(verdict), None if wait is None else math.ceil(wait)
    key: tuple[object, ...] = ()
    longest, position = -1.0, 0
    for decision in decisions:
        limit = decision.hit[0]
        if decision.allowed:
            key += (limit,)
            continue
        microseconds = math.inf if decision.retry_us is None else decision.retry_us
        if not limit.hidden and microseconds > longest:
            longest, position = microseconds, len(key)
        key += _key_of_decision(decision)
    return form, position, *key


def _key_of_decision(decision: Decision) -> tuple[object, ...]:
    seconds = None if decision.retry_us is None else -(-decision.retry_us // SECOND)
    return decision.why, decision.hit[0], decision.remaining, -(-decision.reset_us // SECOND), seconds


def _prepare(verdict: Verdict, form: int, limit_headers: list[Header], wait: int | None) -> PreparedRejection:
    """Prepare the response to a rejection in one media type, with these rate limit headers and seconds to wait."""
    status = verdict.status
    title, kind = _PROBLEMS[status]
    detail = _NEVER if wait is None else f"Retry after {wait} second{'' if wait == 1 else 's'}."
    if verdict.banned and status != HTTPStatus.SERVICE_UNAVAILABLE:
        reason = "You are banned." if isinstance(verdict, BannedVerdict) else "Too many of your requests were rejected."
        kind, detail = _BANNED, f"{reason} {detail}"
    elif verdict.shed:
        detail = f"The service is busy. {detail}"
    media, page, _ = _FORMS[form]
    if page is None:
        problem: dict[str, object] = {"type": kind, "title": title, "status": status, "detail": detail}
        problem |= {} if wait is None else {"retry-after": wait}
        text = json.dumps(problem | {"violated-policies": [each.hit[0].policy for each in verdict.rejected_by]})
    else:
        text = page.format(title=title, detail=detail)
    body = text.encode()
    headers = [("Content-Type", media), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    lines = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers]
    return PreparedRejection(Rejection(status, headers, body), lines, limit_headers)


_HTML: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
    "<body><h1>{title}</h1><p>{detail}</p></body></html>"
)
# The media type of each form, its template (None for JSON), and the media ranges of an Accept that match it, the most
# specific first. The first form wins a tie.
_FORMS: Final = (
    ("application/problem+json", None, ("application/problem+json", "application/json", "application/*", "*/*")),
    ("text/html; charset=utf-8", _HTML, ("text/html", "application/xhtml+xml", "text/*", "*/*")),
    ("text/plain; charset=utf-8", "{title}\n{detail}\n", ("text/plain", "text/*", "*/*")),
)


@lru_cache(1024)
def _preferred(accept: str) -> int:
    """Return the index of the form that an ``Accept`` header prefers (RFC 9110, 12.5.1)."""
    wanted = dict(map(_media_range, accept.split(",")))
    quality = [next((wanted[name] for name in names if name in wanted), 0.0) for _, _, names in _FORMS]
    return quality.index(max(quality))


def _media_range(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
    try:
        return name, min(1.0, max(0.0, float(quality)))
    except ValueError:
        return name, 0.0
