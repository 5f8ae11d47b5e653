"""The changes that operators make on the page: the form, its token, and the operation that it names.

A form has the token of a cookie. Another website can neither read that cookie nor send it along, and its origin is
another one.
"""

from __future__ import annotations

import hmac
import re
from secrets import token_urlsafe
from typing import Any, Final

from ..errors import ConfigError
from ..http.request import Request, parse_pairs
from ..limiter.limiter import Limiter
from ..operations import read_features, run

MAX_FORM: Final = 16_384
_COOKIE: Final = "ratelimit_csrf"
_TOKEN: Final = re.compile(r"[\w-]{32}", re.ASCII)
_WORDS: Final = re.compile(r"\s+(?=[^\s=]+=)")
"""Where the next NAME=VALUE of a client begins: a value may contain spaces."""
_SPELLING: Final = "Check the spelling of its values."
RESULTS: Final = {
    "reset": ("The counts of the client are reset.", f"The client had no counts. {_SPELLING}"),
    "unban": ("The ban of the client is lifted.", f"The client was not banned. {_SPELLING}"),
    "override set": ("The client has other limits now.", ""),
    "override remove": ("The client has the limits of its rule again.", f"The client had no override. {_SPELLING}"),
}
"""The message of the page after each operation, where it has changed something, and where it has not."""


def token_of(request: Request) -> tuple[str, str]:
    """Return the token for the forms of a page, and the header that sets its cookie; "" where the browser has it."""
    if sent := _sent_token(request):
        return sent, ""
    token = token_urlsafe(24)
    return token, f"{_COOKIE}={token}; HttpOnly; SameSite=Strict"


def result_message(query: str) -> str:
    """Return the message of the page after the operation that the query names; "" without one."""
    fields = parse_pairs(query) or {}
    done, unchanged = ([*fields.get(name, ()), ""][0] for name in ("done", "unchanged"))
    return RESULTS[done][0] if done in RESULTS else RESULTS[unchanged][1] if unchanged in RESULTS else ""


def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. ``ConfigError`` for a body that is none."""
    body = request.body(MAX_FORM)
    pairs = parse_pairs(body.decode("utf-8", "replace")) if isinstance(body, bytes) else None
    if pairs is None:
        raise ConfigError("expected the fields of a form of this page")
    return {name: values[0].strip() for name, values in pairs.items()}


def is_own_form(request: Request, form: dict[str, str]) -> bool:
    """Return whether the page itself has sent a form. Browsers name where a form comes from; programs may not."""
    sent, site, origin = _sent_token(request), request.header("sec-fetch-site"), request.header("origin")
    if not sent or not hmac.compare_digest(sent.encode(), form.get("token", "").encode()):
        return False
    if site is not None:
        return bool(site == "same-origin")
    return origin is None or [str(origin).partition("://")[2]] == request.header_lines("host")


def change(limiter: Limiter, form: dict[str, str]) -> bool:
    """Run the operation of a form. Return whether it has changed something.

    Raises:
        ConfigError: A field is missing or invalid.
        StoreError: The store is unreachable.
    """
    name = form.get("operation", "")
    if name not in RESULTS:
        raise ConfigError(f"expected one of {', '.join(RESULTS)}; got {name[:100]!r}", "operation")
    client = form.get("client", "")  # such as "user=Ann Lee ip=192.0.2.7"
    features = read_features(_WORDS.split(client) if client else ())
    arguments: dict[str, Any] = {"rule": form.get("rule") or None, "features": features}
    if name == "override set":
        arguments |= {field: form.get(field) or None for field in ("limits", "for")}
    return not run(limiter, name, arguments).found_wrong


def _sent_token(request: Request) -> str:
    """Return the token of the cookie; "" without one that a page has set."""
    sent = request.cookie(_COOKIE)
    return sent if isinstance(sent, str) and _TOKEN.fullmatch(sent) else ""
