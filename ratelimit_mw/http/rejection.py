"""The response to a rejected request, 429, 403 or 503, in the media type that its ``Accept`` prefers."""

import json
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from ..decision import BannedVerdict, Verdict

# The title and the problem type of each status.
_PROBLEMS: Final = {
    429: ("Too Many Requests", "https://iana.org/assignments/http-problem-types#quota-exceeded"),
    403: ("Forbidden", "about:blank"),
    503: ("Service Unavailable", "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"),
}
_BANNED: Final = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
_MAX_ACCEPT: Final = 512


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
        return HTTPStatus(self.status).phrase if self.status in set(HTTPStatus) else "Rejected"


def build_rejection(verdict: Verdict, accept: str, retry_after: str | None) -> Rejection:
    """Return the response to a rejected verdict. ``retry_after`` is the value of its ``Retry-After`` header."""
    media, template, _ = _form(accept)
    detail = "Waiting does not help: this request can never be allowed."
    if retry_after:
        detail = f"Retry after {retry_after} second{'' if retry_after == '1' else 's'}."
    status = verdict.status
    title, kind = _PROBLEMS[status]
    if verdict.banned and status != HTTPStatus.SERVICE_UNAVAILABLE:
        kind = _BANNED
        reason = "You are banned." if isinstance(verdict, BannedVerdict) else "Too many of your requests were rejected."
        detail = f"{reason} {detail}"
    violated = [decision.hit[0].policy for decision in verdict.rejected_by]
    detail = f"{_concurrency(verdict)}{detail}"
    wait = {"retry-after": int(retry_after)} if retry_after else {}
    problem = {"type": kind, "title": title, "status": status, "detail": detail, **wait, "violated-policies": violated}
    body = (json.dumps(problem) if template is None else template.format(title=title, detail=detail)).encode()
    headers = [("Content-Type", media), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    return Rejection(status, headers, body)


def _concurrency(verdict: Verdict) -> str:
    """Return the smallest concurrency limit that rejects, as a sentence; "" without one."""
    slots = [
        decision.limit
        for decision in verdict.rejected_by
        if decision.hit[0].quota.concurrent and not (decision.unavailable or decision.banned)
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


def _form(accept: str) -> tuple[str, str | None, tuple[str, ...]]:
    return _FORMS[_preferred(accept) if len(accept) <= _MAX_ACCEPT else 0]


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
