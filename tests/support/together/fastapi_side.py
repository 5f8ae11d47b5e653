"""One of three applications that share their limits: FastAPI, with Starlette's authentication."""

import os

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware

from ratelimit_mw.fastapi import RateLimitMiddleware, limit


class Backend(AuthenticationBackend):
    async def authenticate(self, conn):
        number = conn.headers.get("x-user")
        return None if number is None else (AuthCredentials(), SimpleUser(number))


app = FastAPI()
app.add_middleware(RateLimitMiddleware, settings=os.environ["LIMITS"])
app.add_middleware(AuthenticationMiddleware, backend=Backend())


@app.get("/page")
def page():
    return "page"


@app.get("/items/{id}")
def item(id: int):  # noqa: A002 - as the template has it
    return id


@app.post("/login")
def login():
    return PlainTextResponse("no", 401)


@app.get("/report")
@limit("1/hour", name="report", key=["user"], algorithm="sliding-window-log")
def report():
    return "report"
