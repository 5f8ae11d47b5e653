"""FastAPI: limits in a file, as dependencies and on views; logins that count only failures; a custom response."""
# Run it: uvicorn --app-dir examples fastapi_app:app --port 8000

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from users import sign_in, user_of

from ratelimit_mw.fastapi import RateLimit, RateLimitExceeded, RateLimitMiddleware, exempt, limit

app = FastAPI()
app.add_middleware(
    RateLimitMiddleware,
    settings=Path(__file__).with_name("ratelimit.toml"),
    features={"user": lambda request: user_of(request.headers.get("authorization"))},
)
api = APIRouter(prefix="/api")


class Login(BaseModel):
    name: str
    password: str


def user_from(request: Request) -> str:
    user = user_of(request.headers.get("authorization"))
    if user is None:
        raise HTTPException(401)
    return user


@app.get("/")
async def home(request: Request):
    verdict = request.state.ratelimit
    return {"rules": verdict.rules, "remaining": min(d.remaining for d in verdict.decisions)}


@app.post("/login")
async def login(data: Login):
    """The file counts only responses with status 401 for this rule."""
    token = sign_in(data.name, data.password)
    if token is None:
        raise HTTPException(401, "wrong name or password")
    return {"token": token}


@api.get("/items/{id}", dependencies=[RateLimit("8/minute", name="item", key=["endpoint", "user|ip"])])
async def item(id: int):  # noqa: A002 - as the route names it
    return {"id": id}


@api.get("/report")
@limit("3/minute", name="report", key=["user"])  # in addition to the rules of the file
async def report(user: Annotated[str, Depends(user_from)]):
    return {"for": user}


@app.get("/health")
@exempt
async def health():
    return "fine"


@app.exception_handler(RateLimitExceeded)
async def too_many(request: Request, error: RateLimitExceeded):
    """The response to rejected requests. The middleware adds the rate limit headers."""
    return JSONResponse({"error": "slow down", "seconds": error.verdict.retry_after}, error.verdict.status)


app.include_router(api)
