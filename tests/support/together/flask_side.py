"""One of three applications that share their limits: Flask, with Flask-Login."""

import os

from flask import Flask
from flask_login import LoginManager, UserMixin

from ratelimit_mw.flask import RateLimiter, limit


class User(UserMixin):
    def __init__(self, number):
        self.id = number


app = Flask(__name__)
RateLimiter(app, settings=os.environ["LIMITS"])
manager = LoginManager(app)


@manager.request_loader
def load(request):
    number = request.headers.get("X-User")
    return None if number is None else User(int(number))


@app.get("/page")
def page():
    return "page"


@app.get("/items/<int:id>")
def item(id):  # noqa: A002 - as the template has it
    return str(id)


@app.post("/login")
def login():
    return "no", 401


@app.get("/report")
@limit("2/hour", name="report", key=["user"], algorithm="sliding-window-log")
def report():
    return "report"
