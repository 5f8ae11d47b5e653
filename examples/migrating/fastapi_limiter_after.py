"""A shop behind ratelimit_mw. fastapi_limiter_before.py is the same shop behind fastapi-limiter."""
# Run it: uvicorn --app-dir examples/migrating fastapi_limiter_after:app --port 8000

from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse

from ratelimit_mw import RateLimitExceeded
from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware, exempt

app = FastAPI()
app.add_middleware(RateLimitMiddleware, settings={})


@app.exception_handler(RateLimitExceeded)
async def too_many(request, error):
    return JSONResponse({"detail": "Too Many Requests"}, 429)


@app.get("/", dependencies=[Depends(RateLimit("4/minute"))])
async def home():
    return "home"


@app.get("/search", dependencies=[Depends(RateLimit("2/second; 5/day"))])
async def search():
    return "results"


@app.get("/items", dependencies=[Depends(RateLimit("2/minute", key="header:x-api-key"))])
async def items():
    return "items"


@app.get("/health", dependencies=[Depends(RateLimit("1/minute"))])
@exempt
async def health():
    return "fine"
