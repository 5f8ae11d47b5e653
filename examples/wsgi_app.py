"""Plain WSGI: limits in a file, logins that count only failures, users, and a custom response."""
# Run it: gunicorn --chdir examples wsgi_app:app --bind 127.0.0.1:8000

import json
from http import HTTPStatus
from pathlib import Path

from users import sign_in, user_of

from ratelimit_mw import Rejection
from ratelimit_mw.wsgi import RateLimitMiddleware


def site(environ, start_response):
    status, data = respond_to(environ)
    start_response(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", "application/json")])
    return [json.dumps(data).encode()]


def respond_to(environ):
    if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) == ("POST", "/login"):
        return login(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
    if environ["PATH_INFO"] == "/api/report":
        user = user_of(environ.get("HTTP_AUTHORIZATION"))
        return (401, {}) if user is None else (200, {"for": user})
    verdict = environ["ratelimit_mw.verdict"]
    return 200, {"rules": verdict.rules, "remaining": min(d.remaining for d in verdict.decisions)}


def login(data):
    """The file counts only responses with status 401 for this rule."""
    token = sign_in(data["name"], data["password"])
    return (401, {}) if token is None else (200, {"token": token})


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
