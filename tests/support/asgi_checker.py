"""A strict checker of an ASGI middleware, with the server on the outside and the application on the inside.

Call the application ``checked(build, app)``. A violation raises ``ProtocolError`` where it happens: a changed scope, a
late, altered or repeated message, a header of the wrong type or in capitals, a consumed body.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ROUTE = {"endpoint", "path_params", "route", "router"}
"""The keys of a scope that a router adds, which middleware outside sees."""
OWN_STATE = {"ratelimit"}
"""The keys that the middleware may add to the state of a request."""


class ProtocolError(Exception):
    """The middleware violated ASGI. This is no AssertionError, so no test mistakes it for its own."""


class Exchange:
    """One call: the messages from and to the server, and those of the application."""

    def __init__(self) -> None:
        self.reads_by_server = 0
        self.reads_by_app = 0
        self.passed_on: list[Message] = []


_exchange: ContextVar[Exchange] = ContextVar("exchange")


def checked(build: Callable[[App], App], app: App) -> App:
    """Wrap ``app`` in the middleware of ``build``, and check both sides."""
    middleware = build(_inside(app))

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange()
        token = _exchange.set(exchange)
        before = {**scope}
        headers, state = list(scope.get("headers", ())), dict(scope.get("state") or {})

        async def counted_receive() -> Message:
            exchange.reads_by_server += 1
            return await receive()

        async def checked_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                check_start(message)
            exchange.passed_on.append(message)
            await send(message)

        try:
            await middleware(scope, counted_receive, checked_send)
        finally:
            _exchange.reset(token)
            others = {name: value for name, value in scope.items() if name not in ROUTE - before.keys()}
            require(others == before, "the server's scope was changed")
            require(list(scope.get("headers", ())) == headers, "the server's headers were changed")
            added = {name for name, value in (scope.get("state") or {}).items() if state.get(name) is not value}
            require(added <= OWN_STATE, f"the server's state was given {added - OWN_STATE}")
            require(exchange.reads_by_server == exchange.reads_by_app, "the middleware received for itself")

    return server


def _inside(app: App) -> App:
    """Wrap the application: every message must reach the server before ``send`` returns."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _exchange.get()

        async def counted_receive() -> Message:
            exchange.reads_by_app += 1
            return await receive()

        async def checked_send(message: Message) -> None:
            before, passed = {**message}, len(exchange.passed_on)
            headers = list(message["headers"]) if isinstance(message.get("headers"), list) else None
            await send(message)
            require(len(exchange.passed_on) == passed + 1, f"{message['type']} was held back or doubled")
            require(message == before, f"the application's {message['type']} was changed in place")
            require(headers is None or message["headers"] == headers, "the application's headers were changed")
            _compare(message, exchange.passed_on[-1])

        await app(scope, counted_receive, checked_send)

    return application


def _compare(given: Message, passed_on: Message) -> None:
    if given["type"] != "http.response.start":
        require(passed_on is given, f"{given['type']} is not the object that the application sent")
    others = {name for name in given if name != "headers"}
    require(all(passed_on[name] == given[name] for name in others), "http.response.start lost or changed something")


def check_start(message: Message) -> None:
    """Check types and spelling of a start message as a server does."""
    require(type(message["status"]) is int, f"a status that is not an int: {message['status']!r}")
    for pair in message.get("headers", ()):
        require(isinstance(pair, list | tuple) and len(pair) == 2, f"a header that is not a pair: {pair!r}")
        name, value = pair
        require(type(name) is bytes and type(value) is bytes, f"a header that is not bytes: {pair!r}")
        require(name == name.lower() and name != b"", f"a header name in capitals: {name!r}")
        require(not set(value) & {0, 10, 13}, f"a header that could split the response: {pair!r}")


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ProtocolError(otherwise)
