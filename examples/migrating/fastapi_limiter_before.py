"""A shop behind fastapi-limiter. fastapi_limiter_after.py is the same shop behind ratelimit_mw."""
# Run it: uvicorn --app-dir examples/migrating fastapi_limiter_before:app --port 8000

from fastapi import Depends, FastAPI, Request
from fastapi_limiter.decorators import skip_limiter
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import Duration, Limiter, Rate


async def api_key(request: Request):
    return request.headers.get("X-API-Key", "")


app = FastAPI()


@app.get("/", dependencies=[Depends(RateLimiter(Limiter(Rate(4, Duration.MINUTE))))])
async def home():
    return "home"


@app.get("/search", dependencies=[Depends(RateLimiter(Limiter([Rate(2, Duration.SECOND), Rate(5, Duration.DAY)])))])
async def search():
    return "results"


@app.get("/items", dependencies=[Depends(RateLimiter(Limiter(Rate(2, Duration.MINUTE)), identifier=api_key))])
async def items():
    return "items"


@app.get("/health", dependencies=[Depends(RateLimiter(Limiter(Rate(1, Duration.MINUTE))))])
@skip_limiter
async def health():
    return "fine"
