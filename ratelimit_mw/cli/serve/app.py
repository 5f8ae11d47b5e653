"""The decision service: an ASGI application. Gateways use ``/auth``, programs ``/v1/check``, admins the admin API.

``/dashboard`` shows its limiter. Only gateways need no token. The middleware decides for them, as it decides for an
application that allows every request.
"""

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ...asgi import RateLimitMiddleware
from ...asgi.body import ReadAhead
from ...asgi.request import ASGIRequest
from ...asgi.types import ASGIApp, Receive, Scope, Send
from ...clock import monotonic
from ...dashboard.asgi import ASGIDashboard
from ...dashboard.core import Mount
from ...errors import ConfigError, RateLimitError, StoreError
from ...http.token import CHALLENGE, has_token
from ...limiter.limiter import Limiter
from . import api
from .gateway import GATEWAYS, Gateway, ProblemError, original_scope, response_sender

_DASHBOARD: Final = "/dashboard"
_MAX_BODY: Final = 65_536
_log = logging.getLogger("ratelimit_mw")


class DecisionService:
    """Raises ``ConfigError`` for rules that the service cannot decide.

    Args:
        limiter: The limiter.
        token: The token of ``/v1/check``, the admin API and the dashboard.
        gateway: The name of the gateway that sends requests to ``/auth``; None for none.
    """

    def __init__(self, limiter: Limiter, token: str, gateway: str | None = None) -> None:
        self.limiter = limiter
        sender = GATEWAYS[gateway] if gateway else None
        self.rules = api.ServedRules(limiter, sender)
        self._token = token
        self._respond_to_gateway: ASGIApp | None = None
        if sender:
            decide = RateLimitMiddleware(_allow, limiter=limiter)
            decide.routes.index_of({})  # now, and not at the first request: there are no routes
            self._respond_to_gateway = partial(self._decide_original, sender, decide)
        # The service checks the access. Its token is that of the admin API, so the dashboard may write, too.
        self._dashboard = ASGIDashboard(Mount(limiter, lambda _: True, writes=True).check())
        self._is_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
            return
        watch = self.limiter.reloads.watch
        if watch is not None and monotonic() >= watch.due_at:
            await watch.alook()
        headers: Mapping[str, str] = {}
        try:
            if scope["path"] == "/auth" and self._respond_to_gateway is not None:
                await self._respond_to_gateway(scope, receive, send)
                return
            if f"{scope['path']}/".startswith(f"{_DASHBOARD}/"):
                if not has_token(ASGIRequest(scope), self._token, "bearer", "basic"):  # browsers send a password
                    problem = "the dashboard needs the admin token as the password"
                    raise ProblemError(401, problem, www_authenticate=CHALLENGE)
                await self._dashboard({**scope, "root_path": _DASHBOARD}, receive, send)
                return
            status, content = 200, await self._respond(ASGIRequest(scope), receive)
        except ProblemError as problem:
            status, content, headers = problem.status, {"error": str(problem)}, problem.headers
        except StoreError as error:
            status, content = 503, {"error": str(error)}
        except RateLimitError as error:
            status, content = 400, {"error": str(error)}
        await _send_json(send, status, content, headers)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.limiter.astart()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.limiter.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _decide_original(
        self, gateway: Gateway, decide: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        rules, respond = self.rules, response_sender(send, gateway)
        try:
            peer = ASGIRequest(scope).peer
            if not rules.client_ip.trusts(peer):
                raise ConfigError(f"the gateway {peer} is not one of trusted_proxies. Add it to trusted_proxies")
            original = original_scope(scope, gateway, rules.client_ip.header, rules.invalid_headers)
        except ConfigError as error:
            if not self._is_warned:  # a gateway may drop our response
                self._is_warned = True
                _log.warning("a request to /auth was not decided: %s", error)
            raise
        except ProblemError as problem:  # of the client, which the gateway would not see behind a 400
            content = {"type": "about:blank", "title": "Bad Request", "status": 400, "detail": str(problem)}
            await _send_json(respond, problem.status, content, {"content-type": "application/problem+json"})
            return
        await decide(original, receive, respond)

    async def _respond(self, request: ASGIRequest, receive: Receive) -> dict[str, Any]:
        route = api.ROUTES.get(request.path)
        if route is None:
            hint = ". To use /auth, start the service with --gateway" if request.path == "/auth" else ""
            known = ", ".join(("/auth", *api.ROUTES, _DASHBOARD))
            raise ProblemError(404, f"unknown path {request.path[:100]!r}. Expected one of {known}{hint}")
        if request.method.replace("HEAD", "GET") != route.method:
            raise ProblemError(405, f"{request.path} takes {route.method}; got {request.method[:100]!r}")
        if route.needs_token and not has_token(request, self._token, "bearer"):
            raise ProblemError(401, f"{request.path} needs the header Authorization: Bearer TOKEN")
        timeout = self.limiter.settings.body_timeout
        body = await _json_body(receive, timeout) if route.method == "POST" else b""
        return await route.respond(self.rules, **route.parse(request.query_string, body))


async def _allow(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Respond to a request that the middleware allows."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _json_body(receive: Receive, timeout_us: int) -> bytes:
    """Return the body. A web page cannot send one with the token to another host without a preflight."""
    ahead = ReadAhead(receive, _MAX_BODY, timeout_us)
    body = await ahead.read()
    ahead.close()
    if not isinstance(body, bytes):
        raise ProblemError(413, f"expected a whole body of at most {_MAX_BODY:,} bytes")
    return body


async def _send_json(send: Send, status: int, content: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    body = f"{json.dumps(content)}\n".encode()  # ASCII: a key may have half of a surrogate pair
    own = {"content-type": "application/json", "content-length": str(len(body)), "cache-control": "no-store"}
    lines = [(name.encode(), value.encode()) for name, value in {**own, **headers}.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
