"""The checker that the ASGI middleware tests use detects each violation of the protocol."""

from __future__ import annotations

import pytest
from asgi_checker import App, Message, ProtocolError, Receive, Scope, Send, checked
from calls import BODY, START, http_scope, send_bare, sending
from tables import each


@each("harm", ["scope", "state", "headers", "swallow", "double", "copy", "read"])
def test_the_checker_detects_a_harmful_middleware(harm: str) -> None:
    """The checker detects a changed scope, state or header list, and lost, repeated, copied or consumed messages."""

    def careless(app: App) -> App:
        async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
            if harm == "scope":
                scope["seen"] = True
            if harm == "state":
                scope["state"]["other"] = 1
            if harm == "headers":
                scope["headers"].append((b"a", b"b"))
            if harm == "read":
                await receive()

            async def meddle(message: Message) -> None:
                if message["type"] == "http.response.body" and harm in ("swallow", "double", "copy"):
                    for _ in range({"swallow": 0, "double": 2, "copy": 1}[harm]):
                        await send(dict(message))
                    return
                await send(message)

            await app(scope, receive, meddle)

        return middleware

    with pytest.raises(ProtocolError):
        send_bare(checked(careless, sending(START, BODY)), http_scope(state={}))
