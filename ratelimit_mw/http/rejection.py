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
from .headers import Header, HeaderWriter, TextHeader, as_text, wait_of

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


class RejectionTemplate(NamedTuple):
    """The response of this package to rejections by the same limits, in one media type: all but the seconds to wait."""

    status: int
    media: str
    parts: tuple[bytes, ...]
    """The body, split where the seconds are."""

    def prepare(self, limits: list[Header]) -> PreparedRejection:
        """Return the response with these rate limit headers."""
        wait = wait_of(limits)
        body = self.parts[0] if wait is None else (b"%d" % wait).join(self.parts)
        headers = [("Content-Type", self.media), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
        lines = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers]
        return PreparedRejection(Rejection(self.status, headers, body), lines, limits, as_text(limits))


class PreparedRejection(NamedTuple):
    """The response of this package to a rejection."""

    response: Rejection
    """The response without the rate limit headers."""
    lines: list[Header]
    """The headers of the response, for ASGI."""
    limits: list[Header]
    """The rate limit headers."""
    texts: list[TextHeader]
    """The rate limit headers as text."""


class PreparedRejections:
    """Prepares the responses to rejections. Under an attack, nearly all are by the same limits and in few seconds.

    It keeps a bounded number, because limits may differ between clients, and clients choose their seconds.
    """

    def __init__(self, writer: HeaderWriter) -> None:
        self._writer = writer
        self._templates: dict[tuple[object, ...], RejectionTemplate] = {}
        self._prepared: dict[tuple[object, ...], PreparedRejection] = {}

    def find(self, verdict: Verdict, accept: str) -> PreparedRejection:
        """Return the response to a rejection, in the media type that its ``Accept`` header prefers."""
        form = _preferred(accept) if len(accept) <= _MAX_ACCEPT else 0
        if self._writer.varies:
            return self.prepare(verdict, form)
        key = _key_of(form, verdict)
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= _MAX_KEPT:
                self._prepared.clear()
            prepared = self._prepared[key] = self.prepare(verdict, form)
        return prepared

    def prepare(self, verdict: Verdict, form: int) -> PreparedRejection:
        """Prepare the response to a rejection in one media type."""
        headers = self._writer.headers(verdict)
        wait = wait_of(headers)
        rejecting = (each for decision in verdict.rejected_by for each in (decision.why, decision.hit[0]))
        key = (form, wait and min(wait, 2), type(verdict), *rejecting)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= _MAX_KEPT:
                self._templates.clear()
            template = self._templates[key] = build_template(verdict, form, wait)
        return template.prepare(headers)


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


def build_template(verdict: Verdict, form: int, wait: int | None) -> RejectionTemplate:
    """Return the template for all rejections by the same limits. Of ``wait`` only the number of the noun is used.

    Args:
        verdict: One of the rejections.
        form: The index of the media type.
        wait: The seconds to wait, None where waiting does not help.
    """
    status = verdict.status
    title, kind = _PROBLEMS[status]
    before, after = ("Retry after ", f" second{'' if wait == 1 else 's'}.") if wait else (_NEVER, "")
    if verdict.banned and status != HTTPStatus.SERVICE_UNAVAILABLE:
        reason = "You are banned." if isinstance(verdict, BannedVerdict) else "Too many of your requests were rejected."
        kind, before = _BANNED, f"{reason} {before}"
    elif verdict.shed:
        before = f"The service is busy. {before}"
    before = _concurrency(verdict) + before
    media, page, _ = _FORMS[form]
    if page is None:
        start = json.dumps({"type": kind, "title": title, "status": status, "detail": before})[:-2]
        violated = json.dumps([decision.hit[0].policy for decision in verdict.rejected_by])
        end = f', "violated-policies": {violated}}}'
        texts = [start, f'{after}", "retry-after": ', end] if wait else [f'{start}"{end}']
    else:
        start, end = page.format(title=title, detail="\0").split("\0")
        texts = [start + before, after + end] if wait else [start + before + end]
    return RejectionTemplate(status, media, tuple(text.encode() for text in texts))


def _concurrency(verdict: Verdict) -> str:
    """Return the smallest concurrency limit that rejects, as a sentence; "" without one."""
    slots = [
        decision.limit
        for decision in verdict.rejected_by
        if decision.source.holds_slots and not (decision.unavailable or decision.banned)
    ]
    if not slots:
        return ""
    requests = "1 request runs" if min(slots) == 1 else f"{min(slots)} requests run"
    return f"At most {requests} at a time. "


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
    wanted = dict(_media_range(part) for part in accept.split(",") if part.strip()) or {"*/*": 1.0}
    quality = [next((wanted[name] for name in names if name in wanted), 0.0) for _, _, names in _FORMS]
    return quality.index(max(quality))


def _media_range(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
    try:
        return name, min(1.0, max(0.0, float(quality)))
    except ValueError:
        return name, 0.0
