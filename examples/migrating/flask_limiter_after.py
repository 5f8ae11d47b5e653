"""A shop behind ratelimit_mw. flask_limiter_before.py is the same shop behind Flask-Limiter."""
# Run it: flask --app examples/migrating/flask_limiter_after.py run --port 8000

from flask import Blueprint, Flask, request

from ratelimit_mw.flask import RateLimiter, exempt, limit

app = Flask(__name__)
limits = RateLimiter(
    app,
    {
        "rules": [
            {"name": "default", "limits": ["200 per day", "4/minute"], "key": ["view", "ip"]},
            {"name": "application", "limits": ["100 per 1 hour"]},
        ],
        "store": "memory://",
        "lists": {"allow": {"header:x-api-key": ["monitoring"]}},
    },
)
finding = limit("3/minute", name="finding")
api = Blueprint("api", __name__, url_prefix="/api")
limit("2/minute", key=["view", "header:x-api-key|ip"])(exempt("default")(api))


@app.get("/")
def home():
    return "home\n"


@app.get("/about")
@limit("2/minute")
def about():
    return "about\n"


@app.get("/search/<word>")
@exempt("default")
@finding
def search(word):
    return f"results for {word}\n"


@app.get("/suggest/<word>")
@exempt("default")
@finding
def suggest(word):
    return f"{word}...\n"


@app.post("/login")
@exempt("default")
@limit("2 per minute;10 per hour", count_when={"status": 401})
def login():
    right = request.form.get("password") == "secret"
    return ("welcome\n", 200) if right else ("no\n", 401)


@app.get("/export")
@exempt("default")
@limit("10/hour", cost=5)
def export():
    return "everything\n"


@app.get("/health")
@exempt
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


limits.check(app)
