"""The application of the demo: pages and a login, with limits."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ratelimit_mw.asgi import RateLimitMiddleware

SETTINGS = Path(__file__).with_name("demo.toml")


async def page(scope, receive, send):
    await PlainTextResponse("a page\n")(scope, receive, send)


async def login(request):
    data = await request.json()
    if data.get("password") == "correct-horse":
        return PlainTextResponse("welcome\n")
    return PlainTextResponse("wrong password\n", 401)


routes = [Route("/login", login, methods=["POST"]), Mount("/", page)]
app = Starlette(routes=routes)
app.add_middleware(RateLimitMiddleware, settings=SETTINGS)
