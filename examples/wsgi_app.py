"""Plain WSGI: limits in a file, logins that count failures, users, an answer of its own."""
# Run it: gunicorn --chdir examples wsgi_app:app --bind 127.0.0.1:8000

import json
from http import HTTPStatus
from pathlib import Path

from users import sign_in, user_of

from ratelimit_mw.http.rejection import Rejection
from ratelimit_mw.wsgi import RateLimitMiddleware


def site(environ, start_response):
    status, answer = answer_to(environ)
    start_response(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]


def answer_to(environ):
    if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) == ("POST", "/login"):
        return login(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
    if environ["PATH_INFO"] == "/api/report":
        user = user_of(environ.get("HTTP_AUTHORIZATION"))
        return (401, {}) if user is None else (200, {"for": user})
    verdict = environ["ratelimit_mw.verdict"]
    return 200, {"rules": verdict.rules, "remaining": min(d.remaining for d in verdict.decisions)}


def login(given):
    """The file limits this by its outcome: only answers with 401 count."""
    token = sign_in(given["name"], given["password"])
    return (401, {}) if token is None else (200, {"token": token})


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
