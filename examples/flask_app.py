"""Flask: limits in a file and on views, logins that count only failures, users, and a custom response."""
# Run it: flask --app examples/flask_app.py run --port 8000
# Run it: gunicorn --chdir examples flask_app:app --bind 127.0.0.1:8000

from pathlib import Path

from flask import Blueprint, Flask, abort, g, request
from users import sign_in, user_of

from ratelimit_mw.flask import RateLimiter, exempt, limit

app = Flask(__name__)
api = Blueprint("api", __name__, url_prefix="/api")


@app.before_request
def load_user():
    """Runs before the limits, because they need the user."""
    g.user = user_of(request.headers.get("Authorization"))


limits = RateLimiter(
    app, settings=Path(__file__).with_name("ratelimit.toml"), features={"user": lambda request: g.user}
)


@app.get("/")
def home():
    verdict = g.ratelimit
    return {"rules": verdict.rules, "remaining": min(d.remaining for d in verdict.decisions)}


@app.post("/login")
def login():
    """The file counts only responses with status 401 for this rule."""
    data = request.get_json()
    token = sign_in(data["name"], data["password"])
    return ("wrong name or password\n", 401) if token is None else {"token": token}


@api.get("/items/<int:id>")
def item(id):  # noqa: A002 - as the route names it
    return {"id": id}


@api.get("/report")
@limit("3/minute", name="report", key=["user"])  # in addition to the rules of the file
def report():
    return {"for": g.user or abort(401)}


@app.get("/health")
@exempt
def health():
    return "fine\n"


@app.errorhandler(429)
def too_many(error):
    """The response to rejected requests. The middleware adds the rate limit headers."""
    return {"error": "slow down", "seconds": error.verdict.retry_after}, 429


app.register_blueprint(api)
limits.check(app)  # raises for a mistake in a decorator at the start, and not at the first request
