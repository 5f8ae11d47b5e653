"""A shop behind Flask-Limiter. flask_limiter_after.py is the same shop behind ratelimit_mw."""
# Run it: flask --app examples/migrating/flask_limiter_before.py run --port 8000

from flask import Blueprint, Flask, request
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
limiter = Limiter(
    get_remote_address,
    app=app,
    default_limits=["200 per day", "4/minute"],
    application_limits=["100 per 1 hour"],
    storage_uri="memory://",
)
finding = limiter.shared_limit("3/minute", scope="finding")
api = Blueprint("api", __name__, url_prefix="/api")
limiter.limit("2/minute", key_func=lambda: request.headers.get("X-API-Key") or get_remote_address())(api)


@limiter.request_filter
def is_monitoring():
    return request.headers.get("X-API-Key") == "monitoring"


@app.get("/")
def home():
    return "home\n"


@app.get("/about")
@limiter.limit("2/minute", override_defaults=False)
def about():
    return "about\n"


@app.get("/search/<word>")
@finding
def search(word):
    return f"results for {word}\n"


@app.get("/suggest/<word>")
@finding
def suggest(word):
    return f"{word}...\n"


@app.post("/login")
@limiter.limit("2 per minute;10 per hour", deduct_when=lambda response: response.status_code == 401)
def login():
    right = request.form.get("password") == "secret"
    return ("welcome\n", 200) if right else ("no\n", 401)


@app.get("/export")
@limiter.limit("10/hour", cost=5)
def export():
    return "everything\n"


@app.get("/health")
@limiter.exempt
def health():
    return "fine\n"


@api.get("/items")
def items():
    return "items\n"


@api.get("/prices")
def prices():
    return "prices\n"


app.register_blueprint(api)


@app.errorhandler(429)
def too_many(error):
    return "slow down\n", 429
