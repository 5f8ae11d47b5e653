"""The same application in Flask."""

import os

from flask import Flask

from ratelimit_mw.flask import RateLimiter

app = Flask(__name__)


@app.get("/")
def home():
    return {"worker": os.getpid()}


@app.get("/health")
def health():
    return {"healthy": True}


limits = RateLimiter(app, settings="ratelimit.toml")
limits.check(app)
