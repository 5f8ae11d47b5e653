"""Plain ASGI: limits in a file, logins that count only failures, users, and a custom response."""
# Run it: uvicorn --app-dir examples asgi_app:app --port 8000

import json
from pathlib import Path

from users import sign_in, user_of

from ratelimit_mw import Rejection
from ratelimit_mw.asgi import RateLimitMiddleware


async def site(scope, receive, send):
    if scope["type"] != "http":
        return
    status, data = await respond_to(scope, receive)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(data).encode()})


async def respond_to(scope, receive):
    if (scope["method"], scope["path"]) == ("POST", "/login"):
        return login(json.loads(await body_of(receive)))
    if scope["path"] == "/api/report":
        user = user_from(scope)
        return (401, {}) if user is None else (200, {"for": user})
    verdict = scope["state"]["ratelimit"]
    return 200, {"rules": verdict.rules, "remaining": min(d.remaining for d in verdict.decisions)}


def login(data):
    """The file counts only responses with status 401 for this rule."""
    token = sign_in(data["name"], data["password"])
    return (401, {}) if token is None else (200, {"token": token})


async def body_of(receive):
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def user_from(scope):
    return user_of(dict(scope["headers"]).get(b"authorization", b"").decode("latin-1"))


def too_many(request, verdict):
    """The response to rejected requests. The middleware adds the rate limit headers."""
    data = {"error": "slow down", "seconds": verdict.retry_after}
    return Rejection(verdict.status, [("content-type", "application/json")], json.dumps(data).encode())


app = RateLimitMiddleware(
    site,
    settings=Path(__file__).with_name("ratelimit.toml"),
    features={"user": lambda request: user_of(request.headers.get("authorization"))},
    rejection=too_many,
)
