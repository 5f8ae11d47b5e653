"""The decision service: an ASGI application. Gateways ask at ``/auth``, programs at ``/v1/check``.

The middleware decides for a gateway, as it decides for an application that allows every request.
"""

import hmac
import ipaddress
import logging
from collections.abc import Mapping
from functools import lru_cache, partial
from time import monotonic
from typing import Any, Final

import click
import msgspec

from ...asgi import RateLimitMiddleware
from ...asgi.request import ASGIApp, ASGIRequest, Receive, Scope, Send
from ...errors import ConfigError, RateLimitError, StoreError, error_path
from ...keys.features import checked_name
from ...limiter.limiter import Limiter
from . import api
from .gateway import GATEWAYS, Gateway, original_scope, response_sender
from .rules import ServedRules

_MAX_BODY: Final = 65_536
_OF_PROXIES: Final = {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"}
_log = logging.getLogger("ratelimit_mw")


class ProblemError(Exception):
    """Ends a request with this status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class DecisionService:
    """Raises ``ConfigError`` for rules that the service cannot decide.

    Args:
        limiter: The limiter.
        gateway: The name of the gateway that asks at ``/auth``; None for none.
        user_header: The header in which the gateway names the user.
        token: The token of the admin API. Without one, it is open on this machine only.
    """

    def __init__(
        self, limiter: Limiter, gateway: str | None = None, user_header: str | None = None, token: str | None = None
    ) -> None:
        self.limiter = limiter
        self.rules = ServedRules(limiter, gateway is not None, user_header is not None)
        self._token = token
        self._answer: ASGIApp | None = None
        """Answers a gateway, if one asks."""
        with error_path("--user-header"):
            name = checked_name(f"header:{user_header}").partition(":")[2] if user_header else ""
        if gateway:
            users = {"user": partial(_read_header, name)} if name else {}
            decide = RateLimitMiddleware(_allow, limiter=limiter, features=users)
            self._answer = partial(self._answer_gateway, GATEWAYS[gateway], decide)
        self._is_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        watch = self.limiter.watch
        if watch is not None and monotonic() >= watch.due_at:
            watch.look()
        try:
            if scope["path"] == "/auth" and self._answer is not None:
                await self._answer(scope, receive, send)
                return
            status, content = 200, await self._respond(ASGIRequest(scope), receive)
        except ProblemError as problem:
            status, content = problem.status, {"error": str(problem)}
        except StoreError as error:
            status, content = 503, {"error": str(error)}
        except (RateLimitError, click.UsageError) as error:
            status, content = 400, {"error": str(error)}
        await _send_json(send, status, content)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.limiter.astart()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.limiter.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer_gateway(
        self, gateway: Gateway, decide: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            peer = ASGIRequest(scope).peer
            if not self.rules.client_ip.trusts(peer):
                raise ConfigError(f"{peer} asks as a gateway, but it is not one of trusted_proxies")
            original = original_scope(scope, gateway, self.rules.client_ip.header)
        except ConfigError as error:
            if not self._is_warned:  # a gateway may drop our response
                self._is_warned = True
                _log.warning("a request to /auth was not decided: %s", error)
            raise
        await decide(original, receive, response_sender(send, gateway))

    async def _respond(self, request: ASGIRequest, receive: Receive) -> dict[str, Any]:
        route = api.ROUTES.get(request.path)
        if route is None:
            hint = ". Start the service with --gateway" if request.path == "/auth" else ""
            raise ProblemError(404, f"expected one of {', '.join(('/auth', *api.ROUTES))}{hint}")
        if request.method.replace("HEAD", "GET") != route.method:
            raise ProblemError(405, f"expected {route.method}")
        self._check_asker(request, route)
        body = await _json_body(request, receive) if route.method == "POST" else b""
        return await route.answer(self.rules, route.parse(request.query_string, body))

    def _check_asker(self, request: ASGIRequest, route: api.ApiRoute) -> None:
        """Raise ``ProblemError`` unless the client may ask."""
        if route.may_ask == "admin" and self._token is not None:
            if not _has_token(request, self._token):
                raise ProblemError(401, "expected the admin token: Authorization: Bearer TOKEN")
        elif route.may_ask == "trusted":
            if not (_is_local(request) or self.rules.client_ip.trusts(request.peer)):
                raise ProblemError(403, "expected a request of this machine, or of one of trusted_proxies")
        elif route.may_ask == "admin" and not _is_local(request):
            hint = "Start the service with --admin-token-file"
            raise ProblemError(403, f"the admin API is open on this machine only. {hint}")


def _read_header(name: str, request: ASGIRequest) -> Any:
    return request.header(name)


async def _allow(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Respond to a request that the middleware allows."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _is_local(request: ASGIRequest) -> bool:
    """Return whether a program of this machine asks, without a proxy. A web page has another host."""
    is_direct = _OF_PROXIES.isdisjoint(name for name, _ in request.native["headers"])
    return is_direct and _is_loopback(request.peer) and _is_loopback(request.host)


@lru_cache(1024)
def _is_loopback(host: object) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(str(host).strip("[]")).is_loopback
    except ValueError:
        return False


def _has_token(request: ASGIRequest, token: str) -> bool:
    kind, _, given = "".join(request.header_lines("authorization")).partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), token.encode())


async def _json_body(request: ASGIRequest, receive: Receive) -> bytes:
    """Return the body. A web page cannot send this content type to another host without a preflight."""
    content_type = str(request.header("content-type")).partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ProblemError(415, "expected the header Content-Type: application/json")
    body, has_more = b"", True
    while has_more:
        message = await receive()
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
        if len(body) > _MAX_BODY:
            raise ProblemError(413, f"expected a body of at most {_MAX_BODY:,} bytes")
    return body


async def _send_json(send: Send, status: int, content: Mapping[str, Any]) -> None:
    body = msgspec.json.encode(content)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers.append((b"cache-control", b"no-store"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
