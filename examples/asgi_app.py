"""Plain ASGI: limits in a file, logins that count failures, users, an answer of its own."""
# Run it: uvicorn --app-dir examples asgi_app:app --port 8000

import json
from pathlib import Path

from users import sign_in, user_of

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.http.rejection import Rejection


async def site(scope, receive, send):
    if scope["type"] != "http":
        return
    status, answer = await answer_to(scope, receive)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def answer_to(scope, receive):
    if (scope["method"], scope["path"]) == ("POST", "/login"):
        return login(json.loads(await body_of(receive)))
    if scope["path"] == "/api/report":
        user = signed_in(scope)
        return (401, {}) if user is None else (200, {"for": user})
    verdict = scope["state"]["ratelimit"]
    return 200, {"rules": verdict.rules, "remaining": min(d.remaining for d in verdict.decisions)}


def login(given):
    """The file limits this by its outcome: only answers with 401 count."""
    token = sign_in(given["name"], given["password"])
    return (401, {}) if token is None else (200, {"token": token})


async def body_of(receive):
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def signed_in(scope):
    return user_of(dict(scope["headers"]).get(b"authorization", b"").decode("latin-1"))


def too_many(request, verdict):
    """What rejected clients are told. The rate limit headers are added to it."""
    answer = {"error": "slow down", "seconds": verdict.retry_after}
    return Rejection(verdict.status, [("content-type", "application/json")], json.dumps(answer).encode())


app = RateLimitMiddleware(
    site,
    settings=Path(__file__).with_name("ratelimit.toml"),
    features={"user": lambda request: user_of(request.headers.get("authorization"))},
    rejection=too_many,
)
