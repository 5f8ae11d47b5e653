"""A shop behind slowapi. slowapi_after.py is the same shop behind ratelimit_mw."""
# Run it: uvicorn --app-dir examples/migrating slowapi_before:app --port 8000

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from slowapi import Limiter
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIMiddleware
from slowapi.util import get_remote_address

limiter = Limiter(
    key_func=get_remote_address,
    default_limits=["200 per day", "4/minute"],
    storage_uri="memory://",
    key_style="endpoint",
)
app = FastAPI()
app.state.limiter = limiter
app.add_middleware(SlowAPIMiddleware)
finding = limiter.shared_limit("3/minute", scope="finding")


@app.exception_handler(RateLimitExceeded)
def slow_down(request: Request, error: RateLimitExceeded):
    return JSONResponse({"error": "slow down"}, status_code=429)


def api_key(request: Request):
    return request.headers.get("X-API-Key") or get_remote_address(request)


def is_monitoring(request: Request):
    return request.headers.get("X-API-Key") == "monitoring"


@app.get("/")
async def home():
    return "home"


@app.get("/about")
@limiter.limit("2/minute", override_defaults=False)
async def about(request: Request):
    return "about"


@app.get("/search/{word}")
@finding
async def search(request: Request, word: str):
    return f"results for {word}"


@app.get("/suggest/{word}")
@finding
def suggest(request: Request, word: str):
    return f"{word}..."


@app.api_route("/items", methods=["GET", "POST"])
@limiter.limit("10 per hour;2 per minute", key_func=api_key, methods=["POST"], exempt_when=is_monitoring)
async def items(request: Request):
    return "items"


@app.get("/export")
@limiter.limit("10/hour", cost=5)
async def export(request: Request):
    return "everything"


@app.get("/health")
@limiter.exempt
async def health():
    return "fine"
