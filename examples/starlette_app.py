"""Starlette: limits in a file and on views, logins that count only failures, users, and a custom response."""
# Run it: uvicorn --app-dir examples starlette_app:app --port 8000

from pathlib import Path

from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser, requires
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Route
from users import sign_in, user_of

from ratelimit_mw.starlette import RateLimitExceeded, RateLimitMiddleware, exempt, limit


class BearerToken(AuthenticationBackend):
    """Finds the user of a request. Rules with the key ``user`` count by it."""

    async def authenticate(self, conn):
        user = user_of(conn.headers.get("authorization"))
        return None if user is None else (AuthCredentials(["signed in"]), SimpleUser(user))


async def home(request):
    verdict = request.state.ratelimit
    return JSONResponse({"rules": verdict.rules, "remaining": min(d.remaining for d in verdict.decisions)})


async def login(request):
    """The file counts only responses with status 401 for this rule."""
    data = await request.json()
    token = sign_in(data["name"], data["password"])
    if token is None:
        return PlainTextResponse("wrong name or password\n", 401)
    return JSONResponse({"token": token})


async def item(request):
    return JSONResponse({"id": request.path_params["id"]})


@limit("3/minute", name="report", key=["user"])  # in addition to the rules of the file
@requires("signed in", status_code=401)
async def report(request):
    return JSONResponse({"for": request.user.display_name})


@exempt
async def health(request):
    return PlainTextResponse("fine\n")


async def too_many(request, error):
    """The response to rejected requests. The middleware adds the rate limit headers."""
    return JSONResponse({"error": "slow down", "seconds": error.verdict.retry_after}, error.verdict.status)


app = Starlette(
    routes=[
        Route("/", home),
        Route("/login", login, methods=["POST"]),
        Route("/health", health),
        Mount("/api", routes=[Route("/items/{id:int}", item), Route("/report", report)]),
    ],
    middleware=[
        Middleware(AuthenticationMiddleware, backend=BearerToken()),  # first, because the limits need the user
        Middleware(RateLimitMiddleware, settings=Path(__file__).with_name("ratelimit.toml")),
    ],
    exception_handlers={RateLimitExceeded: too_many},
)
