"""Plain WSGI behind the limits of ratelimit.toml."""
# Run it: gunicorn --chdir examples wsgi_app:app --bind 127.0.0.1:8000

from pathlib import Path

from ratelimit_mw.wsgi import RateLimitMiddleware


def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello\n"]


app = RateLimitMiddleware(hello, settings=Path(__file__).with_name("ratelimit.toml"))
