"""FastAPI with limits in the code, each API key on its own account."""
# Run it: uvicorn --app-dir examples fastapi_app:app --port 8000

from fastapi import FastAPI

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware

limiter = Limiter(
    [
        Rule(name="items", limits="10/minute", key="header:x-api-key|ip", match={"path": "/items/{id}"}),
        Rule(name="site", limits="60/minute", key="ip"),
    ]
)
app = FastAPI()
app.add_middleware(RateLimitMiddleware, limiter=limiter)


@app.get("/")
async def hello() -> dict[str, str]:
    return {"hello": "world"}


@app.get("/items/{id}")
async def item(id: int) -> dict[str, int]:  # noqa: A002 - as the rule's path names it
    return {"id": id}
