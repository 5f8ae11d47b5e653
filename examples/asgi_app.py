"""Plain ASGI behind the limits of ratelimit.toml."""
# Run it: uvicorn --app-dir examples asgi_app:app --port 8000

from pathlib import Path

from ratelimit_mw.asgi import RateLimitMiddleware


async def hello(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"hello\n"})


app = RateLimitMiddleware(hello, settings=Path(__file__).with_name("ratelimit.toml"))
