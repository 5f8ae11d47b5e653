"""Starlette behind the limits of ratelimit.toml. The page shows the verdict that its request was given."""
# Run it: uvicorn --app-dir examples starlette_app:app --port 8000

from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from ratelimit_mw.asgi import RateLimitMiddleware


async def hello(request):
    verdict = request.state.ratelimit
    return JSONResponse({"rules": verdict.rules, "remaining": min(d.remaining for d in verdict.decisions)})


app = Starlette(routes=[Route("/", hello)])
app.add_middleware(RateLimitMiddleware, settings=Path(__file__).with_name("ratelimit.toml"))
