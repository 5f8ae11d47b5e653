"""Flask: limits in a file and on views, logins that count failures, users, an answer of its own."""
# Run it: flask --app examples/flask_app.py run --port 8000
# Run it: gunicorn --chdir examples flask_app:app --bind 127.0.0.1:8000

from pathlib import Path

from flask import Blueprint, Flask, abort, g, request
from users import sign_in, user_of

from ratelimit_mw.flask import RateLimiter, exempt, limit

app = Flask(__name__)
api = Blueprint("api", __name__, url_prefix="/api")


@app.before_request
def who():
    """Registered before the limits, so that they know the user."""
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
    """The file limits this by its outcome: only answers with 401 count."""
    given = request.get_json()
    token = sign_in(given["name"], given["password"])
    return ("wrong name or password\n", 401) if token is None else {"token": token}


@api.get("/items/<int:id>")
def item(id):  # noqa: A002 - as the route names it
    return {"id": id}


@api.get("/report")
@limit("3/minute", name="report", key=["user"])  # on top of what the file says
def report():
    return {"for": g.user or abort(401)}


@app.get("/health")
@exempt
def health():
    return "fine\n"


@app.errorhandler(429)
def too_many(error):
    """What rejected clients are told. The rate limit headers are added to it."""
    return {"error": "slow down", "seconds": error.verdict.retry_after}, 429


app.register_blueprint(api)
limits.check(app)  # a mistake in what is marked above ends the start, not the first request
