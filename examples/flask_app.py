"""Flask behind the limits of ratelimit.toml."""
# Run it: flask --app examples/flask_app.py run --port 8000

from pathlib import Path

from flask import Flask

from ratelimit_mw.wsgi import RateLimitMiddleware

app = Flask(__name__)
app.wsgi_app = RateLimitMiddleware(app.wsgi_app, settings=Path(__file__).with_name("ratelimit.toml"))


@app.get("/")
def hello() -> str:
    return "hello\n"
