"""ASGI middleware. Translates the protocol and nothing else: no counting, no rules, no headers of its own.

app = RateLimitMiddleware(app, settings="ratelimit.toml")
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Any, Unpack

from .decision import Verdict
from .http.asgi_body import BODY, ReadAhead, body_of
from .http.guard import Guard, HttpOptions, SettingsSource
from .http.headers import Header
from .http.rejection import Rejection
from .http.request import Request
from .limiter import Limiter

__all__ = ["ASGIRequest", "RateLimitMiddleware"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_DECIDED = "ratelimit_mw.decided"


class ASGIRequest(Request):
    """A request over an ASGI scope."""

    @property
    def method(self) -> str:
        return self.native["method"].upper()  # type: ignore[no-any-return]

    @property
    def path(self) -> str:
        path: str = self.native["path"] or "/"
        root: str = self.native.get("root_path", "")
        if not root:
            return path
        # Starlette keeps what the server was told apart from what its mounts add; rules know the mounts.
        root = self.native.get("app_root_path", root)
        return path[len(root) :] or "/" if root and (path == root or path.startswith(root + "/")) else path

    @property
    def peer(self) -> str | None:
        client = self.native.get("client")
        return client[0] if client else None

    @property
    def query_string(self) -> str:
        return self.native.get("query_string", b"").decode("latin-1")  # type: ignore[no-any-return]

    def header_lines(self, name: str) -> list[str]:
        wanted = name.encode("latin-1", "replace")
        return [value.decode("latin-1") for key, value in self.native["headers"] if key.lower() == wanted]

    def header_names(self) -> list[str]:
        return list(dict.fromkeys(key.decode("latin-1").lower() for key, _ in self.native["headers"]))

    def body(self, limit: int) -> object:
        return body_of(self.native)

    def one_of(self, values: list[str]) -> str:
        return values[-1]


def _user(request: Request) -> str | None:
    """The user as Starlette's AuthenticationMiddleware leaves it, when it ran before: what is unique comes first."""
    user = request.native.get("user")
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    for name in ("identity", "display_name"):
        try:
            if found := getattr(user, name, None):
                return str(found)
        except NotImplementedError:
            continue  # Starlette's BaseUser leaves both to its subclasses
    return None


class RateLimitMiddleware:
    """Decides every HTTP request by the rules; refuses it, or adds the headers to its response.

    Give it ``settings`` (a file, a dictionary or ``Settings``) or a ``limiter``. ``features`` are your own
    functions of the request, by feature name, sync or async; ``rejection`` is your own answer: a function of the
    request and the verdict that returns a ``Rejection`` or an ASGI application. ``trusted_proxies``, ``headers``
    and the other HTTP settings may be given here too. Raises ``ConfigError`` when built for what cannot work.

    The application finds the verdict in ``scope["state"]["ratelimit"]``.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: SettingsSource | None = None,
        *,
        limiter: Limiter | None = None,
        features: Mapping[str, Callable[[Any], Any]] | None = None,
        rejection: Callable[[ASGIRequest, Verdict], Any] | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        self.app = app
        self._guard = guard = Guard(settings, limiter, features or {}, rejection, _user, options)
        self.limiter = guard.limiter
        self._mine = (self.limiter,)
        self._plan = guard.plan
        self._features = guard.reader.of
        self._may_await = guard.reader.may_await
        self._reads_bodies = guard.reader.reads_bodies
        self._headers = guard.writer.headers
        self._names = guard.writer.names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: C901 - every call counts here
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = ASGIRequest(scope)
        plan = self._plan(request)
        decided = scope.get(_DECIDED, ())
        if not plan.looks or (decided and self._guard.has_decided(decided)):
            await self.app(scope, receive, send)
            return
        if self._reads_bodies and BODY not in scope and self._guard.reader.needs_body(plan):
            await self._read_ahead(request, receive, send)
            return
        features = self._features(plan, request)
        if self._may_await:
            for name, value in features.items():
                if inspect.isawaitable(value):
                    features[name] = await value
        if self.limiter.waits:
            verdict = await self.limiter.adecide(plan, features, request=request)
        else:
            verdict = self.limiter.decide(plan, features, None, True, request)
        state = scope.get("state")
        if state is None:
            state = {}
        state["ratelimit"] = verdict
        # The mark stands in the scope: a state may outlive the request, where a server hands all requests the same.
        scope = dict(scope)
        scope["state"] = state
        scope[_DECIDED] = decided + self._mine
        if not verdict.allowed:
            await self._refuse(request, verdict, scope, receive, send)
            return
        status = 500  # what the server answers when the application raises before it has answered

        def send_with_headers(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if added := self._headers(verdict):
                    message = _with_headers(message, added, self._names)
            return send(message)

        if plan.holds:
            self.limiter.hold(verdict)
        try:
            if plan.delays and verdict.delay:
                await asyncio.sleep(verdict.delay)
            await self.app(scope, receive, send_with_headers)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            # Nobody knows how it would have ended: what was reserved stays spent, and only slots come back.
            if plan.holds:
                await asyncio.shield(self.limiter.aconclude(verdict, None))
            raise
        except Exception:
            await self.limiter.aconclude(verdict, status)
            raise
        if plan.ends or verdict.ledger is not None:
            await self.limiter.aconclude(verdict, status)

    async def _read_ahead(self, request: ASGIRequest, receive: Receive, send: Send) -> None:
        """Start again with the body in the scope."""
        http = self._guard.http
        async with ReadAhead(receive, http.body_limit, http.body_timeout) as ahead:
            await self({**request.native, BODY: await ahead.read(request)}, ahead.receive, send)

    async def _refuse(self, request: ASGIRequest, verdict: Verdict, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._headers(verdict)
        names = {name for name, _ in headers}

        def send_with_headers(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message = _with_headers(message, headers, names)
            return send(message)

        if self._guard.refuse is None:
            answer: Any = self._guard.rejection(request, verdict, headers)
        else:
            answer = self._guard.refuse(request, verdict)
            answer = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(answer, Rejection):
            await answer(scope, receive, send_with_headers)
            return
        own = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        await send_with_headers({"type": "http.response.start", "status": answer.status, "headers": own})
        await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else answer.body})


def _with_headers(message: Message, added: list[Header], names: Collection[bytes]) -> Message:
    """The message with a new header list: ``added`` replace what the application set under ``names``."""
    given: Iterable[Header] = message.get("headers") or ()
    return {**message, "headers": [header for header in given if header[0].lower() not in names] + added}
