"""Five daily tasks in FastAPI. The lines that limit end with the comment "limits"."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Form
from fastapi.responses import PlainTextResponse

from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware, limit  # limits


def plan_of(request: Any) -> str:
    return "pro" if request.headers.get("X-API-Key") == "secret" else "free"


app = FastAPI(default_response_class=PlainTextResponse)
app.add_middleware(RateLimitMiddleware, store="${REDIS_URL}", features={"plan": plan_of})  # limits
api = APIRouter(prefix="/api")
api.dependencies.append(RateLimit("3/minute"))  # limits


@app.get("/search")
@limit("2/minute")  # limits
async def search() -> str:
    return "found"


@api.get("/items")
async def items() -> str:
    return "items"


@app.post("/login")
@limit("2/minute", key=["email", "ip"], count_when={"status": 401})  # limits
async def login(password: Annotated[str, Form()]) -> PlainTextResponse:
    right = password == "right"
    return PlainTextResponse("welcome" if right else "wrong", 200 if right else 401)


@app.get("/report")
@limit("1/minute", key=["plan", "ip"], per={"plan": {"pro": "4/minute"}})  # limits
async def report() -> str:
    return "report"


@app.exception_handler(429)  # limits
async def too_many(request: Any, error: Any) -> PlainTextResponse:  # limits
    return PlainTextResponse("slow down", 429)  # limits


app.include_router(api)
