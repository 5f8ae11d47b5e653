"""Five daily tasks in Flask. The lines that limit end with the comment "limits"."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Flask, request

from ratelimit_mw.flask import RateLimiter, limit  # limits


def plan_of(request: Any) -> str:
    return "pro" if request.headers.get("X-API-Key") == "secret" else "free"


app = Flask(__name__)
RateLimiter(app, store="${REDIS_URL}", features={"plan": plan_of})  # limits
api = Blueprint("api", __name__, url_prefix="/api")
limit("3/minute")(api)  # limits


@app.get("/search")
@limit("2/minute")  # limits
def search() -> str:
    return "found"


@api.get("/items")
def items() -> str:
    return "items"


@app.post("/login")
@limit("2/minute", key=["email", "ip"], count_when={"status": 401})  # limits
def login() -> tuple[str, int]:
    return ("welcome", 200) if request.form["password"] == "right" else ("wrong", 401)


@app.get("/report")
@limit("1/minute", key=["plan", "ip"], per={"plan": {"pro": "4/minute"}})  # limits
def report() -> str:
    return "report"


@app.errorhandler(429)  # limits
def too_many(error: Any) -> tuple[str, int]:  # limits
    return "slow down", 429  # limits


app.register_blueprint(api)
