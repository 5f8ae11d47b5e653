"""A shop behind ratelimit_mw. slowapi_before.py is the same shop behind slowapi."""
# Run it: uvicorn --app-dir examples/migrating slowapi_after:app --port 8000

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from ratelimit_mw.fastapi import RateLimitExceeded, RateLimitMiddleware, exempt, limit

app = FastAPI()
app.add_middleware(
    RateLimitMiddleware,
    settings={
        "rules": [{"name": "default", "limits": ["200 per day", "4/minute"], "key": ["view", "ip"]}],
        "store": "memory://",
    },
    features={"monitoring": lambda request: "yes" if request.headers.get("X-API-Key") == "monitoring" else "no"},
)
finding = limit("3/minute", name="finding")


@app.exception_handler(RateLimitExceeded)
def slow_down(request: Request, error: RateLimitExceeded):
    return JSONResponse({"error": "slow down"}, status_code=429)


@app.get("/")
async def home():
    return "home"


@app.get("/about")
@limit("2/minute")
async def about():
    return "about"


@app.get("/search/{word}")
@exempt("default")
@finding
async def search(word: str):
    return f"results for {word}"


@app.get("/suggest/{word}")
@exempt("default")
@finding
def suggest(word: str):
    return f"{word}..."


@app.api_route("/items", methods=["GET", "POST"])
@exempt("default")
@limit("10 per hour;2 per minute", key="header:x-api-key|ip", match={"methods": "POST", "monitoring": "no"})
async def items():
    return "items"


@app.get("/export")
@exempt("default")
@limit("10/hour", cost=5)
async def export():
    return "everything"


@app.get("/health")
@exempt
async def health():
    return "fine"
